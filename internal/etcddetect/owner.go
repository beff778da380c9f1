package etcddetect

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
)

// A cgroupOwner describes what runs a process, by its cgroups.
type cgroupOwner struct {
	// units are the units of the process, the host's own first. A machine of rkt or
	// systemd-nspawn has units of its own below.
	units     []string
	container bool
	pod       bool
	// static is set if the pod is from a file or URL of the kubelet and not from the API
	// server.
	static bool
}

// talosGroup is the group in which Talos runs etcd and the kubelet (pkg/machinery/constants,
// CgroupPodRuntimeRoot).
const talosGroup = "podruntime"

// add reads the path of one cgroup. The innermost name decides: a node of a test cluster is
// itself a container, or a pod, with units and pods of its own inside. A static pod within a pod is
// not the host's, unless the agent is within that pod too.
//
// own is the agent's own cgroup in the same hierarchy, or "" if it is not known. If the agent has a
// cgroup namespace of its own, own is "/", and no path names the pods around the agent.
func (o *cgroupOwner) add(cgroup, own string) {
	var owner cgroupOwner
	names := strings.Split(cgroup, "/")
	outside, inPod := sharedNames(names, own), false
	for i, name := range names {
		switch {
		case strings.Contains(name, "kubepods"), podUID(name) != "":
			uid := podUID(name)
			owner = cgroupOwner{pod: true, static: !inPod && isStaticUID(uid)}
			inPod = inPod || (uid != "" && i >= outside)
		case isContainerGroup(name), name == "etcd" && i > 0 && names[i-1] == talosGroup:
			owner = cgroupOwner{container: true, pod: owner.pod, static: owner.static}
		case strings.HasSuffix(name, ".service") && !isRuntimeUnit(name):
			owner = cgroupOwner{units: append(owner.units, name)}
		}
	}
	if owner.units != nil || owner.container || owner.pod {
		*o = owner
	}
}

// sharedNames returns how many names at the beginning of a cgroup's path are also those of the
// agent's own cgroup: all of them if that is not known.
func sharedNames(names []string, own string) int {
	if own == "" {
		return len(names)
	}
	shared := 0
	for _, name := range strings.Split(own, "/") {
		if shared == len(names) || names[shared] != name {
			break
		}
		shared++
	}
	return shared
}

// unit returns the innermost unit, or "" if the process is in none.
func (o *cgroupOwner) unit() string {
	if len(o.units) == 0 {
		return ""
	}
	return o.units[len(o.units)-1]
}

// podUID returns the pod's UID from the name of its group: pod<uid>, or
// kubepods-burstable-pod<uid>.slice with underscores.
func podUID(name string) string {
	at := strings.LastIndex(name, "pod")
	if at < 0 {
		return ""
	}
	uid := strings.TrimSuffix(name[at+len("pod"):], ".slice")
	hex := strings.NewReplacer("-", "", "_", "").Replace(uid)
	if len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return ""
	}
	return uid
}

// isStaticUID reports whether the kubelet made the UID, as the digest of a static pod
// (pkg/kubelet/config/common.go, applyDefaults). UIDs of the API server have separators, and
// users cannot choose them.
func isStaticUID(uid string) bool { return len(uid) == 32 }

func isRuntimeUnit(name string) bool {
	runtimes := []string{"docker.service", "containerd.service", "crio.service", "podman.service", "kubelet.service"}
	return strings.HasPrefix(name, "user@") || slices.Contains(runtimes, name)
}

