package etcddetect_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestLoadedUnits(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/run/elsewhere/etcd-blue.service": service("ExecStart=/usr/bin/etcd --data-dir=/srv/blue"),
		"/srv/blue" + member:               "x", "/var/lib/etcd" + member: "x",
	})
	hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd", "--data-dir=/var/lib/etcd"}})
	hosttest.StartSystemd(t, root, map[string]map[string]any{
		"etcd-blue.service": {
			"FragmentPath": "/run/elsewhere/etcd-blue.service", "MainPID": uint32(0), "DropInPaths": []string{},
		},
		"etcd.service": {"FragmentPath": "/run/elsewhere/gone", "MainPID": uint32(812)},
	})
	findings := detect(t, root)
	require.Empty(t, findings.Unknown)
	require.Empty(t, findings.Notes)
	require.Len(t, findings.Found, 2)
	require.Equal(t, evidence.SystemdUnit, findings.Found[0].Source)
	require.Equal(t, "etcd.service", findings.Found[0].Unit, "by systemd's MainPID")
	const where = "data directory /srv/blue of systemd unit etcd-blue.service, which does not run"
	require.Equal(t, where, findings.Found[1].Where)
}

// A masked unit that another unit refers to stays in the memory of systemd, without a file.
func TestLoadedMaskedUnit(t *testing.T) {
	const hidden = "/usr/lib/systemd/system"
	for name, c := range map[string]struct{ fragment, hidden, data string }{
		"device as the file":   {fragment: "/dev/null", hidden: hidden, data: "/srv/etcd"},
		"link as the file":     {fragment: unitFile, hidden: hidden, data: "/srv/etcd"},
		"removed member":       {fragment: "/dev/null", hidden: hidden},
		"no unit file is left": {fragment: "/dev/null", hidden: "/usr/share/doc"},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/dev/null/not-a-file": "", unitFile: "-> /dev/null",
				c.hidden + "/etcd.service": service("ExecStart=/usr/bin/etcd --data-dir=/srv/etcd"),
			})
			hosttest.StartSystemd(t, root, map[string]map[string]any{"etcd.service": {
				"FragmentPath": c.fragment, "LoadState": "masked", "MainPID": uint32(0), "DropInPaths": []string{},
			}})
			if c.data == "" {
				findings := detect(t, root)
				require.Empty(t, findings.Unknown)
				require.Empty(t, findings.Found)
				return
			}
			hosttest.Add(t, root, hosttest.Files{c.data + member: "x"})
			s := detectOne(t, root)
			require.Equal(t, "data directory /srv/etcd of systemd unit etcd.service, which does not run", s.Where)
		})
	}
}

func TestUnavailableBus(t *testing.T) {
	const socket = "/run/dbus/system_bus_socket"
	for name, c := range map[string]struct {
		isBooted      bool
		prepare       func(t *testing.T, root string)
		unknown, note string
	}{
		"no systemd": {note: "it did not start this host"},
		"no bus":     {isBooted: true, note: "this host has no system bus"},
		"no listener": {
			isBooted: true, unknown: "systemd over D-Bus: connecting to the system bus: ",
			prepare: func(t *testing.T, root string) { hosttest.Add(t, root, hosttest.Files{socket: "x"}) },
		},
		"closed connections": {
			isBooted: true, unknown: "systemd over D-Bus: connecting to the system bus: ",
			prepare: func(t *testing.T, root string) {
				listener := hosttest.ListenBus(t, root)
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
			},
		},
		"no answers": {
			isBooted: true, unknown: "systemd over D-Bus: connecting to the system bus: ",
			prepare: func(t *testing.T, root string) {
				listener := hosttest.ListenBus(t, root)
				t.Cleanup(func() { require.NoError(t, listener.Close()) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, nil)
			if c.isBooted {
				hosttest.Add(t, root, hosttest.Files{"/run/systemd/system/keep": ""})
			}
			if c.prepare != nil {
				c.prepare(t, root)
			}
			findings := detect(t, root)
			require.Empty(t, findings.Found)
			if c.unknown == "" {
				require.Empty(t, findings.Unknown)
				require.Len(t, findings.Notes, 1)
				require.Contains(t, findings.Notes[0], c.note)
				return
			}
			require.Empty(t, findings.Notes)
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], c.unknown)
		})
	}
}

func TestAliasAndInstance(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/lib/systemd/system/etcd.service":      service("EnvironmentFile=-/etc/default/%p", "ExecStart=/usr/bin/etcd"),
		"/lib/systemd/system/etcd@.service":     service("ExecStart=/usr/bin/etcd --data-dir=/srv/%i"),
		"/etc/systemd/system/etcd2.service":     "-> /lib/systemd/system/etcd.service",
		"/etc/systemd/system/etcd@blue.service": "-> /lib/systemd/system/etcd@.service",
		"/etc/default/etcd":                     "ETCD_DATA_DIR=/srv/etcd\n",
		"/srv/etcd" + member:                    "x", "/srv/blue" + member: "x",
		"/etc/systemd/system/etcd-green.service": "-> /nowhere/etcd-green.service",
	})
	findings := detect(t, root)
	require.Empty(t, findings.Unknown)
	var units []string
	for _, s := range findings.Found {
		units = append(units, s.Unit)
	}
	require.Equal(t, []string{"etcd.service", "etcd@blue.service"}, units, "an instance is a unit of its own")
}
