package etcddetect

import (
	"slices"
	"strings"
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
