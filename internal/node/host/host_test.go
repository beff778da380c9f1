package host_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const script = "#!/bin/sh\n"

func newHost(t testing.TB, root string, units ...string) *host.Host {
	t.Helper()
	h, err := host.New(host.Options{Root: root, Network: nodenet.Network{Units: units}})
	require.NoError(t, err)
	return h
}

func TestNewWithoutRoot(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/file": "x"})
	for _, name := range []string{"file", "nothing"} {
		_, err := host.New(host.Options{Root: filepath.Join(root, name)})
		require.ErrorContains(t, err, "opening the host root")
	}
}

func TestMachine(t *testing.T) {
	const instance, machineID = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11"
	root := t.TempDir()
	h := newHost(t, root)
	require.Equal(t, host.MachineIDs{}, h.MachineIDs(), "empty host")

	hosttest.Add(t, root, hosttest.Files{
		"/sys/devices/virtual/dmi/id/sys_vendor":   "OpenStack Foundation\n",
		"/sys/devices/virtual/dmi/id/product_uuid": instance + "\n",
		"/sys/class/dmi/id":                        "-> ../../devices/virtual/dmi/id",
		"/var/lib/cloud/data/instance-id":          instance + "\n",
		"/var/lib/dbus/machine-id":                 machineID + "\n",
		"/etc/machine-id":                          "\n",
		"/proc/7/comm":                             "kubelet\n",
		"/proc/7/cmdline":                          "/usr/bin/kubelet\x00--v=2\x00--provider-id\x00openstack:///0fa7\x00",
	})
	require.Equal(t, host.MachineIDs{
		OpenStack: true, ProviderID: "openstack:///0fa7", InstanceID: instance, SystemUUID: instance, MachineID: machineID,
	}, h.MachineIDs())

	hosttest.Remove(t, root, "/etc/machine-id")
	hosttest.Add(t, root, hosttest.Files{
		"/proc/7/cmdline":          "/usr/bin/kubelet\x00provider-id=x\x00--provider-id=openstack:///1\x00",
		"/etc/machine-id/anything": "",
	})
	got := h.MachineIDs()
	require.Equal(t, "openstack:///1", got.ProviderID)
	require.Equal(t, []string{"/etc/machine-id: not a regular file"}, got.Unread)
	require.Equal(t, machineID, got.MachineID)
}

// startWatch runs Watch until the test ends.
func startWatch(t *testing.T, h *host.Host, notify func(context.Context)) {
	t.Helper()
	ended := errors.New("the test has ended")
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var group errgroup.Group
	group.Go(func() error { return h.Watch(ctx, func() { notify(ctx) }) })
	t.Cleanup(func() {
		cancel(ended)
		require.ErrorIs(t, group.Wait(), ended)
	})
}

// notifications runs Watch, and returns a channel that receives a value for each
// notification.
func notifications(t *testing.T, h *host.Host) <-chan struct{} {
	t.Helper()
	notified := make(chan struct{}, 1024)
	startWatch(t, h, func(context.Context) { notified <- struct{}{} })
	return notified
}

// A hostState is what an agent reads after a notification.
type hostState struct {
	facts readiness.Facts
	etcd  int
}

// states runs Watch and reads the host after each notification, and at no other time. The
// returned function waits for a state.
func states(t *testing.T, root string) (eventually func(why string, isWanted func(hostState) bool)) {
	t.Helper()
	h := newHost(t, root)
	var last atomic.Pointer[hostState]
	startWatch(t, h, func(ctx context.Context) {
		found := h.Etcd(ctx).Found
		last.Store(&hostState{facts: h.Network(ctx), etcd: len(found)})
	})
	eventually = func(why string, isWanted func(hostState) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			s := last.Load()
			return s != nil && isWanted(*s)
		}, 20*time.Second, 2*time.Millisecond, why)
	}
	eventually("the watch begins", func(hostState) bool { return true })
	return eventually
}

