package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// busSocket is the socket of the system bus on the host.
const busSocket = "/run/dbus/system_bus_socket"

const (
	// busTimeout bounds all calls of one operation together.
	busTimeout = 2 * time.Second

	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = systemdName + ".Manager"
)

// errBusLost ends a watch of the bus.
var errBusLost = errors.New("the connection to the system bus was lost")

// dial connects to the host's system bus. The connection ends with ctx.
func dial(ctx context.Context, root hostfs.Root) (*godbus.Conn, error) {
	at, err := root.Resolve(busSocket)
	if err != nil {
		return nil, err
	}
	if _, err = os.Stat(at); err != nil {
		return nil, err
	}
	return godbus.Connect("unix:path="+godbus.EscapeBusAddressValue(at), godbus.WithContext(ctx))
}

// Units returns the states of the named units. A state that systemd does not report is unknown.
func Units(ctx context.Context, root hostfs.Root, names []string) []readiness.Unit {
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	units := make([]readiness.Unit, len(names))
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) { return dial(ctx, root) })
	if err == nil {
		defer conn.Close()
	}
	for i, name := range names {
		if err != nil {
			problem := fmt.Sprintf("cannot connect to systemd: %v", hostfs.Reason(err))
			units[i] = readiness.Unit{Name: name, Problem: problem}
			continue
		}
		units[i] = readUnit(ctx, conn, name)
	}
	return units
}

// readUnit returns the state of a unit of any type (org.freedesktop.systemd1(5)). systemd loads a
// unit that is queried by name, so the state matches the unit's present files.
func readUnit(ctx context.Context, conn *dbus.Conn, name string) readiness.Unit {
	properties, err := conn.GetAllPropertiesContext(ctx, name)
	if err != nil {
		return readiness.Unit{Name: name, Problem: fmt.Sprintf("cannot read its state from systemd: %v", err)}
	}
	text := func(key string) string {
		s, _ := properties[key].(string)
		return s
	}
	exited, _ := properties["ExecMainExitTimestampMonotonic"].(uint64) // services alone have it
	u := readiness.Unit{
		Name: name, ActiveState: text("ActiveState"), SubState: text("SubState"), Result: text("Result"), Ran: exited > 0,
	}
	switch load := text("LoadState"); load {
	case "":
		u.Problem = "systemd did not report whether the unit exists"
	case "not-found":
		u.Presence = readiness.Absent
	case "loaded":
		u.Presence = readiness.Present
	default: // masked, bad-setting, error: the unit exists and can never run
		u.Presence, u.Problem = readiness.Present, "its load state is "+load
	}
	return u
}

// WatchUnits calls notify when one of the units changes its state, or unit files change. It runs
// until ctx ends or the connection is lost, and calls ready once it is subscribed. It subscribes to
// these units alone: a busy host starts and stops others all the time.
func WatchUnits(ctx context.Context, root hostfs.Root, units []string, notify, ready func()) error {
	conn, err := dial(ctx, root)
	if err != nil {
		return fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	signals := make(chan *godbus.Signal, 16)
	conn.Signal(signals)
	if err := subscribe(ctx, conn, units); err != nil {
		return err
	}
	ready()
	notify() // for changes before the watch began
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, open := <-signals:
			notify()
			if !open {
				return errBusLost
			}
		}
	}
}

// subscribe subscribes to changes of unit files and of units.
func subscribe(ctx context.Context, conn *godbus.Conn, units []string) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	for _, signal := range []string{"UnitFilesChanged", "Reloading"} {
		err := conn.AddMatchSignalContext(ctx, godbus.WithMatchInterface(systemdManager), godbus.WithMatchMember(signal))
		if err != nil {
			return fmt.Errorf("subscribing to signals of systemd: %w", err)
		}
	}
	err := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdManager+".Subscribe", 0).Err
	var refused godbus.Error
	isSubscribed := errors.As(err, &refused) && refused.Name == systemdName+".AlreadySubscribed"
	if err != nil && !isSubscribed {
		return fmt.Errorf("subscribing to systemd: %w", err)
	}
	for _, unit := range units {
		path := godbus.ObjectPath(systemdPath + "/unit/" + dbus.PathBusEscape(unit))
		err := conn.AddMatchSignalContext(ctx, godbus.WithMatchObjectPath(path),
			godbus.WithMatchInterface("org.freedesktop.DBus.Properties"))
		if err != nil {
			return fmt.Errorf("subscribing to signals of %s: %w", unit, err)
		}
	}
	return nil
}
