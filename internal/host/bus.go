package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// busSocket is where the system bus listens, on the host.
const busSocket = "/run/dbus/system_bus_socket"

// bootedDir is there if the host was started by systemd (sd_booted(3)).
const bootedDir = "/run/systemd/system"

// busTimeout bounds everything that is asked of systemd in one look.
const busTimeout = 2 * time.Second

// dial connects to the host's system bus. The connection ends with ctx.
func (h *Host) dial(ctx context.Context) (*godbus.Conn, error) {
	at, err := h.root.locate(busSocket)
	if err != nil {
		return nil, err
	}
	if _, err = os.Stat(at); err != nil {
		return nil, err
	}
	conn, err := godbus.Dial("unix:path="+godbus.EscapeBusAddressValue(at), godbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if err = conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err == nil {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// loaded is a unit as systemd has it in memory.
type loaded struct {
	mainPID int
	files   []string
	masked  bool
}

// loadedUnits asks systemd for its units. A note says why there is nobody to ask: a host without systemd, or without a bus.
// The process table still shows what runs then, and the unit files on disk and the data directories what does not; only
// a stopped server with a unit made elsewhere and a data directory of its own would be missed. A systemd and a bus that
// are there and do not answer are an error.
func (h *Host) loadedUnits(ctx context.Context) (units map[string]loaded, note string, err error) {
	if _, err := h.root.stat(bootedDir); absent(err) {
		return nil, "systemd was not asked: this host was not started by it", nil
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) { return h.dial(ctx) })
	if absent(err) {
		return nil, "systemd was not asked: this host has no system bus at " + busSocket, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the bus: %w", err)
	}
	defer conn.Close()
	list, err := conn.ListUnitsByPatternsContext(ctx, nil, serverUnits())
	if err != nil {
		return nil, "", fmt.Errorf("listing units: %w", err)
	}
	units = map[string]loaded{}
	for _, u := range list {
		if u.LoadState == "not-found" {
			continue
		}
		properties, err := conn.GetAllPropertiesContext(ctx, u.Name)
		if err != nil {
			return nil, "", fmt.Errorf("reading unit %s: %w", u.Name, err)
		}
		units[u.Name] = loadedUnit(properties)
	}
	return units, "", nil
}

func loadedUnit(properties map[string]any) loaded {
	var l loaded
	if pid, ok := properties["MainPID"].(uint32); ok {
		l.mainPID = int(pid)
	}
	if state, ok := properties["LoadState"].(string); ok {
		l.masked = state == "masked"
	}
	if file, ok := properties["FragmentPath"].(string); ok && file != "" {
		l.files = append(l.files, file)
	}
	if files, ok := properties["DropInPaths"].([]string); ok {
		l.files = append(l.files, files...)
	}
	return l
}