// requirePrompt runs a test that notes the notifications that come later than a second after the
// change: a comparison of the directories could have found it. On a busy machine every one can be
// late, so one attempt of three without a late one is enough.
func requirePrompt(t *testing.T, test func(late *[]string)) {
	t.Helper()
	var late []string
	for range 3 {
		late = nil
		if test(&late); len(late) == 0 {
			return
		}
	}
	require.Empty(t, late)
}

// promptness runs Watch and scans the host after each notification. The returned function
// changes the host, requires a notification, and notes if it was late.
func promptness(t *testing.T, h *host.Host, late *[]string) (requireNotified func(why string, change func())) {
	t.Helper()
	// next is the number of a notification, arrived its time.
	var count, scanned, next, arrived atomic.Int64
	startWatch(t, h, func(ctx context.Context) {
		if count.Add(1) == next.Load() {
			arrived.Store(time.Now().UnixNano())
		}
		h.Etcd(ctx)
		scanned.Add(1)
	})
	waitForQuiet := func() int64 {
		last, unchanged := int64(0), 0
		require.Eventually(t, func() bool {
			if now := scanned.Load(); now != last || now != count.Load() {
				last, unchanged = now, 0
			}
			unchanged++
			return last > 0 && unchanged > 20
		}, 20*time.Second, 5*time.Millisecond)
		return last
	}
	return func(why string, change func()) {
		t.Helper()
		before := waitForQuiet()
		next.Store(before + 1)
		began := time.Now()
		change()
		require.Eventually(t, func() bool { return count.Load() > before }, 20*time.Second, 5*time.Millisecond, why)
		if took := time.Unix(0, arrived.Load()).Sub(began); took >= time.Second {
			*late = append(*late, why+" after "+took.String())
		}
	}
}

func TestWatchNetwork(t *testing.T) {
	const file = "/run/flannel/subnet.env"
	subnet := hosttest.Files{file: "FLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"}
	root := hosttest.New(t, hosttest.Files{"/run/flannel/keep": ""})
	eventually := states(t, root)
	absent := func(s hostState) bool { return s.facts.Subnet.Presence == readiness.Absent }
	present := func(s hostState) bool { return s.facts.Subnet.Presence == readiness.Present }

	hosttest.Add(t, root, hosttest.Files{"/run/flannel/.new": subnet[file]})
	hosttest.Rename(t, root, "/run/flannel/.new", file)
	eventually("a file is renamed into place, as by flannel", present)
	hosttest.Remove(t, root, "/run/flannel")
	eventually("the directory is removed", absent)
	hosttest.Add(t, root, subnet)
	eventually("the directory is created with the file", present)
	hosttest.Remove(t, root, file)
	eventually("the file is removed from the new directory", absent)

	require.NoError(t, os.Mkdir(filepath.Join(root, "run/other"), 0o755))
	// os.Rename does not replace a directory.
	require.NoError(t, syscall.Rename(filepath.Join(root, "run/other"), filepath.Join(root, "run/flannel")))
	hosttest.Add(t, root, subnet)
	eventually("a file in a directory that replaced the first", present)
	hosttest.Remove(t, root, file)
	eventually("the file is removed again", absent)

	hosttest.Add(t, root, hosttest.Files{"/etc/cni/net.d/1.conflist": `{"name":"cbr0","plugins":[{"type":"flannel"}]}`})
	eventually("a file below two new directories", func(s hostState) bool { return len(s.facts.Conflist.Plugins) == 4 })
	executables := func(n int) func(hostState) bool {
		return func(s hostState) bool {
			count := 0
			for _, p := range s.facts.Conflist.Plugins {
				if p.Executable == readiness.Present {
					count++
				}
			}
			return count == n
		}
	}
	hosttest.Add(t, root, hosttest.Files{"/opt/cni/bin/flannel": script, "/opt/cni/bin/bridge": script})
	eventually("plugins are created", executables(2))
	require.NoError(t, os.Chmod(filepath.Join(root, "opt/cni/bin/bridge"), 0o644))
	eventually("a plugin is not executable any more", executables(1))

	hosttest.Add(t, root, hosttest.Files{"/run/holdfast/network_plugin.done": hosttest.BootID})
	eventually("the marker", func(s hostState) bool { return s.facts.Marker.BootID == hosttest.BootID })
}

