package host

import (
	"context"
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// awaited asks systemd how the units stand that somebody waits for. It takes no longer than busTimeout, and what systemd
// does not say is unknown.
func (h *Host) awaited(ctx context.Context) []readiness.Unit {
	if len(h.opts.Units) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	units := make([]readiness.Unit, len(h.opts.Units))
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) { return h.dial(ctx) })
	if err == nil {
		defer conn.Close()
	}
	for i, name := range h.opts.Units {
		units[i].Name = name
		if err != nil {
			units[i].Problem = fmt.Sprintf("systemd could not be asked: %v", plain(err))
			continue
		}
		// Asked for by its name, a unit that is not loaded is loaded: the answer is about the files as they are now.
		properties, err := conn.GetAllPropertiesContext(ctx, name)
		if err != nil {
			units[i].Problem = fmt.Sprintf("systemd did not answer: %v", err)
			continue
		}
		units[i] = awaitedUnit(name, properties)
	}
	return units
}

// awaitedUnit reads systemd's properties of a unit (org.freedesktop.systemd1(5)). Those of services are not there for units
// of other kinds.
func awaitedUnit(name string, properties map[string]any) readiness.Unit {
	word := func(key string) string {
		s, _ := properties[key].(string)
		return s
	}
	u := readiness.Unit{Name: name, ActiveState: word("ActiveState"), SubState: word("SubState"), Result: word("Result")}
	exited, _ := properties["ExecMainExitTimestampMonotonic"].(uint64)
	u.Ran = exited > 0
	switch load := word("LoadState"); load {
	case "":
		u.Problem = "systemd did not say whether there is such a unit"
	case "not-found":
		u.Presence = readiness.Absent
	case "loaded":
		u.Presence = readiness.Present
	default: // masked, bad-setting, error: there, and never to run
		u.Presence, u.Problem = readiness.Present, "its load state is "+load
	}
	return u
}
