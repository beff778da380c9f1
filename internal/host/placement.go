package host

import (
	"slices"
	"strings"
)

// placement is what a process's cgroup says of who runs it.
type placement struct {
	// units are those that the process is in, the host's own first: a machine of rkt's or of systemd-nspawn's has units of
	// its own below it.
	units     []string
	container bool
	pod       bool
	// static says that the pod came from a file or a URL of the kubelet's and not from the API server.
	static bool
}

// add reads one cgroup path. The innermost name decides: a node of a test cluster is itself a container, or even a pod,
// with units and pods of its own inside.
func (p *placement) add(cgroup string) {
	var here placement
	names := strings.Split(cgroup, "/")
	for i, name := range names {
		switch {
		case strings.Contains(name, "kubepods"), podUID(name) != "":
			here = placement{pod: true, static: isStaticUID(podUID(name))}
		case isContainerGroup(name), name == "etcd" && i > 0 && names[i-1] == talosGroup:
			here = placement{container: true, pod: here.pod, static: here.static}
		case strings.HasSuffix(name, ".service") && !isRuntimeUnit(name):
			here = placement{units: append(here.units, name)}
		}
	}
	if here.units != nil || here.container || here.pod {
		*p = here
	}
}

// talosGroup is the group below which Talos runs etcd and the kubelet (pkg/machinery/constants, CgroupPodRuntimeRoot).
const talosGroup = "podruntime"

// unit is the innermost unit, empty if the process is in none.
func (p *placement) unit() string {
	if len(p.units) == 0 {
		return ""
	}
	return p.units[len(p.units)-1]
}

// podUID is the pod's UID in the name of its group: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with underscores.
func podUID(name string) string {
	at := strings.LastIndex(name, "pod")
	if at < 0 {
		return ""
	}
	uid := strings.TrimSuffix(name[at+len("pod"):], ".slice")
	if hex := strings.NewReplacer("-", "", "_", "").Replace(uid); len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return ""
	}
	return uid
}

// isStaticUID says that the kubelet made the UID, as the digest of a static pod (pkg/kubelet/config/common.go,
// applyDefaults): the API server's have separators, and nobody else can choose one.
func isStaticUID(uid string) bool { return len(uid) == 32 }

func isRuntimeUnit(name string) bool {
	return strings.HasPrefix(name, "user@") ||
		slices.Contains([]string{"docker.service", "containerd.service", "crio.service", "podman.service", "kubelet.service"}, name)
}

// isContainerGroup knows the names that engines give: `docker-<id>.scope`, `libpod-<id>.scope`, `cri-containerd-<id>.scope`,
// `crio-<id>.scope`, and a bare ID below a directory of the engine.
func isContainerGroup(name string) bool {
	for _, engine := range []string{"docker-", "libpod-", "cri-containerd-", "crio-", "nerdctl-"} {
		if strings.HasPrefix(name, engine) {
			return true
		}
	}
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
