package etcddetect

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A pathFinder returns the agent's path for a path of a server.
type pathFinder = func(serverPath string) (agentPath string, err error)

// addProcess adds the server that a process runs, or the pod if it is an ordinary one.
func (s *hostScan) addProcess(p etcdProcess) {
	if pod, ok := s.ordinaryPod(p); ok {
		if pod.dirInfo != nil || p.parent == nil {
			s.pods = append(s.pods, pod)
		}
		return
	}
	if p.parent != nil && !s.findEmbedded(&p) {
		return
	}
	found := s.describeProcess(p)
	if found.isProxy {
		s.addNote("%s is a v2 proxy and no member: its data directory %s has proxy/ and no member/",
			found.Where, found.serverDataDir)
		s.proxyUnits = append(s.proxyUnits, nonempty(found.Unit)...)
		return
	}
	// A pod with a host's configuration file can still have its own data; only now is the data
	// directory known.
	if s.canBeOrdinaryPod(p) && (found.dirInfo == nil || !s.isHostDir(p, found.serverDataDir, found.dirInfo)) {
		s.pods = append(s.pods, podServer{pid: p.pid, dirInfo: found.dirInfo})
		return
	}
	s.found = append(s.found, found)
}

// describeProcess describes a running server. Its own arguments and environment count. The
// files of its unit may have changed since it started and only replace what could not be
// read.
func (s *hostScan) describeProcess(p etcdProcess) detectedServer {
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
	find := func(serverPath string) (string, error) { return s.root.Find(p.root, p.mounts, serverPath) }
	files := p.root
	if _, err := files.Stat("/"); err != nil {
		problem := fmt.Sprintf("the files of process %d: %v", p.pid, hostfs.Reason(err))
		server.Problems = append(server.Problems, problem)
		find, files = s.root.Resolve, s.root
	}
	loaded, err := loadSettings(flags, envSettings(env), p.workDir, files.ReadFile)
	if err != nil {
		server.Problems = append(server.Problems, err.Error())
	}
	server.Config = loaded.config(p.workDir, env != nil && err == nil)
	if open := p.database; open.dataDir != "" {
		server.IsLocked = true
		if !files.IsSameFile(server.Config.DataDir, open.dataDir) {
			// The arguments and variables are those of another program that contains etcd.
			server.Config, loaded = evidence.Config{DataDir: open.dataDir}, loadedSettings{}
			server.Problems = slices.Concat(p.unread, p.problems)
		}
		if open.logDir != path.Join(open.dataDir, "member/wal") {
			server.Config.WALDir = open.logDir
		}
	}
	found := detectedServer{Server: server}
	found.inspectDataDir(files, find)
	found.Config.File = s.existingPath(find, loaded.file)
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

// findEmbedded reports whether a running parent program contains etcd, and sets the
// configuration file of that etcd in p. A program whose data directory is not found is unknown.
//
// k3s removes its arguments from the process table once it has read them (pkg/cli/server,
// SetProcTitle), and with them the variables that the kernel would show. The remaining
// sources are the unit, the settings files, the path of the program, which k3s unpacks into
// its data directory (cmd/k3s/main.go, extract), and its open files.
func (s *hostScan) findEmbedded(p *etcdProcess) bool {
	e := *p.parent
	starts := []programStart{{args: p.args, env: p.env}}
	if unit := s.unitOf(*p); unit != nil {
		start, _ := e.findIn(*unit)
		starts = append(starts, start)
	} else if programDir := s.programDirOfOpenDatabase(p.pid, e); programDir != "" {
		p.setEmbedded(programDir)
		return true
	}
	var programDirs, problems []string
	for _, start := range starts {
		configured, _, err := e.programDirs(start, p.root)
		if err != nil {
			problems = append(problems, err.Error())
		}
		programDirs = append(programDirs, configured...)
	}
	// The programs of another version may be unpacked in a directory without the data of this
	// one, so the path of the program comes after all configured directories.
	programDirs = append(programDirs, nonempty(e.programDirOfUnpacked(path.Dir(path.Dir(p.exe))))...)
	programDirs = unique(append(programDirs, e.defaultDir))
	for _, programDir := range programDirs {
		if p.hasFile(path.Join(e.etcdDataDir(programDir), e.config)) {
			p.setEmbedded(programDir)
			p.problems = unique(problems)
			return true
		}
		if first, _, _ := strings.Cut(e.etcdDir, "/"); len(problems) == 0 && p.hasFile(path.Join(programDir, first)) {
			return false // the program's data directory, with another database
		}
	}
	if programDir := s.programDirOfOpenDatabase(p.pid, e); programDir != "" {
		p.setEmbedded(programDir)
		return true
	}
	reasons := append(unique(problems), fmt.Sprintf("it has no data in %s", strings.Join(programDirs, ", ")))
	s.addUnknown("process %d, %s %s, may contain etcd: %s; set data-dir in %s to its data directory",
		p.pid, e.name, e.role, strings.Join(reasons, "; "), e.settings)
	return false
}

// setEmbedded sets the configuration of the etcd in a parent program with this data directory.
func (p *etcdProcess) setEmbedded(programDir string) {
	p.configFile, p.args = path.Join(p.parent.etcdDataDir(programDir), p.parent.config), nil
}

// hasFile reports whether a file exists for the process. A file that cannot be read exists.
func (p *etcdProcess) hasFile(name string) bool {
	_, err := p.root.Stat(name)
	return !hostfs.IsAbsent(err)
}

// programDirOfOpenDatabase returns the data directory of the program whose process has etcd's
// database open, or "" if no such file is open or the kernel does not show it.
func (s *hostScan) programDirOfOpenDatabase(pid int, e parentProgram) string {
	for file := range s.openFiles(pid) {
		programDir, ok := strings.CutSuffix(file, "/"+e.etcdDir+"/member/snap/db")
		if ok && filepath.IsAbs(programDir) {
			return programDir
		}
	}
	return ""
}
