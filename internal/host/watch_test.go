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

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// seen is what a watcher saw when it was last notified.
type seen struct {
	facts readiness.Facts
	etcd  int
}

// watching watches a host until the test ends, and looks at it whenever it is notified and at no other time.
func watching(t *testing.T, root string) (eventually func(why string, is func(seen) bool)) {
	t.Helper()
	h, enough := at(t, root), errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var last atomic.Pointer[seen]
	var group errgroup.Group
	group.Go(func() error {
		return h.Watch(ctx, func() {
			found, _ := h.Etcd(ctx)
			last.Store(&seen{facts: h.Network(ctx), etcd: len(found)})
		})
	})
	t.Cleanup(func() {
		cancel(enough)
		require.ErrorIs(t, group.Wait(), enough)
	})
	eventually = func(why string, is func(seen) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			s := last.Load()
			return s != nil && is(*s)
		}, 5*time.Second, 2*time.Millisecond, why)
	}
	eventually("the watch begins", func(seen) bool { return true })
	return eventually
}

func TestWatchTellsWhatChanges(t *testing.T) {
	const subnet = "FLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	root := layOut(t, files{"/run/flannel/keep": ""})
	eventually := watching(t, root)
	absent := func(s seen) bool { return s.facts.Subnet.Presence == readiness.Absent }
	present := func(s seen) bool { return s.facts.Subnet.Presence == readiness.Present }

	add(t, root, files{"/run/flannel/.subnet.env.new": subnet})
	rename(t, root, "/run/flannel/.subnet.env.new", "/run/flannel/subnet.env")
	eventually("a file that is renamed into place, as flannel does", present)

	require.NoError(t, os.RemoveAll(filepath.Join(root, "run/flannel")))
	eventually("the directory goes", absent)
	add(t, root, files{"/run/flannel/subnet.env": subnet})
	eventually("the directory comes back, and the file with it", present)
	require.NoError(t, os.Remove(filepath.Join(root, "run/flannel/subnet.env")))
	eventually("the file goes from the directory that came back", absent)

	require.NoError(t, os.Mkdir(filepath.Join(root, "run/other"), 0o755))
	require.NoError(t, syscall.Rename(filepath.Join(root, "run/other"), filepath.Join(root, "run/flannel"))) // os.Rename spares directories
	add(t, root, files{"/run/flannel/subnet.env": subnet})
	eventually("a file in another directory that took the place of the first", present)
	require.NoError(t, os.Remove(filepath.Join(root, "run/flannel/subnet.env")))
	eventually("it goes again", absent)

	add(t, root, files{"/etc/cni/net.d/10-flannel.conflist": `{"name":"cbr0","plugins":[{"type":"flannel"}]}`})
	eventually("a file below two directories that did not exist", func(s seen) bool { return len(s.facts.Conflist.Plugins) == 4 })
	executables := func(n int) func(seen) bool {
		return func(s seen) bool {
			count := 0
			for _, p := range s.facts.Conflist.Plugins {
				if p.Executable == readiness.Present {
					count++
				}
			}
			return count == n
		}
	}
	add(t, root, files{"/opt/cni/bin/flannel": script, "/opt/cni/bin/bridge": script})
	eventually("plugins appear", executables(2))
	require.NoError(t, os.Chmod(filepath.Join(root, "opt/cni/bin/bridge"), 0o644))
	eventually("one may not be executed any more", executables(1))

	add(t, root, files{"/run/holdfast/network_plugin.done": bootID})
	eventually("the marker", func(s seen) bool { return s.facts.Marker.BootID == bootID })

	add(t, root, files{"/var/lib/etcd/member/snap/db": "x"})
	eventually("a data directory", func(s seen) bool { return s.etcd == 1 })
	add(t, root, files{"/srv/etcd/member/snap/db": "x"})
	add(t, root, files{"/etc/systemd/system/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/etcd\n"})
	eventually("a unit", func(s seen) bool { return s.etcd == 2 })
}

func rename(t *testing.T, root, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(filepath.Join(root, from), filepath.Join(root, to)))
}

// TestWatchFollowsWhatItsPathsLeadTo changes what lies on the way to a directory, of which no watch on the directory tells.
func TestWatchFollowsWhatItsPathsLeadTo(t *testing.T) {
	conflist := func(kind string) string { return `{"name":"n","plugins":[{"type":"` + kind + `"}]}` }
	root := layOut(t, files{
		"/opt/cni/1/bin/keep": "", "/opt/cni/2/bin/ptp": script, "/opt/cni/bin": "-> 1/bin",
		"/etc/cni/net.d/10-a.conflist": conflist("ptp"), "/etc/other/net.d/10-a.conflist": conflist("macvlan"),
	})
	eventually := watching(t, root)
	plugin := func(kind string, executable readiness.Presence) func(seen) bool {
		return func(s seen) bool {
			p := s.facts.Conflist.Plugins
			return len(p) == 1 && p[0].Type == kind && p[0].Executable == executable
		}
	}
	eventually("at first", plugin("ptp", readiness.Absent))

	require.NoError(t, os.Symlink("2/bin", filepath.Join(root, "opt/cni/new")))
	rename(t, root, "/opt/cni/new", "/opt/cni/bin")
	eventually("what the link names now", plugin("ptp", readiness.Present))
	require.NoError(t, os.Remove(filepath.Join(root, "opt/cni/2/bin/ptp")))
	eventually("a plugin goes from what the link names now", plugin("ptp", readiness.Absent))

	rename(t, root, "/etc/cni", "/etc/old")
	rename(t, root, "/etc/other", "/etc/cni")
	eventually("the directory above is another", plugin("macvlan", readiness.Absent))
	add(t, root, files{"/etc/cni/net.d/09-b.conflist": conflist("tuning")})
	eventually("a configuration in the directory that is there now", plugin("tuning", readiness.Absent))
}

func TestWatchPassesOverWhatDoesNotMatter(t *testing.T) {
	root := layOut(t, files{"/etc/systemd/system/keep": "", "/run/flannel/keep": ""})
	ctx, cancel := context.WithCancel(t.Context())
	var count atomic.Int32
	var group errgroup.Group
	h := at(t, root)
	group.Go(func() error { return h.Watch(ctx, func() { count.Add(1) }) })
	require.Eventually(t, func() bool { return count.Load() == 1 }, 20*time.Second, time.Millisecond)

	for range 100 {
		add(t, root, files{"/etc/systemd/system/ssh.service": "x", "/run/flannel/other": "x", "/etc/other": "x", "/var/other": "x"})
		require.NoError(t, os.Remove(filepath.Join(root, "etc/systemd/system/ssh.service")))
	}
	require.LessOrEqual(t, count.Load(), int32(1+2), "at most /var, which is new, is told of, twice if it was found before its event came")
	add(t, root, files{"/etc/systemd/system/etcd.service": "x"})
	require.Eventually(t, func() bool { return count.Load() > 1 }, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, group.Wait(), context.Canceled)
}
