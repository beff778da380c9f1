package etcddetect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

func TestCgroupOwner(t *testing.T) {
	const id, pod1 = hosttest.ContainerID, "/kubepods.slice/kubepods-besteffort.slice/kubepods-pod1.slice/"
	const static = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable-pod" + staticUID +
		".slice/cri-containerd-" + id + ".scope"
	const outer = "/kubepods-besteffort-pod" + hosttest.PodUID + ".slice/cri-containerd-" + id + ".scope/docker/" + id
	unit := cgroupOwner{units: []string{"etcd.service"}}
	for cgroup, want := range map[string]cgroupOwner{
		"/": {},
		"/user.slice/user-1000.slice/session-3.scope":      {},
		"/system.slice/etcd.service":                       unit,
		"/../../system.slice/etcd.service":                 unit,
		"/system.slice/docker.service":                     {},
		"/user.slice/user@1000.service":                    {},
		"/system.slice/docker-" + id + ".scope":            {container: true},
		"/docker/" + id:                                    {container: true},
		"/machine.slice/libpod-" + id + ".scope/container": {container: true},
		"/kubepods/burstable/pod1/" + id:                   {pod: true, container: true},
		pod1 + "crio-" + id + ".scope":                     {pod: true, container: true},
		"/docker/" + id + "/system.slice/etcd.service":     unit,
		"/kubepods/pod1/" + id + "/docker/" + id + "/kubelet.slice/kubelet-kubepods.slice/x.scope": {pod: true},
		"/k3s.service/kubepods/pod1/" + id: {pod: true, container: true},
		"/../.." + outer + static:          {pod: true, container: true},
		"/../.." + static:                  {pod: true, container: true, static: true},
	} {
		t.Run(cgroup, func(t *testing.T) {
			var o cgroupOwner
			o.add(cgroup, "/")
			require.Equal(t, want, o)
			o.add("/", "/")
			require.Equal(t, want, o, "another hierarchy without an owner changes nothing")
		})
	}
}

const staticUID = "0123456789abcdef0123456789abcdef"

// A cluster within a pod has static pods of its own, which are not the host's. An agent of that
// cluster is within the same pod.
func TestCgroupOwnerInPod(t *testing.T) {
	const outer = "/kubepods/pod12345678-1234-1234-1234-123456789abc/" + hosttest.ContainerID
	const inner = outer + "/docker/" + hosttest.ContainerID + "/kubelet/kubepods/burstable/pod"
	for name, c := range map[string]struct {
		own      string
		isStatic bool
	}{
		"agent of the host":               {"/kubepods/pod12345678-1234-1234-1234-123456789abd/x", false},
		"agent of the inner cluster":      {inner + "12345678-1234-1234-1234-123456789abe/x", true},
		"agent whose group is not known":  {"", true},
		"agent with its own cgroup root":  {"/", false},
		"agent in the pod of the cluster": {outer, true},
	} {
		t.Run(name, func(t *testing.T) {
			var o cgroupOwner
			o.add(inner+staticUID+"/"+hosttest.ContainerID, c.own)
			require.Equal(t, cgroupOwner{pod: true, container: true, static: c.isStatic}, o)
		})
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("/kubepods.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/cri-containerd-1.scope")
	f.Add("/system.slice/etcd-member.service/system.slice/etcd.service")
	f.Add("/podruntime/etcd")
	f.Fuzz(func(t *testing.T, cgroup string) {
		var o cgroupOwner
		o.add(cgroup, "/")
		require.False(t, o.static && !o.pod, "%+v", o)
		require.False(t, o.unit() != "" && (o.pod || o.container), "a unit excludes pods and containers: %+v", o)
		for _, unit := range o.units {
			require.Contains(t, strings.Split(cgroup, "/"), unit)
		}
		before := o
		o.add("/", "/")
		require.Equal(t, before, o)
	})
}
