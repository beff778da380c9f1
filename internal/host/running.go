package host

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func (s *scan) readProcesses() {
	s.unknown = append(s.unknown, s.host.processes(s.readProcess)...)
}

func (s *scan) readProcess(p process) {
	if w, is := s.workload(p); is {
		if w.dir != nil || p.within == nil {
			s.workloads = append(s.workloads, w)
		}
		return
	}
	if p.within != nil && !s.findWithin(&p) {
		return
	}
	found := s.running(p)
	if s.mayBeWorkload(p) && (found.dir == nil || !s.isTheHosts(found.named, found.dir)) {
		s.workloads = append(s.workloads, workload{pid: p.pid, dir: found.dir})
		return
	}
	s.found = append(s.found, found)
}

// running describes a server that runs. Its own arguments and environment are the truth; the unit's files, which may have
// been edited since it started, fill in only for what could not be read.
func (s *scan) running(p process) server {
	h := s.host
	if !h.sameRoot(p) {
		p.mounts = h.mountsOf(p.pid)
	}
	sighting := protect.Sighting{PID: p.pid, InCluster: p.place.pod, Problems: slices.Concat(p.unread, p.garbled)}
	unit := s.serviceOf(p)
	env, envOrigin := p.env, fmt.Sprintf("the environment of process %d", p.pid)
	if env == nil && unit != nil {
		env, envOrigin = unit.env, unit.envFile
	}
	flags := flagSettings(p.args)
	if p.configFile != "" {
		flags = settings{"config-file": p.configFile}
	}
	find := func(named string) (string, error) { return h.find(p, named) }
	files := p.files
	if _, err := files.stat("/"); err != nil {
		sighting.Problems = append(sighting.Problems, fmt.Sprintf("the files of process %d: %v", p.pid, plain(err)))
		find, files = h.root.locate, h.root
	}
	told, err := precedence(flags, envSettings(env), files.read)
	if err != nil {
		sighting.Problems = append(sighting.Problems, err.Error())
	}
	sighting.Config = told.config(p.workDir, env != nil && err == nil)
	found := server{Sighting: sighting}
	found.look(files, find)
	found.Config.File = located(find, told.file)
	found.Credentials = h.credentials(told.settings, envOrigin, find)
	found.Source, found.Where = protect.Process, fmt.Sprintf("%s process %d", p.program, p.pid)
	switch {
	case unit != nil:
		found.setUnit(unit.name)
	case p.place.unit() != "":
		found.setUnit(p.place.unit())
	case p.place.container || p.place.pod:
		found.Source, found.Where = protect.Container, fmt.Sprintf("container, process %d", p.pid)
		if p.place.static {
			found.Source, found.Where = protect.StaticPod, fmt.Sprintf("static pod, process %d", p.pid)
		}
	}
	return found
}

func (f *server) setUnit(name string) {
	f.Source, f.Unit, f.Where = protect.SystemdUnit, name, "systemd unit "+name
}

// look opens the data directory and makes its path the agent's.
func (f *server) look(files tree, find func(string) (string, error)) {
	named := f.Config.DataDir
	if f.named = named; named == "" {
		return
	}
	if at, err := find(named); err == nil {
		f.Config.DataDir = at
	}
	var err error
	if f.dir, err = files.stat(named); err != nil && !absent(err) {
		f.Problems = append(f.Problems, fmt.Sprintf("the data directory %s: %v", named, plain(err)))
		return
	}
	has, err := holdsMember(files, named)
	if err != nil {
		f.Problems = append(f.Problems, fmt.Sprintf("the data directory %s: %v", named, plain(err)))
		return
	}
	f.HasData = &has
}

// holdsMember says whether a data directory holds a member: k0s and k3s take the same two paths for it.
func holdsMember(files tree, dir string) (bool, error) {
	for _, path := range []string{"member/snap/db", "member/wal"} {
		_, err := files.stat(filepath.Join(dir, path))
		if err == nil {
			return true, nil
		}
		if !absent(err) {
			return false, err
		}
	}
	return false, nil
}

// serviceOf returns the host's unit that runs the process: the one that systemd names for it, or the outermost that its
// cgroup names and that the host has.
func (s *scan) serviceOf(p process) *service {
	for i := range s.services {
		if s.services[i].mainPID == p.pid {
			return &s.services[i]
		}
	}
	for _, name := range p.place.units {
		for i := range s.services {
			if s.services[i].name == name {
				return &s.services[i]
			}
		}
	}
	return nil
}