// TestWatchPathChanges changes the path to a directory. A watch on the directory does not
// report that.
func TestWatchPathChanges(t *testing.T) {
	conflist := func(kind string) string { return `{"name":"n","plugins":[{"type":"` + kind + `"}]}` }
	root := hosttest.New(t, hosttest.Files{
		"/opt/cni/1/bin/keep": "", "/opt/cni/2/bin/ptp": script, "/opt/cni/bin": "-> 1/bin",
		"/etc/cni/net.d/10-a.conflist": conflist("ptp"), "/etc/other/net.d/10-a.conflist": conflist("macvlan"),
	})
	eventually := states(t, root)
	plugin := func(kind string, executable readiness.Presence) func(hostState) bool {
		return func(s hostState) bool {
			p := s.facts.Conflist.Plugins
			return len(p) == 1 && p[0].Type == kind && p[0].Executable == executable
		}
	}
	eventually("the beginning", plugin("ptp", readiness.Absent))

	hosttest.Add(t, root, hosttest.Files{"/opt/cni/new": "-> 2/bin"})
	hosttest.Rename(t, root, "/opt/cni/new", "/opt/cni/bin")
	eventually("the link has another target", plugin("ptp", readiness.Present))
	hosttest.Remove(t, root, "/opt/cni/2/bin/ptp")
	eventually("a plugin is removed from the target", plugin("ptp", readiness.Absent))

	hosttest.Rename(t, root, "/etc/cni", "/etc/old")
	hosttest.Rename(t, root, "/etc/other", "/etc/cni")
	eventually("the parent directory is another", plugin("macvlan", readiness.Absent))
	hosttest.Add(t, root, hosttest.Files{"/etc/cni/net.d/09-b.conflist": conflist("tuning")})
	eventually("a configuration in the present directory", plugin("tuning", readiness.Absent))
}

func TestWatchIgnoresOtherFiles(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/etc/systemd/system/keep": "", "/run/flannel/keep": ""})
	var count atomic.Int32
	startWatch(t, newHost(t, root), func(context.Context) { count.Add(1) })
	require.Eventually(t, func() bool { return count.Load() == 1 }, 20*time.Second, time.Millisecond)
	for range 100 {
		hosttest.Add(t, root, hosttest.Files{
			"/etc/systemd/system/ssh.service": "x", "/run/flannel/other": "x", "/etc/other": "x", "/var/other": "x",
		})
		hosttest.Remove(t, root, "/etc/systemd/system/ssh.service")
	}
	// New directories may be reported, and twice if they were found before their events.
	require.LessOrEqual(t, count.Load(), int32(10))
	hosttest.Add(t, root, hosttest.Files{"/etc/systemd/system/etcd.service": "x"})
	require.Eventually(t, func() bool { return count.Load() > 1 }, 20*time.Second, time.Millisecond)
}

func TestWatchEtcd(t *testing.T) {
	root := hosttest.New(t, nil)
	eventually := states(t, root)
	hosttest.Add(t, root, hosttest.Files{"/var/lib/etcd/member/snap/db": "x"})
	eventually("a data directory", func(s hostState) bool { return s.etcd == 1 })
	hosttest.Add(t, root, hosttest.Files{"/srv/etcd/member/snap/db": "x"})
	hosttest.Add(t, root, hosttest.Files{
		"/etc/systemd/system/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/etcd\n",
	})
	eventually("a unit", func(s hostState) bool { return s.etcd == 2 })
}

