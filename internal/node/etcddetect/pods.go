package etcddetect

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// maxPodNotes is the most ordinary pods that have a note each.
const maxPodNotes = 8

// addPod adds the server in an ordinary pod. The kernel shows the log that it has open, also if only
// the settings of the pod name it.
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

// notePods adds notes for the servers in ordinary pods.
func (s *hostScan) notePods() {
	for i, pod := range s.pods {
		if rest := len(s.pods) - i; i == maxPodNotes && rest > 1 {
			s.addNote("%d more processes are etcd in ordinary pods", rest)
			return
		}
		s.addNote("process %d is etcd in an ordinary pod with its own data: "+
			"it is not a static pod, does not protect the node, and is not probed", pod.PID)
	}
}
