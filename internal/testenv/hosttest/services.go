package hosttest

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
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
	s.Bus = startBus(t, root, s.answer)
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
	s.emit(unitPath(unit), properties, "PropertiesChanged", "org.freedesktop.systemd1.Unit",
		map[string]godbus.Variant{}, []string{})
}

func unitPath(unit string) string { return systemdPath + "/unit/" + dbus.PathBusEscape(unit) }

func (s *Systemd) answer(path, method string, _ []any) ([]any, *godbus.Error) {
	if method == "org.freedesktop.systemd1.Manager.Subscribe" {
		return nil, nil
	}
	for name, values := range s.units {
		if path == unitPath(name) && method == properties+".GetAll" {
			all := map[string]godbus.Variant{}
			for key, value := range values {
				all[key] = godbus.MakeVariant(value)
			}
			return []any{all}, nil
		}
	}
	return nil, &godbus.ErrMsgUnknownMethod
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
	l.Bus = startBus(t, root, l.answer)
	return l
}

// SetGoingDown changes the state of the host without a signal.
func (l *Logind) SetGoingDown(goingDown bool) { l.goingDown.Store(goingDown) }

// EmitGoingDown changes the state of the host and sends the signal.
func (l *Logind) EmitGoingDown(goingDown bool) {
	l.goingDown.Store(goingDown)
	l.emit(logindPath, logindIface, "PrepareForShutdown", goingDown)
}

func (l *Logind) answer(_, method string, args []any) ([]any, *godbus.Error) {
	switch {
	case method == logindIface+".Inhibit":
		return l.inhibit(args[0], args[1], args[3])
	case method == properties+".Get" && args[1] == "PreparingForShutdown":
		return []any{godbus.MakeVariant(l.goingDown.Load())}, nil
	}
	return nil, &godbus.ErrMsgUnknownMethod
}

// inhibit returns one end of a pipe, as logind does. The delay ends when all copies of it are
// closed.
func (l *Logind) inhibit(what, who, mode any) ([]any, *godbus.Error) {
	if l.goingDown.Load() { // logind-dbus.c, method_inhibit
		return nil, godbus.NewError("org.freedesktop.login1.OperationInProgress", nil)
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, godbus.MakeFailedError(err)
	}
	l.delays.Add(1)
	l.delaying.Go(func() error {
		defer l.delays.Add(-1)
		reader := os.NewFile(uintptr(ends[0]), "inhibitor")
		_, _ = io.ReadAll(reader)
		l.Released <- fmt.Sprint(who)
		return reader.Close()
	})
	l.Inhibited <- fmt.Sprintf("%s %s %s", what, who, mode)
	return []any{godbus.UnixFD(ends[1])}, nil
}
