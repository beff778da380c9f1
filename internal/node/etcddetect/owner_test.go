package etcddetect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

const staticUID = "0123456789abcdef0123456789abcdef"

// TestCgroupOwner has the paths that container engines, kubelets and systemd make. In each,
// UID stands for the UID of a pod of the API server, STATIC for that of a static pod, AGENT for
// that of the agent's pod, and ID and OTHER for containers.
func TestCgroupOwner(t *testing.T) {
	unit, inner := cgroupOwner{unit: "etcd.service", hostUnit: "etcd.service"}, cgroupOwner{unit: "etcd.service"}
	container, pod := cgroupOwner{container: true}, cgroupOwner{pod: true, container: true}
	static, onlyPod := cgroupOwner{pod: true, container: true, static: true}, cgroupOwner{pod: true}
	const (
		systemdAgent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podAGENT.slice/cri-containerd-OTHER.scope"
		groupAgent   = "/kubepods/burstable/podAGENT/OTHER"
		namespace    = "/" // the agent has a cgroup namespace of its own
		guaranteed   = "/kubepods.slice/kubepods-podUID.slice/"
		besteffort   = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/"
		burstable    = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/"
		kind         = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podSTATIC.slice/cri-containerd-ID.scope"
		kindAgent    = "/docker/ID/kubelet/kubepods/podAGENT/OTHER"
		inPod        = "/kubepods/besteffort/podUID/ID/docker/ID"
		innerAgent   = inPod + "/kubelet/kubepods/podAGENT/OTHER"
	)
	for name, c := range map[string]struct {
		own, cgroup string
		want        cgroupOwner
	}{
		// On the host.
		"unit":            {systemdAgent, "/system.slice/etcd.service", unit},
		"unit, namespace": {namespace, "/../../../../system.slice/etcd.service", unit},
		"unit in a slice": {systemdAgent, "/system.slice/system-etcd.slice/etcd.service", unit},
		"unit with an engine's name": {
			systemdAgent, "/system.slice/docker-etcd.service",
			cgroupOwner{unit: "docker-etcd.service", hostUnit: "docker-etcd.service"},
		},
		"docker-compose, systemd":   {systemdAgent, "/system.slice/docker-ID.scope", container},
		"docker-compose, cgroupfs":  {groupAgent, "/docker/ID", container},
		"docker in a user's parent": {groupAgent, "/etcd.slice/docker-ID.scope", container},
		"podman":                    {systemdAgent, "/machine.slice/libpod-ID.scope/container", container},
		"podman quadlet":            {systemdAgent, "/system.slice/etcd.service/libpod-payload-ID", container},
		"podman pod":                {systemdAgent, "/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope", container},
		"podman, rootless": {
			systemdAgent,
			"/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_ID.slice/libpod-ID.scope/container",
			container,
		},
		"lxc":             {systemdAgent, "/lxc.payload.etcd1/system.slice/etcd.service", inner},
		"lxc, cgroupfs":   {groupAgent, "/lxc/etcd1/system.slice/etcd.service", inner},
		"lxc, no systemd": {groupAgent, "/lxc.payload.etcd1", cgroupOwner{}},
		"unit of a user": {
			systemdAgent, "/user.slice/user-1000.slice/user@1000.service/app.slice/etcd.service", inner,
		},
		"nspawn": {
			systemdAgent, "/machine.slice/systemd-nspawn@e.service/payload/system.slice/etcd.service",
			cgroupOwner{unit: "etcd.service", hostUnit: "systemd-nspawn@e.service"},
		},
		"kind in docker, unit":       {groupAgent, "/docker/ID/system.slice/etcd.service", inner},
		"kind in docker, static pod": {groupAgent, "/docker/ID" + kind, static},
		"sysbox in docker":           {groupAgent, "/docker/ID/syscont-cgroup-root/system.slice/etcd.service", inner},
		"k3s server": {
			groupAgent, "/system.slice/k3s.service", cgroupOwner{unit: "k3s.service", hostUnit: "k3s.service"},
		},
		"talos": {groupAgent, "/podruntime/etcd", container},

		"session":           {namespace, "/user.slice/user-1000.slice/session-3.scope", cgroupOwner{}},
		"docker's own":      {groupAgent, "/system.slice/docker.service", cgroupOwner{}},
		"manager of a user": {groupAgent, "/user.slice/user@1000.service", cgroupOwner{}},

		// Pods of the host.
		"containerd, systemd":    {systemdAgent, besteffort + "cri-containerd-ID.scope", pod},
		"containerd, guaranteed": {systemdAgent, guaranteed + "cri-containerd-ID.scope", pod},
		"containerd, same QoS":   {namespace, "/../../kubepods-burstable-podUID.slice/cri-containerd-ID.scope", pod},
		"containerd, cgroupfs":   {groupAgent, "/kubepods/besteffort/podUID/ID", pod},
		"containerd, namespace":  {namespace, "/../../podUID/ID", pod},
		"mixed drivers": {
			groupAgent, "/system.slice/containerd.service/kubepods-podUID.slice:cri-containerd:ID",
			onlyPod,
		},
		"CRI-O":                  {systemdAgent, besteffort + "crio-ID.scope", pod},
		"CRI-O with crun":        {systemdAgent, besteffort + "crio-ID.scope/container", pod},
		"CRI-O, cgroupfs":        {groupAgent, "/kubepods/besteffort/podUID/crio-ID", pod},
		"cri-dockerd":            {systemdAgent, besteffort + "docker-ID.scope", pod},
		"k3s":                    {groupAgent, "/k3s.service/kubepods/burstable/podUID/ID", pod},
		"kubelet's cgroup root":  {groupAgent, "/runtime/kubepods/burstable/podUID/ID", pod},
		"RKE2 static pod":        {systemdAgent, burstable + "cri-containerd-ID.scope", static},
		"kubeadm, CRI-O":         {systemdAgent, burstable + "crio-ID.scope/container", static},
		"kubeadm, cgroupfs":      {groupAgent, "/kubepods/burstable/podSTATIC/ID", static},
		"static pod, namespace":  {namespace, "/../../podSTATIC/ID", static},
		"static pod with a unit": {systemdAgent, burstable + "cri-containerd-ID.scope/system.slice/etcd.service", static},

		// Below a pod of the host.
		"cgroup_writable": {systemdAgent, besteffort + "cri-containerd-ID.scope/system.slice/etcd.service", pod},
		"writable, namespace": {
			namespace,
			"/../../kubepods-burstable-podUID.slice/cri-containerd-ID.scope/x.service", pod,
		},
		"writable, cgroupfs":        {groupAgent, "/kubepods/besteffort/podUID/ID/system.slice/etcd.service", pod},
		"CRI-O, hierarchy-rw":       {systemdAgent, besteffort + "crio-ID.scope/system.slice/etcd.service", pod},
		"sysbox":                    {systemdAgent, besteffort + "crio-ID.scope/syscont-cgroup-root/x.service", pod},
		"unit beside the container": {systemdAgent, besteffort + "etcd.service", onlyPod},
		"docker in the pod":         {groupAgent, inPod, pod},
		"containerd in the pod":     {groupAgent, "/kubepods/besteffort/podUID/ID/k8s.io/OTHER", pod},
		"talos in the pod":          {groupAgent, "/kubepods/besteffort/podUID/ID/podruntime/etcd", pod},
		"kind in the pod, unit":     {groupAgent, inPod + "/system.slice/etcd.service", pod},
		"kind in the pod, static":   {groupAgent, inPod + kind, pod},
		"name of a static pod":      {groupAgent, "/kubepods/besteffort/podUID/ID/podSTATIC/ID", pod},
		"name of the agent's pod":   {groupAgent, "/kubepods/besteffort/podUID/ID/podAGENT/x.service", onlyPod},

		// The agent's node is a container or a pod itself.
		"in kind, unit":         {kindAgent, "/docker/ID/system.slice/etcd.service", unit},
		"in kind, static pod":   {kindAgent, "/docker/ID/kubelet/kubepods/podSTATIC/ID", static},
		"in kind, pod":          {kindAgent, "/docker/ID/kubelet/kubepods/podUID/ID", pod},
		"in kind, pod's unit":   {kindAgent, "/docker/ID/kubelet/kubepods/podUID/ID/x.service", pod},
		"in kind, container":    {kindAgent, "/docker/ID/docker/OTHER", container},
		"in kind, namespace":    {namespace, "/../../kubelet-kubepods-podSTATIC.slice/cri-containerd-ID.scope", static},
		"in a pod, unit":        {innerAgent, inPod + "/system.slice/etcd.service", unit},
		"in a pod, static pod":  {innerAgent, inPod + "/kubelet/kubepods/podSTATIC/ID", static},
		"in a pod, container":   {innerAgent, inPod + "/docker/OTHER", container},
		"in a pod, pod":         {innerAgent, inPod + "/kubelet/kubepods/podOTHERUID/ID/x.service", pod},
		"in a pod, other pod":   {innerAgent, "/kubepods/besteffort/podOTHERUID/ID/x.service", pod},
		"in a pod, no engine":   {"/kubepods/podUID/ID/kubepods/podAGENT/OTHER", "/kubepods/podUID/ID/etcd.service", unit},
		"in a pod, as a unit":   {inPod + "/system.slice/holdfast.service", inPod + "/system.slice/etcd.service", unit},
		"own group not known":   {"", inPod + "/system.slice/etcd.service", inner},
		"own group not known 2": {"", inPod + "/kubepods/podSTATIC/ID", static},
	} {
		t.Run(name, func(t *testing.T) {
			replace := strings.NewReplacer(
				"OTHERUID", "aaaaaaaa-1234-1234-1234-123456789abc", "OTHER", strings.Repeat("0a", 32),
				"UID", hosttest.PodUID, "STATIC", staticUID, "AGENT", "12345678-9abc-1234-1234-123456789abc",
				"ID", hosttest.ContainerID)
			own, cgroup := replace.Replace(c.own), replace.Replace(c.cgroup)
			var o cgroupOwner
			o.add(cgroup, own)
			require.Equal(t, c.want, o, "%s in %s", cgroup, own)
		})
	}
}

