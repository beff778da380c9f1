package etcddetect

import (
	"slices"
	"strings"
)

// A cgroupOwner describes what runs a process, by its cgroups.
type cgroupOwner struct {
	// unit is the innermost unit of the process, and hostUnit that of the host's own systemd: only
	// slices are above it. Users, and machines of LXC, rkt or systemd-nspawn, have units of their own,
	// with any names.
	unit, hostUnit string
	container      bool
	pod            bool
	// static is set if the pod is from a file or URL of the kubelet and not from the API server. The
	// kubelet makes the UID of such a pod as a digest (pkg/kubelet/config/common.go, applyDefaults).
	// UIDs of the API server have separators, and users cannot choose them.
	static bool
}

// talosGroup is the group in which Talos runs etcd and the kubelet (pkg/machinery/constants,
// CgroupPodRuntimeRoot).
const talosGroup = "podruntime"

// add reads the path of one cgroup. Everything below a pod stays the pod's, whatever its name: a
// pod may be able to create cgroups, with any names. So the outermost pod decides, and a pod in
// one hierarchy decides for all.
//
// Otherwise the innermost name decides. A node of a test cluster is itself a container, or a pod,
// with units and pods of its own inside. The environment of the agent itself does not count.
//
// own is the agent's own cgroup in the same hierarchy, or "" if it is not known. If the agent
// has a cgroup namespace of its own, own is "/", and no path names what is around the agent. If
// own is not known, any of the pods may be around the agent, and the innermost name decides.
func (o *cgroupOwner) add(cgroup, own string) {
	var owner cgroupOwner
	names := namesInside(strings.Split(cgroup, "/"), strings.Split(own, "/"))
	inPod, isOfHost := false, true
	for i, name := range names {
		switch {
		case strings.Contains(name, "kubepods"), podUID(name) != "":
			uid := podUID(name)
			owner = cgroupOwner{pod: true, static: owner.static || !inPod && len(uid) == 32}
			inPod = inPod || (uid != "" && own != "")
		case isContainerGroup(name), name == "etcd" && i > 0 && names[i-1] == talosGroup:
			owner = cgroupOwner{container: true, pod: owner.pod, static: owner.static}
		case strings.HasSuffix(name, ".service") && !isRuntimeUnit(name) && (!owner.pod || own == ""):
			owner = cgroupOwner{unit: name, hostUnit: owner.hostUnit}
			if isOfHost {
				owner.hostUnit = name
			}
		}
		isOfHost = isOfHost && (name == "" || name == ".." || strings.HasSuffix(name, ".slice"))
	}
	if owner.pod || !o.pod && (owner.unit != "" || owner.container) {
		*o = owner
	}
}

// namesInside returns the names of a cgroup's path below the innermost container or pod that is
// around the agent too.
func namesInside(names, own []string) []string {
	inside := 0
	for i := range min(len(names), len(own)) {
		if names[i] != own[i] {
			break
		}
		if podUID(names[i]) != "" || isContainerGroup(names[i]) {
			inside = i + 1
		}
	}
	return names[inside:]
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

func isRuntimeUnit(name string) bool {
	runtimes := []string{"docker.service", "containerd.service", "crio.service", "podman.service", "kubelet.service"}
	return strings.HasPrefix(name, "user@") || slices.Contains(runtimes, name)
}

// isContainerGroup reports whether a container engine made the group, whose name ends in the ID of
// the container: docker-<id>.scope, crio-<id>.scope, or the ID alone below the engine's directory.
func isContainerGroup(name string) bool {
	id := strings.TrimSuffix(name[strings.LastIndex(name, "-")+1:], ".scope")
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}
