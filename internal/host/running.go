package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func (s *scan) readProcesses() {
	processes, unread := s.host.processes()
	s.unknown = append(s.unknown, unread...)
	for _, p := range processes {
		found := s.running(p)
		if s.isWorkload(p, found) {
			s.workloads = append(s.workloads, found)
			continue
		}
		s.found = append(s.found, found)
	}
}

// isWorkload says that a server is what any user of the cluster can run: a pod of the API server's, on data of its own.
// Who may make pods could otherwise make the node undeletable. A static pod that cannot be told by its UID has its data on
// the host, under the name that it has there (kubeadm, RKE2), and mounting that takes the rights of the host's
// administrator. A pod of which the kernel does not tell enough is no workload for sure.
func (s *scan) isWorkload(p process, found server) bool {
	if !p.place.pod || p.place.static || len(p.unread) > 0 || found.Unit != "" {
		return false
	}
	if _, err := p.files.stat("/"); err != nil {
		return false
	}
	if found.dir == nil {
		return true
	}
	onHost, err := s.host.root.stat(found.named)
	return absent(err) || err == nil && !os.SameFile(onHost, found.dir)
}

// noteWorkloads tells of what was left out.
func (s *scan) noteWorkloads() {
	for _, f := range s.workloads {
		s.notes = append(s.notes, fmt.Sprintf("process %d is etcd in an ordinary pod with data of its own: "+
			"it is no static pod, does not guard the node, and is not asked", f.PID))
	}
}

// running describes a server that runs. Its own arguments and environment are the truth; the unit's files, which may have
// been edited since it started, fill in only for what could not be read.
func (s *scan) running(p process) server {
	h := s.host
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