// TestCgroupOwnerHierarchies: with cgroup v1, each hierarchy has a path of its own. Engines leave a
// container's process in their own unit in some of them.
func TestCgroupOwnerHierarchies(t *testing.T) {
	const pod, unit = "/kubepods/pod" + hosttest.PodUID + "/" + hosttest.ContainerID, "/system.slice/k3s.service"
	const agent = "/kubepods/burstable/pod12345678-9abc-1234-1234-123456789abc/x"
	want := cgroupOwner{pod: true, container: true}
	for name, paths := range map[string][]string{
		"the unit last":        {pod, pod, unit},
		"the unit first":       {unit, pod},
		"a unit in the pod":    {pod, pod + "/system.slice/etcd.service", pod},
		"nothing last":         {pod, "/"},
		"a container's engine": {pod, "/docker/" + hosttest.ContainerID},
	} {
		t.Run(name, func(t *testing.T) {
			var o cgroupOwner
			for _, path := range paths {
				o.add(path, agent)
			}
			require.Equal(t, want, o)
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
		require.False(t, o.unit != "" && (o.pod || o.container), "a unit excludes pods and containers: %+v", o)
		for _, unit := range nonempty(o.unit, o.hostUnit) {
			require.Contains(t, strings.Split(cgroup, "/"), unit)
		}
		before := o
		o.add("/", "/")
		require.Equal(t, before, o)
	})
}

// TestUnitOfAnotherSystemd: a user, a machine or a container of the host can have a unit with the
// name of the host's. Its server does not hide the stopped member of the host's unit.
func TestUnitOfAnotherSystemd(t *testing.T) {
	const segment = "/member/wal/0000000000000000-0000000000000000.wal"
	for name, group := range map[string]string{
		"lxc":    "/lxc.payload.c1/system.slice/etcd.service",
		"user":   "/user.slice/user-1000.slice/user@1000.service/app.slice/etcd.service",
		"nspawn": "/machine.slice/systemd-nspawn@c1.service/payload/system.slice/etcd.service",
		"docker": "/system.slice/docker-" + hosttest.ContainerID + ".scope/system.slice/etcd.service",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/data/etcd" + segment:                       string(walHead(t)),
				"/containers/c1/var/lib/etcd/member/snap/db": "x",
				etcdUnit: serviceOf("ExecStart=/usr/bin/etcd --data-dir=/data/etcd"),
			})
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: []string{"etcd", "--data-dir=/var/lib/etcd"}, Root: "/containers/c1", Cgroup: group,
			})
			findings := New(hostfs.Root(root), nil).Detect()
			require.Empty(t, findings.Unknown)
			require.Len(t, findings.Found, 2)
			require.Equal(t, "systemd unit etcd.service", findings.Found[0].Where)
			require.NotEqual(t, "etcd.service", findings.Found[0].Unit)
			require.Equal(t, "data directory /data/etcd of systemd unit etcd.service, with no server running on it",
				findings.Found[1].Where)

			hosttest.Add(t, root, hosttest.Files{etcdUnit: serviceOf("ExecStart=/usr/bin/docker start etcd")})
			findings = New(hostfs.Root(root), nil).Detect()
			require.Len(t, findings.Found, 1)
			require.Len(t, findings.Unknown, 1, "the server is not that of the host's unit")
		})
	}
}
