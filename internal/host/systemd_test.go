package host_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestSystemdKnowsWhatTheFilesDoNot(t *testing.T) {
	root := layOut(t, files{
		"/run/elsewhere/etcd-blue.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/blue\n",
		"/srv/blue/member/snap/db":         "x",
		"/var/lib/etcd/member/snap/db":     "x",
	})
	process(t, root, 812, shown{line: []string{"etcd", "--data-dir=/var/lib/etcd"}})
	startBus(t, root, map[string]map[string]any{
		"etcd-blue.service": {"FragmentPath": "/run/elsewhere/etcd-blue.service", "MainPID": uint32(0), "DropInPaths": []string{}},
		"etcd.service":      {"FragmentPath": "/run/elsewhere/gone", "MainPID": uint32(812)},
	})
	look := at(t, root).Look(t.Context())
	require.Empty(t, look.Unknown)
	require.Empty(t, look.Notes)
	require.Len(t, look.Found, 2)
	require.Equal(t, protect.SystemdUnit, look.Found[0].Source)
	require.Equal(t, "etcd.service", look.Found[0].Unit, "by systemd's MainPID")
	require.Equal(t, "data directory /srv/blue of systemd unit etcd-blue.service, which does not run", look.Found[1].Where)
}

// A masked unit that another one refers to stays in systemd's memory, with nothing for a file.
func TestAMaskedUnitIsWhatItHides(t *testing.T) {
	for name, c := range map[string]struct{ fragment, hidden, data string }{
		"systemd names the device":  {fragment: "/dev/null", hidden: "/usr/lib/systemd/system", data: "/srv/etcd"},
		"systemd names the link":    {fragment: "/etc/systemd/system/etcd.service", hidden: "/usr/lib/systemd/system", data: "/srv/etcd"},
		"a host that was taken out": {fragment: "/dev/null", hidden: "/usr/lib/systemd/system"},
		"nothing is left behind it": {fragment: "/dev/null", hidden: "/usr/share/doc"},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, files{
				"/dev/null/as-little-a-file": "", "/etc/systemd/system/etcd.service": "-> /dev/null",
				c.hidden + "/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/srv/etcd\n",
			})
			if c.data != "" {
				add(t, root, files{c.data + "/member/snap/db": "x"})
			}
			startBus(t, root, map[string]map[string]any{
				"etcd.service": {"FragmentPath": c.fragment, "LoadState": "masked", "MainPID": uint32(0), "DropInPaths": []string{}},
			})
			look := at(t, root).Look(t.Context())
			require.Empty(t, look.Unknown)
			if c.data == "" {
				require.Empty(t, look.Found)
				return
			}
			require.Len(t, look.Found, 1)
			require.Equal(t, "data directory /srv/etcd of systemd unit etcd.service, which does not run", look.Found[0].Where)
		})
	}
}

func TestABusThatIsAway(t *testing.T) {
	booted := files{"/run/systemd/system/keep": ""}
	for name, c := range map[string]struct {
		host    func(t *testing.T) string
		unknown string
		note    string
	}{
		"no systemd": {host: func(t *testing.T) string { return layOut(t, nil) }, note: "this host was not started by it"},
		"no bus":     {host: func(t *testing.T) string { return layOut(t, booted) }, note: "this host has no system bus"},
		"a socket that nobody listens at": {
			host: func(t *testing.T) string {
				root := layOut(t, booted)
				add(t, root, files{"/run/dbus/system_bus_socket": "x"})
				return root
			},
			unknown: "systemd over D-Bus: connecting to the bus: ",
		},
		"a bus that hangs up": {
			host: func(t *testing.T) string {
				root := layOut(t, booted)
				b := startBus(t, root, nil)
				b.stop()
				listener, err := net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
				require.NoError(t, err)
				var serving errgroup.Group
				serving.Go(func() error {
					for {
						conn, err := listener.Accept()
						if err != nil {
							return nil
						}
						_ = conn.Close()
					}
				})
				t.Cleanup(func() { require.NoError(t, listener.Close()); require.NoError(t, serving.Wait()) })
				return root
			},
			unknown: "systemd over D-Bus: connecting to the bus: ",
		},
		"a bus that never answers": {
			host: func(t *testing.T) string {
				root := layOut(t, booted)
				require.NoError(t, os.MkdirAll(filepath.Join(root, "run/dbus"), 0o755))
				listener, err := net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, listener.Close()) })
				return root
			},
			unknown: "systemd over D-Bus: connecting to the bus: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			look := at(t, c.host(t)).Look(t.Context())
			require.Empty(t, look.Found)
			if c.unknown == "" {
				require.Empty(t, look.Unknown)
				require.Len(t, look.Notes, 1)
				require.Contains(t, look.Notes[0], c.note)
				return
			}
			require.Empty(t, look.Notes)
			require.Len(t, look.Unknown, 1)
			require.Contains(t, look.Unknown[0], c.unknown)
		})
	}
}

func TestWatchHearsSystemd(t *testing.T) {
	root := layOut(t, files{"/etc/systemd/system/my-etcd.service": "[Service]\nExecStart=/usr/bin/etcd\n"})
	b := startBus(t, root, map[string]map[string]any{"etcd.service": {"MainPID": uint32(0)}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var count atomic.Int32
	var watching errgroup.Group
	h := at(t, root)
	watching.Go(func() error {
		return h.Watch(ctx, func() {
			if count.Add(1) == 1 {
				h.Look(ctx) // which finds a unit that no layout has
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, watching.Wait(), context.Canceled)
	})
	more := func(why string) {
		t.Helper()
		before := count.Load()
		require.Eventually(t, func() bool {
			b.emit("etcd.service")         // again and again: whether the watch has begun cannot be seen from here
			return count.Load() > before+5 // more than the watches cause when they begin
		}, 20*time.Second, 10*time.Millisecond, why)
	}
	more("a unit changes")
	asked := func(unit string) func() bool {
		return func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Contains(b.rules, "type='signal',path='/org/freedesktop/systemd1/unit/"+unit+"_2eservice',interface='org.freedesktop.DBus.Properties'")
		}
	}
	require.True(t, asked("etcd")())
	require.Eventually(t, asked("my_2detcd"), 20*time.Second, 10*time.Millisecond, "a unit that a look found")
	b.stop()
	b = startBus(t, root, nil)
	require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.peers) > 0 }, 20*time.Second, 10*time.Millisecond, "the watch connects again")
	more("a unit changes after the bus came back")
}
