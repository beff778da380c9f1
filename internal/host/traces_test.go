package host_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// counting watches a host until the test ends and looks at it whenever it is notified. told waits until a call has
// notified within a second of its beginning.
func counting(t *testing.T, h *host.Host) (told func(why string, cause func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var count, next, first atomic.Int64 // next is the number of a notification, first when it came
	var group errgroup.Group
	group.Go(func() error {
		return h.Watch(ctx, func() {
			if count.Add(1) == next.Load() {
				first.Store(time.Now().UnixNano())
			}
			h.Look(ctx)
		})
	})
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, group.Wait(), context.Canceled)
	})
	quiet := func() int64 {
		last, still := count.Load(), 0
		require.Eventually(t, func() bool {
			if now := count.Load(); now != last {
				last, still = now, 0
			}
			still++
			return last > 0 && still > 20
		}, 10*time.Second, 5*time.Millisecond)
		return last
	}
	return func(why string, cause func()) {
		t.Helper()
		before := quiet()
		next.Store(before + 1)
		began := time.Now()
		cause()
		require.Eventually(t, func() bool { return count.Load() > before }, 20*time.Second, 5*time.Millisecond, why)
		require.Less(t, time.Unix(0, first.Load()).Sub(began), time.Second, why)
	}
}

func TestWatchFollowsWhatLooksHaveLedTo(t *testing.T) {
	root := layOut(t, files{
		"/etc/systemd/system/my-etcd.service": "[Service]\nEnvironmentFile=/srv/conf/blue.env\nEnvironmentFile=-/srv/later/more.env\nExecStart=/usr/bin/etcd\n",
		"/srv/conf/blue.env":                  "ETCD_DATA_DIR=/srv/blue\nETCD_CONFIG_FILE=/srv/yaml/etcd.yml\n",
		"/srv/yaml/etcd.yml":                  "data-dir: /srv/blue\nclient-transport-security: {cert-file: /srv/tls/c.crt, key-file: /srv/tls/c.key, trusted-ca-file: /srv/tls/ca.crt}\n",
		"/srv/blue/member/snap/db":            "x",
		"/etc/systemd/system/k3s.service":     "[Service]\nExecStart=/usr/local/bin/k3s server --config=/srv/k3s/own.yaml\n",
		"/srv/k3s/keep":                       "", "/etc/rancher/k3s/config.yaml.d/keep": "",
		"/srv/tls/c.crt": "x", "/srv/tls/c.key": "x", "/srv/tls/ca.crt": "x",
	})
	told := counting(t, at(t, root))
	told("the environment file", func() { add(t, root, files{"/srv/conf/blue.env": "ETCD_CONFIG_FILE=/srv/yaml/etcd.yml\n"}) })
	told("an environment file that was not there", func() { add(t, root, files{"/srv/later/more.env": "A=1\n"}) })
	told("the configuration file", func() {
		add(t, root, files{"/srv/yaml/.new": "data-dir: /srv/blue\n"})
		rename(t, root, "/srv/yaml/.new", "/srv/yaml/etcd.yml")
	})
	told("the configuration file of k3s", func() { add(t, root, files{"/srv/k3s/own.yaml": "token: x\n"}) })
	told("a drop-in of it", func() { add(t, root, files{"/srv/k3s/own.yaml.d/10.yaml": "token: x\n"}) })
	told("a drop-in of the usual one", func() { add(t, root, files{"/etc/rancher/k3s/config.yaml.d/10.yaml": "token: x\n"}) })
	told("a certificate is renewed", func() { add(t, root, files{"/srv/tls/.new": "y"}); rename(t, root, "/srv/tls/.new", "/srv/tls/c.crt") })
	told("the authority is renewed", func() { add(t, root, files{"/srv/tls/ca.crt": "y"}) })
	told("etcd tries its data directory", func() { add(t, root, files{"/srv/blue/.touch": ""}) })
	told("the data goes", func() { require.NoError(t, os.RemoveAll(filepath.Join(root, "srv/blue/member"))) })
}

func TestWatchSeesContainersStart(t *testing.T) {
	root := layOut(t, files{"/sys/fs/cgroup/system.slice/keep": "", "/sys/fs/cgroup/systemd/keep": ""})
	h := at(t, root)
	told := counting(t, h)
	start := func(group string) func() {
		return func() { require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", group), 0o755)) }
	}
	told("of docker, by systemd", start("system.slice/docker-"+containerID+".scope"))
	told("of podman, below a slice that comes with it", start("machine.slice/libpod-"+containerID+".scope"))
	told("of docker, by itself", start("docker/"+containerID))
	told("of Talos", start("podruntime/etcd"))
	told("of docker, with control groups of version 1", start("systemd/docker/"+containerID))
	told("a unit, where there is no bus", start("system.slice/my-etcd.service"))
}

// The group of a container is there before its program runs: who looks at once sees nothing yet.
func TestAStartIsLookedAtAgain(t *testing.T) {
	for name, group := range map[string]string{
		"another container":   "system.slice/docker-" + containerID + ".scope",
		"the first container": "docker/" + containerID,
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, files{"/sys/fs/cgroup/system.slice/keep": "", "/data/member/snap/db": "x"})
			eventually := watching(t, root)
			require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/fs/cgroup", group), 0o755))
			<-time.NewTimer(100 * time.Millisecond).C
			process(t, root, 812, shown{line: []string{"etcd", "--data-dir=/data"}, cgroup: "/" + group})
			eventually("the server that came after its group", func(s seen) bool { return s.etcd == 1 })
		})
	}
}

// TestARealStartIsSeenWithoutABus starts etcd on data that it has had before, on a host without a bus or control groups, as
// a container without a unit looks: nothing tells of it but what etcd itself does.
func TestARealStartIsSeenWithoutABus(t *testing.T) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{HostRoot: func(int) string { return t.TempDir() }})
	member := etcd.Member(1)
	require.NoError(t, member.Stop(t.Context()))
	h := at(t, member.Root)
	told := counting(t, h)
	told("etcd starts", func() { require.NoError(t, member.Start(t.Context())) })
	require.NoError(t, member.Kill())
	told("etcd starts after it was killed", func() { require.NoError(t, member.Start(t.Context())) })
}

func TestAStoppedContainerWithDataOfItsOwnPlaceIsStillAVoter(t *testing.T) {
	root := layOut(t, files{"/srv/mine/member/snap/db": "x", "/srv/pod/member/snap/db": "x"})
	h := at(t, root)
	process(t, root, 812, shown{line: []string{"etcd", "--data-dir=/srv/mine"}, cgroup: "/docker/" + containerID})
	process(t, root, 813, shown{line: []string{"etcd", "--data-dir=/srv/pod"}, cgroup: "/kubepods/burstable/pod1/" + containerID})
	require.Len(t, h.Look(t.Context()).Found, 2)
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc/812")))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc/813")))
	look := h.Look(t.Context())
	require.Empty(t, look.Unknown)
	require.Len(t, look.Found, 1, "what a pod leaves behind is Kubernetes' business")
	require.Equal(t, protect.DataDirectory, look.Found[0].Source)
	require.Equal(t, "data directory /srv/mine, with no server running on it", look.Found[0].Where)

	require.NoError(t, os.RemoveAll(filepath.Join(root, "srv/mine/member")))
	require.Empty(t, h.Look(t.Context()).Found, "until the data goes")
}
