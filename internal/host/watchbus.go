package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = systemdName + ".Manager"
)

// errBusLost ends a watch of the bus.
const errBusLost = constError("the connection to the system bus was lost")

// watchBus wakes when a unit of the layouts, or one that a look found, changes its state, and when unit files change. Others
// are not asked for: a busy host starts and ends units all the time.
func (h *Host) watchBus(ctx context.Context, wake, up func()) error {
	conn, err := h.dial(ctx)
	if err != nil {
		return fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	signals := make(chan *godbus.Signal, 16)
	conn.Signal(signals)
	heard := map[string]bool{}
	if err := h.subscribe(ctx, conn); err != nil {
		return err
	}
	if err := h.hear(ctx, conn, heard); err != nil {
		return err
	}
	up()
	wake() // what changed while nobody watched
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-h.traces.newUnits:
			if err := h.hear(ctx, conn, heard); err != nil {
				return err
			}
			wake() // what changed while nobody listened to them
		case _, open := <-signals:
			if !open {
				wake()
				return errBusLost
			}
			wake()
		}
	}
}

func (h *Host) subscribe(ctx context.Context, conn *godbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	rules := [][]godbus.MatchOption{
		{godbus.WithMatchInterface(systemdManager), godbus.WithMatchMember("UnitFilesChanged")},
		{godbus.WithMatchInterface(systemdManager), godbus.WithMatchMember("Reloading")},
	}
	for _, rule := range rules {
		if err := conn.AddMatchSignalContext(ctx, rule...); err != nil {
			return fmt.Errorf("asking the system bus for signals: %w", err)
		}
	}
	err := conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdManager+".Subscribe", 0).Err
	var refused godbus.Error
	if errors.As(err, &refused) && refused.Name == systemdName+".AlreadySubscribed" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking systemd for signals: %w", err)
	}
	return nil
}

// hear asks for the signals of the units of the layouts, of those that were found besides, and of those that are waited for.
// heard are those that were asked for.
func (h *Host) hear(ctx context.Context, conn *godbus.Conn, heard map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	units := append(h.traces.knownUnits(), h.opts.Units...)
	for _, l := range layouts() {
		units = append(units, l.units...)
	}
	for _, unit := range units {
		if heard[unit] {
			continue
		}
		path := godbus.ObjectPath(systemdPath + "/unit/" + dbus.PathBusEscape(unit))
		if err := conn.AddMatchSignalContext(ctx, godbus.WithMatchObjectPath(path), godbus.WithMatchInterface("org.freedesktop.DBus.Properties")); err != nil {
			return fmt.Errorf("asking the system bus for signals of %s: %w", unit, err)
		}
		heard[unit] = true
	}
	return nil
}
