package etcddetect

import (
	"fmt"
	"path"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A pathFinder returns the agent's path for a path of a server.
type pathFinder = func(serverPath string) (agentPath string, err error)

// addProcess adds the server that a process runs, or the pod if it is an ordinary one.
func (s *hostScan) addProcess(p etcdProcess) {
	if p.databaseErr != nil {
		if !s.canBeOrdinaryPod(p) {
			s.addUnknown("process %d, %s, may contain etcd: its open files: %v",
				p.pid, p.program, hostfs.Reason(p.databaseErr))
		}
		return
	}
	if ok, dirInfo := s.isOrdinaryPod(p); ok {
		s.addPod(p, dirInfo)
		return
	}
	found := s.describeProcess(p)
	if found.isProxy {
		s.addNote("%s is a v2 proxy and no member: its data directory %s has proxy/ and no member/",
			found.Where, found.serverDataDir)
		if unit := s.unitOf(p); unit != nil {
			unit.isKnown = true
		}
		return
	}
	// A pod with a host's configuration file can still have its own data; only now is the data
	// directory known.
	if s.canBeOrdinaryPod(p) && (found.dirInfo == nil || !s.isHostDir(p, found.serverDataDir, found.dirInfo)) {
		s.addPod(p, found.dirInfo)
		return
	}
	s.found = append(s.found, found)
}

// describeProcess describes a running server. Its own arguments and environment count. The
// files of its unit may have changed since it started and only replace what could not be
// read.
func (s *hostScan) describeProcess(p etcdProcess) detectedServer {
	var mounts hostfs.Mounts
	if !s.root.IsSameDir(p.root) {
		mounts = s.root.Mounts(p.pid)
	}
	server := evidence.Server{PID: p.pid, InCluster: p.owner.pod, Problems: slices.Clone(p.unread)}
	unit := s.unitOf(p)
	flags, env, envOrigin := parseFlags(p.args), envSettings(p.env), fmt.Sprintf("the environment of process %d", p.pid)
	isComplete := p.env != nil
	if !isComplete && unit != nil {
		_, env, envOrigin = unit.settings(unit.files)
		isComplete = true
	}
	if file := p.embeddedConfig(); file != "" {
		flags = etcdSettings{"config-file": file}
	}
	find := func(serverPath string) (string, error) { return s.root.Find(p.root, mounts, serverPath) }
	files := p.root
	if _, err := files.Stat("/"); err != nil {
		problem := fmt.Sprintf("the files of process %d: %v", p.pid, hostfs.Reason(err))
		server.Problems = append(server.Problems, problem)
		find, files = s.root.Resolve, s.root
	}
	loaded, err := loadSettings(flags, env, p.workDir, files.ReadFile)
	if err != nil {
		server.Problems = append(server.Problems, err.Error())
	}
	server.Config = loaded.config(p.workDir, isComplete && err == nil)
	if open := p.database; open.dataDir != "" {
		server.IsLocked = true
		if !files.IsSameFile(server.Config.DataDir, open.dataDir) {
			// The arguments and variables are those of another program that contains etcd.
			server.Config, loaded = evidence.Config{DataDir: open.dataDir}, nil
			server.Problems = p.unread
		}
		if open.logDir != path.Join(open.dataDir, "member/wal") {
			server.Config.WALDir = open.logDir
		}
	}
	found := detectedServer{Server: server, cgroups: p.cgroups}
	found.addDataDir(files, find)
	found.Config.File = s.existingPath(find, loaded["config-file"])
	found.Credentials = s.credentials(loaded, envOrigin, find)
	found.Source, found.Where = evidence.Process, fmt.Sprintf("%s process %d", p.program, p.pid)
	switch {
	case unit != nil:
		found.setUnit(unit.name)
	case p.owner.unit != "":
		found.setUnit(p.owner.unit)
		found.Unit = p.owner.hostUnit
	case p.owner.static:
		found.Source, found.Where = evidence.StaticPod, fmt.Sprintf("static pod, process %d", p.pid)
	case p.owner.container || p.owner.pod:
		found.Source, found.Where = evidence.Container, fmt.Sprintf("container, process %d", p.pid)
	}
	return found
}

// embeddedConfig returns the configuration file of the etcd in another program, or "". k3s hides
// its arguments.
func (p *etcdProcess) embeddedConfig() string {
	if p.database == (openDatabase{}) {
		return ""
	}
	for _, l := range distroLayouts() {
		if l.program.settings == "" {
			continue
		}
		for _, file := range l.configFiles(p.database.dataDir) {
			if _, err := p.root.Stat(file); err == nil {
				return file
			}
		}
	}
	return ""
}
