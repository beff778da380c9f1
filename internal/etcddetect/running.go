package etcddetect

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A pathFinder returns the agent's path for a path of a server.
type pathFinder = func(named string) (string, error)

// addProcess adds the server that a process runs, or the pod if it is an ordinary one.
func (s *hostScan) addProcess(p etcdProcess) {
	if w, ok := s.ordinaryPod(p); ok {
		if w.dir != nil || p.parent == nil {
			s.pods = append(s.pods, w)
		}
		return
	}
	if p.parent != nil && !s.locateEmbedded(&p) {
		return
	}
	found := s.describeProcess(p)
	if s.canBeOrdinaryPod(p) && (found.dir == nil || !s.isHostDir(p, found.named, found.dir)) {
		s.pods = append(s.pods, podServer{pid: p.pid, dir: found.dir})
		return
	}
	s.found = append(s.found, found)
}

// describeProcess describes a running server. Its own arguments and environment count. The
// files of its unit may have changed since it started and only replace what could not be
// read.
func (s *hostScan) describeProcess(p etcdProcess) foundServer {
	if !s.root.IsSameDir(p.root) {
		p.mounts = s.root.Mounts(p.pid)
	}
	server := evidence.Server{PID: p.pid, InCluster: p.owner.pod, Problems: slices.Concat(p.unread, p.problems)}
	unit := s.unitOf(p)
	env, envOrigin := p.env, fmt.Sprintf("the environment of process %d", p.pid)
	if env == nil && unit != nil {
		env, envOrigin = unit.Env, unit.envFile
	}
	flags := parseFlags(p.args)
	if p.configFile != "" {
		flags = etcdSettings{"config-file": p.configFile}
	}
	find := func(named string) (string, error) { return s.root.Find(p.root, p.mounts, named) }
	files := p.root
	if _, err := files.Stat("/"); err != nil {
		problem := fmt.Sprintf("the files of process %d: %v", p.pid, hostfs.Reason(err))
		server.Problems = append(server.Problems, problem)
		find, files = s.root.Resolve, s.root
	}
	loaded, err := loadSettings(flags, envSettings(env), files.ReadFile)
	if err != nil {
		server.Problems = append(server.Problems, err.Error())
	}
	server.Config = loaded.config(p.workDir, env != nil && err == nil)
	found := foundServer{Server: server}
	found.inspectDataDir(files, find)
	found.Config.File = existingPath(find, loaded.file)
	found.Credentials = s.credentials(loaded.etcdSettings, envOrigin, find)
	found.Source, found.Where = evidence.Process, fmt.Sprintf("%s process %d", p.program, p.pid)
	switch {
	case unit != nil:
		found.setUnit(unit.Name)
	case p.owner.unit() != "":
		found.setUnit(p.owner.unit())
	case p.owner.static:
		found.Source, found.Where = evidence.StaticPod, fmt.Sprintf("static pod, process %d", p.pid)
	case p.owner.container || p.owner.pod:
		found.Source, found.Where = evidence.Container, fmt.Sprintf("container, process %d", p.pid)
	}
	return found
}

// unitOf returns the host's unit that runs the process: the one whose main process it is for
// systemd, or the outermost one in its cgroup that the host has.
func (s *hostScan) unitOf(p etcdProcess) *etcdUnit {
	for i := range s.units {
		if s.units[i].mainPID == p.pid {
			return &s.units[i]
		}
	}
	for _, name := range p.owner.units {
		for i := range s.units {
			if s.units[i].Name == name {
				return &s.units[i]
			}
		}
	}
	return nil
}

// locateEmbedded reports whether a running parent program contains etcd, and sets the
// configuration file of that etcd. A program whose data directory is not found is unknown.
//
// k3s removes its arguments from the process table once it has read them (pkg/cli/server,
// SetProcTitle), and with them the variables that the kernel would show. The remaining
// sources are the unit, the settings files, the path of the program, which k3s unpacks into
// its data directory (cmd/k3s/main.go, extract), and its open files.
func (s *hostScan) locateEmbedded(p *etcdProcess) bool {
	e := *p.parent
	starts := []programStart{{args: p.args, env: p.env}}
	if unit := s.unitOf(*p); unit != nil {
		start, _ := e.startOf(*unit)
		starts = append(starts, start)
	} else if home := s.openDatabaseHome(p.pid, e); home != "" {
		p.setEmbedded(home)
		return true
	}
	var homes, problems []string
	for _, start := range starts {
		configured, _, err := e.dataDirs(start, p.root)
		if err != nil {
			problems = append(problems, err.Error())
		}
		homes = append(homes, configured...)
	}
	// The programs of another version may be unpacked in a directory without the data of this
	// one, so the path of the program comes after all configured directories.
	homes = append(homes, nonempty(e.unpackHome(path.Dir(path.Dir(p.exe))))...)
	homes = unique(append(homes, e.dataDir))
	for _, home := range homes {
		if p.hasFile(path.Join(e.etcdDataDir(home), e.config)) {
			p.setEmbedded(home)
			p.problems = unique(problems)
			return true
		}
		if first, _, _ := strings.Cut(e.etcdDir, "/"); len(problems) == 0 && p.hasFile(path.Join(home, first)) {
			return false // the program's data directory, with another database
		}
	}
	if home := s.openDatabaseHome(p.pid, e); home != "" {
		p.setEmbedded(home)
		return true
	}
	reasons := append(unique(problems), fmt.Sprintf("it has no data in %s", strings.Join(homes, ", ")))
	s.addUnknown("process %d, %s %s, may contain etcd: %s; set data-dir in %s to its data directory",
		p.pid, e.name, e.role, strings.Join(reasons, "; "), e.settings)
	return false
}

// setEmbedded sets the configuration of the etcd in a parent program with the data directory
// home.
func (p *etcdProcess) setEmbedded(home string) {
	p.configFile, p.args = path.Join(p.parent.etcdDataDir(home), p.parent.config), nil
}

// hasFile reports whether a file exists for the process. A file that cannot be read exists.
func (p *etcdProcess) hasFile(name string) bool {
	_, err := p.root.Stat(name)
	return !hostfs.IsAbsent(err)
}

// openDatabaseHome returns the data directory of the program whose process has etcd's
// database open, or "" if no such file is open or the kernel does not show it.
func (s *hostScan) openDatabaseHome(pid int, e parentProgram) (home string) {
	dir := s.root.Proc(strconv.Itoa(pid) + "/fd")
	table, err := os.Open(dir)
	if err != nil {
		return ""
	}
	defer func() { _ = table.Close() }() // nothing was written
	names, _ := table.Readdirnames(-1)   // the names before an error count
	for _, name := range names {
		file, err := os.Readlink(filepath.Join(dir, name))
		home, ok := strings.CutSuffix(file, "/"+e.etcdDir+"/member/snap/db")
		if err == nil && ok && filepath.IsAbs(home) {
			return home
		}
	}
	return ""
}
