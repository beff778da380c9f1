package hosttest

import (
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	properties  = "org.freedesktop.DBus.Properties"
	systemdPath = "/org/freedesktop/systemd1"
	logindPath  = "/org/freedesktop/login1"
	logindIface = "org.freedesktop.login1.Manager"
)

// A Systemd is a system bus with systemd on it.
type Systemd struct {
	*Bus
	units map[string]map[string]any
}

// StartSystemd starts a bus and marks the host as started by systemd. units are the
// properties of each unit.
func StartSystemd(t testing.TB, root string, units map[string]map[string]any) *Systemd {
	t.Helper()
	Add(t, root, Files{"/run/systemd/system/keep": ""})
	s := &Systemd{units: units}
	s.Bus = startBus(t, root, s.export)
	return s
}

// HasSubscription reports whether a client has subscribed to the changes of a unit.
func (s *Systemd) HasSubscription(unit string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.rules, "type='signal',path='"+unitPath(unit)+"',interface='"+properties+"'")
}

// EmitChange sends a signal that a unit has changed.
func (s *Systemd) EmitChange(unit string) {
	s.emit(unitPath(unit), properties+".PropertiesChanged", "org.freedesktop.systemd1.Unit",
		map[string]godbus.Variant{}, []string{})
}

func unitPath(unit string) string { return systemdPath + "/unit/" + dbus.PathBusEscape(unit) }

func (s *Systemd) export(peer *godbus.Conn) {
	exportObject(peer, systemdPath, "org.freedesktop.systemd1.Manager", map[string]any{
		"Subscribe": func() *godbus.Error { return nil },
	})
	for name, values := range s.units {
		exportObject(peer, unitPath(name), properties, map[string]any{
			"GetAll": func(string) (map[string]godbus.Variant, *godbus.Error) {
				all := map[string]godbus.Variant{}
				for key, value := range values {
					all[key] = godbus.MakeVariant(value)
				}
				return all, nil
			},
		})
	}
}

// A Logind is a system bus with logind on it.
type Logind struct {
	*Bus
	// Inhibited receives the arguments of each call of Inhibit. Released receives the name of
	// each inhibitor that is closed.
	Inhibited, Released chan string
	goingDown           atomic.Bool
	delays              atomic.Int32
	delaying            errgroup.Group
}

// StartLogind starts a bus. goingDown is the state of the host.
func StartLogind(t testing.TB, root string, goingDown bool) *Logind {
	t.Helper()
	l := &Logind{Inhibited: make(chan string, 8), Released: make(chan string, 8)}
	l.goingDown.Store(goingDown)
	t.Cleanup(func() { // after the bus has ended
		released := func() bool { return l.delays.Load() == 0 }
		require.Eventually(t, released, 20*time.Second, 10*time.Millisecond, "every inhibitor is closed")
		require.NoError(t, l.delaying.Wait())
	})
	l.Bus = startBus(t, root, l.export)
	return l
}

// SetGoingDown changes the state of the host without a signal.
func (l *Logind) SetGoingDown(goingDown bool) { l.goingDown.Store(goingDown) }

// EmitGoingDown changes the state of the host and sends the signal.
func (l *Logind) EmitGoingDown(goingDown bool) {
	l.goingDown.Store(goingDown)
	l.emit(logindPath, logindIface+".PrepareForShutdown", goingDown)
}

func (l *Logind) export(peer *godbus.Conn) {
	exportObject(peer, logindPath, logindIface, map[string]any{"Inhibit": l.inhibit})
	exportObject(peer, logindPath, properties, map[string]any{
		"Get": func(_, property string) (godbus.Variant, *godbus.Error) {
			if property != "PreparingForShutdown" {
				return godbus.Variant{}, godbus.MakeFailedError(io.EOF)
			}
			return godbus.MakeVariant(l.goingDown.Load()), nil
		},
	})
}

// inhibit returns one end of a pipe, as logind does. The delay ends when all copies of it are
// closed.
func (l *Logind) inhibit(what, who, _, mode string) (godbus.UnixFD, *godbus.Error) {
	if l.goingDown.Load() { // logind-dbus.c, method_inhibit
		return 0, godbus.NewError("org.freedesktop.login1.OperationInProgress", nil)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, godbus.MakeFailedError(err)
	}
	l.delays.Add(1)
	l.delaying.Go(func() error {
		defer l.delays.Add(-1)
		_, _ = io.ReadAll(reader)
		l.Released <- who
		return reader.Close()
	})
	fd := l.pass(writer)
	l.Inhibited <- strings.Join([]string{what, who, mode}, " ")
	return fd, nil
}