// isContainerGroup reports whether a container engine made the group: docker-<id>.scope,
// libpod-<id>.scope, cri-containerd-<id>.scope, crio-<id>.scope, or an ID alone below the
// engine's directory.
func isContainerGroup(name string) bool {
	for _, engine := range []string{"docker-", "libpod-", "cri-containerd-", "crio-", "nerdctl-"} {
		if strings.HasPrefix(name, engine) {
			return true
		}
	}
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

const (
	// maxKeptBytes is how much of an ordinary pod's arguments and variables is kept until the
	// static pods have been read. Those of a static pod have a kibibyte or two.
	maxKeptBytes = 8 << 10
	// maxPodNotes is the most ordinary pods that have a note each.
	maxPodNotes = 8
)

// A podServer is an etcd server in an ordinary pod.
type podServer struct {
	pid int
	// dir is its data directory, or nil if there is none or it cannot be read.
	dir fs.FileInfo
	// process is the process with its settings, or nil if they are too large to be kept.
	process  *etcdProcess
	settings etcdSettings
}

// ordinaryPod reports whether a process is in a pod that any user of the cluster can run: a
// pod of the API server with its own data. If such a pod counted, anyone who may create pods
// could make the node undeletable.
//
// A static pod that is not recognized by its UID has its settings and its data on the host,
// at the same paths as in the pod (kubeadm, RKE2). Mounting those takes the rights of the
// host's administrator. If the kernel shows too little of a pod, it does not count as
// ordinary.
//
// The creator of a pod controls the content of its files. So the decision depends on what the
// kernel shows, and on where the files are that a process names. Until then none of them is
// opened.
func (s *hostScan) ordinaryPod(p etcdProcess) (w podServer, ok bool) {
	if !s.canBeOrdinaryPod(p) {
		return w, false
	}
	w.pid = p.pid
	if p.parent != nil { // a cluster within the cluster
		// An unreadable directory is not the host's.
		w.dir, _ = p.root.Stat(p.parent.etcdDataDir(p.parent.dataDir))
		return w, true
	}
	flags, env := parseFlags(p.args), envSettings(p.env)
	if file := configFile(flags, env); file != "" {
		info, err := p.root.Stat(file)
		return w, err != nil || !s.isHostFile(p, file, info)
	}
	maps.Copy(env, flags)
	dir := env.config(p.workDir, true).DataDir
	info, err := p.root.Stat(dir)
	if err != nil || dir == "" {
		return w, true
	}
	w.dir = info
	if p.size() <= maxKeptBytes {
		w.process, w.settings = &p, env
	}
	return w, !s.isHostDir(p, dir, info)
}

// size returns the number of bytes in the arguments and variables.
func (p etcdProcess) size() (bytes int) {
	for _, arg := range p.args {
		bytes += len(arg)
	}
	for name, value := range p.env {
		bytes += len(name) + len(value)
	}
	return bytes
}

// canBeOrdinaryPod reports whether a process is in a pod of the API server, by all that the
// kernel shows of it.
func (s *hostScan) canBeOrdinaryPod(p etcdProcess) bool {
	if !p.owner.pod || p.owner.static || len(p.unread) > 0 || s.unitOf(p) != nil || p.owner.unit() != "" {
		return false
	}
	_, err := p.root.Stat("/")
	return err == nil
}

// isHostFile reports whether a path in a pod may be the same file as that path on the host.
// The creator of the pod chooses the path. So a path that the host cannot resolve, whatever its
// files are, names none of them: /dev/fd/0 is a link of the kernel, which no scan follows.
func (s *hostScan) isHostFile(p etcdProcess, named string, info fs.FileInfo) bool {
	onHost, err := s.root.Stat(named)
	if err == nil {
		return os.SameFile(onHost, info) && !s.isOwnFile(p, named)
	}
	return !hostfs.IsAbsent(err) && !errors.Is(err, syscall.ELOOP) && !errors.Is(err, syscall.ENAMETOOLONG)
}

// isHostDir reports whether a data directory in a pod may be the same as that of the host. Pods
// with a user namespace have devices of the host, such as /dev/null.
func (s *hostScan) isHostDir(p etcdProcess, named string, info fs.FileInfo) bool {
	return info.IsDir() && s.isHostFile(p, named, info)
}

// isOwnFile reports whether a path of the host leads to a volume of the process's pod, or to the
// files of its container. A pod can make these paths with links. The kubelet and containerd name
// the directories by the UID of the pod and the ID of the container.
func (s *hostScan) isOwnFile(p etcdProcess, named string) bool {
	at, err := s.root.Resolve(named)
	return err == nil && slices.ContainsFunc(strings.Split(at, "/"), func(name string) bool {
		id := strings.ReplaceAll(name, "-", "")
		return len(id) >= 32 && strings.Trim(id, "0123456789abcdef") == "" && strings.Contains(p.cgroups, id)
	})
}

// isServerOf reports whether this is the server of a static pod whose data directory has
// another path in the pod, by its data or by its name and peers.
func (w podServer) isServerOf(pod foundServer) bool {
	if w.process == nil {
		return false
	}
	server := foundServer{dir: w.dir}
	server.Config = w.settings.config(w.process.workDir, true)
	return server.isSame(pod)
}

// notePods adds notes for the servers in ordinary pods.
func (s *hostScan) notePods() {
	for i, w := range s.pods {
		if rest := len(s.pods) - i; i == maxPodNotes && rest > 1 {
			s.addNote("%d more processes are etcd in ordinary pods", rest)
			return
		}
		s.addNote("process %d is etcd in an ordinary pod with its own data: "+
			"it is not a static pod, does not protect the node, and is not probed", w.pid)
	}
}
