package host_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// bus is a system bus with a systemd on it, for hosts of tests: a real one would need a machine of its own. It speaks the
// protocol; what it says is what the test gave it.
type bus struct {
	listener net.Listener
	units    map[string]map[string]any

	mu    sync.Mutex // guards peers and rules
	peers []*godbus.Conn
	rules []string
}

// startBus listens at the host's bus socket and marks the host as one that systemd started.
func startBus(t *testing.T, root string, units map[string]map[string]any) *bus {
	t.Helper()
	add(t, root, files{"/run/systemd/system/keep": "", "/run/dbus/keep": ""})
	listener, err := net.Listen("unix", filepath.Join(root, "run/dbus/system_bus_socket"))
	require.NoError(t, err)
	b := &bus{listener: listener, units: units}
	var serving errgroup.Group
	serving.Go(func() error {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return nil
			}
			serving.Go(func() error { b.serve(conn); return nil })
		}
	})
	t.Cleanup(func() {
		b.stop()
		require.NoError(t, serving.Wait())
	})
	return b
}

// stop ends the bus and all connections to it.
func (b *bus) stop() {
	_ = b.listener.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, peer := range b.peers {
		_ = peer.Close()
	}
}

// serve puts the library's own end of a connection behind the client's: both believe to be clients of a bus.
func (b *bus) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	peer, err := godbus.NewConn(near)
	if err != nil {
		return
	}
	b.export(peer)
	var relay errgroup.Group
	relay.Go(func() error { return peer.Auth([]godbus.Auth{godbus.AuthExternal("0")}) })
	ours, err := greet(far)
	if err != nil || relay.Wait() != nil {
		return
	}
	theirs, err := greet(client)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.peers = append(b.peers, peer)
	b.mu.Unlock()
	relay.Go(func() error {
		_, err := io.Copy(far, theirs)
		return errors.Join(err, far.Close(), peer.Close())
	})
	_, _ = io.Copy(client, ours)
	_ = client.Close()
	_ = relay.Wait()
}

// greet is the bus's part of the greeting (D-Bus specification, authentication protocol).
func greet(conn io.ReadWriter) (*bufio.Reader, error) {
	in := bufio.NewReader(conn)
	if _, err := in.ReadByte(); err != nil {
		return nil, err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		answer := "ERROR\r\n"
		switch line = strings.TrimSpace(line); {
		case line == "BEGIN":
			return in, nil
		case line == "AUTH":
			answer = "REJECTED EXTERNAL\r\n"
		case line == "AUTH EXTERNAL", strings.HasPrefix(line, "DATA"):
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return nil, err
		}
	}
}

func (b *bus) export(peer *godbus.Conn) {
	table := func(methods map[string]any, path, iface string) {
		if err := peer.ExportMethodTable(methods, godbus.ObjectPath(path), iface); err != nil {
			panic(err)
		}
	}
	table(map[string]any{
		"Hello": func() (string, *godbus.Error) { return ":1.1", nil },
		"AddMatch": func(rule string) *godbus.Error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.rules = append(b.rules, rule)
			return nil
		},
	}, "/org/freedesktop/DBus", "org.freedesktop.DBus")
	table(map[string]any{
		"Subscribe":           func() *godbus.Error { return nil },
		"ListUnitsByPatterns": func(_, _ []string) ([]unitStatus, *godbus.Error) { return b.list(), nil },
	}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
	for name, properties := range b.units {
		table(map[string]any{
			"GetAll": func(string) (map[string]godbus.Variant, *godbus.Error) {
				all := map[string]godbus.Variant{}
				for key, value := range properties {
					all[key] = godbus.MakeVariant(value)
				}
				return all, nil
			},
		}, "/org/freedesktop/systemd1/unit/"+dbus.PathBusEscape(name), "org.freedesktop.DBus.Properties")
	}
}

// unitStatus is systemd's a(ssssssouso).
type unitStatus struct {
	Name, Description, Load, Active, Sub, Followed string
	Path                                           godbus.ObjectPath
	JobID                                          uint32
	JobType                                        string
	JobPath                                        godbus.ObjectPath
}

func (b *bus) list() []unitStatus {
	var all []unitStatus
	for name := range b.units {
		all = append(all, unitStatus{Name: name, Load: "loaded", Active: "active", Sub: "running", Path: "/", JobPath: "/"})
	}
	return append(all, unitStatus{Name: "k3s.service", Load: "not-found", Path: "/", JobPath: "/"})
}

// emit sends a signal of a unit to everybody.
func (b *bus) emit(unit string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, peer := range b.peers {
		_ = peer.Emit(godbus.ObjectPath("/org/freedesktop/systemd1/unit/"+dbus.PathBusEscape(unit)),
			"org.freedesktop.DBus.Properties.PropertiesChanged", "org.freedesktop.systemd1.Unit", map[string]godbus.Variant{}, []string{})
	}
}
