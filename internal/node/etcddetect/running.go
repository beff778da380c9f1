package etcddetect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

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
	if !s.root.IsSameFile("/", p.root, "/") {
		mounts = s.root.Mounts(p.pid)
	}
	server := evidence.Server{PID: p.pid, InCluster: p.owner.pod, Problems: slices.Clone(p.unread)}
	unit := s.unitOf(p)
	flags, env, envOrigin := parseFlags(p.args), envSettings(p.env), fmt.Sprintf("the environment of process %d", p.pid)
	isComplete := p.env != nil
	if unit != nil {
		_, ofUnit, file := unit.settings()
		for name, value := range ofUnit {
			if !isComplete || strings.HasPrefix(name, ctlPrefix) { // which the server need not know
				env[name] = value
			}
		}
		envOrigin, isComplete = cmp.Or(file, envOrigin), true
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
		if !files.IsSameFile(server.Config.DataDir, files, open.dataDir) {
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

// addPod adds the server in an ordinary pod. The kernel shows the log that it has open, also if
// only the settings of the pod name it.
func (s *hostScan) addPod(p etcdProcess, dirInfo fs.FileInfo) {
	pod := detectedServer{Server: evidence.Server{PID: p.pid}, dirInfo: dirInfo}
	if open, err := s.openDatabaseOf(p.pid); err == nil && open.logDir != "" {
		pod.logInfo, _ = p.root.Stat(open.logDir)
	}
	s.pods = append(s.pods, pod)
}

// isOrdinaryPod reports whether a process is in a pod that any user of the cluster can run: a pod
// of the API server with its own data. dirInfo is that of its data directory, or nil. If such a pod
// counted, anyone who may create pods could make the node undeletable.
//
// A static pod that is not recognized by its UID has its settings and its data on the host, at the
// same paths as in the pod (kubeadm, RKE2), or its manifest mentions the directory. Mounting those
// takes the rights of the host's administrator. If the kernel shows too little of a pod, it does
// not count as ordinary.
//
// The creator of a pod controls the content of its files. So the decision depends on what the
// kernel shows, and on where the files are that a process names. Until then none of them is
// opened.
func (s *hostScan) isOrdinaryPod(p etcdProcess) (ok bool, dirInfo fs.FileInfo) {
	if !s.canBeOrdinaryPod(p) {
		return false, nil
	}
	flags, env := parseFlags(p.args), envSettings(p.env)
	if p.database.dataDir != "" {
		flags, env = etcdSettings{"data-dir": p.database.dataDir}, etcdSettings{}
	}
	if file := configFile(flags, env, p.workDir); file != "" {
		info, err := p.root.Stat(file)
		return err != nil || !s.isHostFile(p, file, info), nil
	}
	maps.Copy(env, flags)
	dir := env.config(p.workDir, true).DataDir
	dirInfo, err := p.root.Stat(dir)
	if err != nil || dir == "" {
		return true, nil
	}
	return !s.isHostDir(p, dir, dirInfo), dirInfo
}

// canBeOrdinaryPod reports whether a process is in a pod of the API server, by all that the
// kernel shows of it.
func (s *hostScan) canBeOrdinaryPod(p etcdProcess) bool {
	if !p.owner.pod || p.owner.static || len(p.unread) > 0 || s.unitOf(p) != nil || p.owner.unit != "" {
		return false
	}
	_, err := p.root.Stat("/")
	return err == nil
}

// isHostFile reports whether a path in a pod may be the same file as that path on the host.
// The creator of the pod chooses the path. So a path that the host cannot resolve, whatever its
// files are, names none of them: /dev/fd/0 is a link of the kernel, which no scan follows.
func (s *hostScan) isHostFile(p etcdProcess, name string, info fs.FileInfo) bool {
	onHost, err := s.root.Stat(name)
	if err == nil {
		return os.SameFile(onHost, info) && !s.isOwnFile(p, name)
	}
	return !hostfs.IsAbsent(err) && !errors.Is(err, syscall.ELOOP) && !errors.Is(err, syscall.ENAMETOOLONG)
}

// isHostDir reports whether a data directory in a pod may be the same as that of the host, or is
// the one of a static pod, which may have it at another path. Pods with a user namespace have
// devices of the host, such as /dev/null.
func (s *hostScan) isHostDir(p etcdProcess, name string, info fs.FileInfo) bool {
	isSame := func(dir memberDir) bool { return os.SameFile(dir.info, info) }
	isStatic := slices.ContainsFunc(s.starters, func(st *starter) bool {
		return st.kind == podStarter && slices.ContainsFunc(st.dirs, isSame)
	})
	return isStatic || info.IsDir() && s.isHostFile(p, name, info)
}

// isOwnFile reports whether a path of the host leads to a volume of the process's pod, or to the
// files of its container. A pod can make these paths with links. The kubelet and containerd name
// the directories by the UID of the pod and the ID of the container.
func (s *hostScan) isOwnFile(p etcdProcess, name string) bool {
	at, err := s.root.Resolve(name)
	return err == nil && slices.ContainsFunc(strings.Split(at, "/"), func(part string) bool {
		id := strings.ReplaceAll(part, "-", "")
		return len(id) >= 32 && strings.Trim(id, "0123456789abcdef") == "" && strings.Contains(p.cgroups, id)
	})
}

// notePods adds a note for the servers in ordinary pods.
func (s *hostScan) notePods() {
	if len(s.pods) > 0 {
		s.addNote("process %d is etcd in an ordinary pod with its own data: it is not a static pod, does not protect the "+
			"node, and is not probed (processes of this kind: %d)", s.pods[0].PID, len(s.pods))
	}
}