func TestWatchFoundServers(t *testing.T) {
	requirePrompt(t, func(late *[]string) {
		root := hosttest.New(t, hosttest.Files{
			"/etc/systemd/system/my-etcd.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/blue\n",
			"/srv/blue/member/snap/db":            "x",
		})
		h := newHost(t, root)
		require.Len(t, h.Etcd(t.Context()).Found, 1)
		requireNotified := promptness(t, h, late)
		requireNotified("test file of etcd", func() { hosttest.Add(t, root, hosttest.Files{"/srv/blue/.touch": ""}) })
		requireNotified("removed data", func() { hosttest.Remove(t, root, "/srv/blue/member") })
	})
}

func TestWatchContainerStarts(t *testing.T) {
	starts := []struct{ why, group string }{
		{"instance of a unit", "system.slice/system-etcd.slice/etcd@a.service"},
		{"docker with systemd", "system.slice/docker-" + hosttest.ContainerID + ".scope"},
		{"podman in a new slice", "machine.slice/libpod-" + hosttest.ContainerID + ".scope"},
		{"docker without systemd", "docker/" + hosttest.ContainerID},
		{"Talos", "podruntime/etcd"},
		{"docker with control groups of version 1", "systemd/docker/" + hosttest.ContainerID},
		{"unit", "system.slice/my-etcd.service"},
	}
	requirePrompt(t, func(late *[]string) {
		root := hosttest.New(t, hosttest.Files{"/sys/fs/cgroup/system.slice/keep": "", "/sys/fs/cgroup/systemd/keep": ""})
		requireNotified := promptness(t, newHost(t, root), late)
		for _, start := range starts {
			requireNotified(start.why, func() {
				require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", start.group), 0o755))
			})
		}
	})
}

// The control group of a container exists before its program runs. A scan at that moment
// finds no server.
func TestWatchRescansAfterStart(t *testing.T) {
	for name, group := range map[string]string{
		"another container": "system.slice/docker-" + hosttest.ContainerID + ".scope",
		"first container":   "docker/" + hosttest.ContainerID,
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{"/sys/fs/cgroup/system.slice/keep": "", "/data/member/snap/db": "x"})
			eventually := states(t, root)
			require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", group), 0o755))
			<-time.NewTimer(100 * time.Millisecond).C
			hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd", "--data-dir=/data"}, Cgroup: "/" + group})
			eventually("the server after its group", func(s hostState) bool { return s.etcd == 1 })
		})
	}
}

// TestWatchRealStart starts etcd on existing data, on a host without a bus or control groups.
// Like a container without a unit, only the actions of etcd itself show the start.
func TestWatchRealStart(t *testing.T) {
	etcd := etcd.New(t, etcd.Options{HostRoot: func(int) string { return t.TempDir() }})
	member := etcd.Member(1)
	requirePrompt(t, func(late *[]string) {
		require.NoError(t, member.Stop(t.Context()))
		requireNotified := promptness(t, newHost(t, member.Root), late)
		requireNotified("start", func() { require.NoError(t, member.Start(t.Context())) })
		require.NoError(t, member.Kill())
		requireNotified("start after a kill", func() { require.NoError(t, member.Start(t.Context())) })
	})
}

func TestWatchUnits(t *testing.T) {
	root := hosttest.New(t, nil)
	units := map[string]map[string]any{"mine.service": {"LoadState": "loaded"}}
	s := hosttest.StartSystemd(t, root, units)
	var count atomic.Int32
	startWatch(t, newHost(t, root, "mine.service"), func(context.Context) { count.Add(1) })
	requireNotified := func(why string) {
		t.Helper()
		before := count.Load()
		require.Eventually(t, func() bool {
			s.EmitChange("mine.service")   // repeatedly, because the test cannot see when the watch begins
			return count.Load() > before+5 // more than the watches cause when they begin
		}, 20*time.Second, 10*time.Millisecond, why)
	}
	requireNotified("awaited unit")
	require.True(t, s.HasSubscription("mine.service"))
	s.Stop()
	s = hosttest.StartSystemd(t, root, nil)
	requireNotified("unit after the bus returned")
}
