package host_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// waiting is a host whose operator waits for these units.
func waiting(t *testing.T, root string, units ...string) *host.Host {
	t.Helper()
	h, err := host.New(host.Options{Root: root, Units: units})
	require.NoError(t, err)
	return h
}

func TestUnitsThatAreWaitedFor(t *testing.T) {
	root := layOut(t, nil)
	startBus(t, root, map[string]map[string]any{
		"done.service":   {"LoadState": "loaded", "ActiveState": "active", "SubState": "exited", "Result": "success", "ExecMainExitTimestampMonotonic": uint64(91)},
		"failed.service": {"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainExitTimestampMonotonic": uint64(92)},
		"net.target":     {"LoadState": "loaded", "ActiveState": "active", "SubState": "active"},
		"gone.service":   {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "ExecMainExitTimestampMonotonic": uint64(0)},
		"masked.service": {"LoadState": "masked", "ActiveState": "inactive", "SubState": "dead"},
		"odd.service":    {"LoadState": uint64(7)},
	})
	names := []string{"done.service", "failed.service", "net.target", "gone.service", "masked.service", "odd.service"}
	require.Equal(t, []readiness.Unit{
		{Name: "done.service", Presence: readiness.Present, ActiveState: "active", SubState: "exited", Result: "success", Ran: true},
		{Name: "failed.service", Presence: readiness.Present, ActiveState: "failed", SubState: "failed", Result: "exit-code", Ran: true},
		{Name: "net.target", Presence: readiness.Present, ActiveState: "active", SubState: "active"},
		{Name: "gone.service", Presence: readiness.Absent, ActiveState: "inactive", SubState: "dead"},
		{Name: "masked.service", Presence: readiness.Present, ActiveState: "inactive", SubState: "dead", Problem: "its load state is masked"},
		{Name: "odd.service", Problem: "systemd did not say whether there is such a unit"},
	}, waiting(t, root, names...).Network(t.Context()).Units)

	silent := waiting(t, root, "nobody-answers.service").Network(t.Context()).Units
	require.Len(t, silent, 1)
	require.Contains(t, silent[0].Problem, "systemd did not answer")
	require.Equal(t, readiness.Unknown, silent[0].Presence)
}

func TestUnitsOfAHostWithoutABusAreUnknown(t *testing.T) {
	root := layOut(t, nil)
	require.Empty(t, waiting(t, root).Network(t.Context()).Units, "nobody waits, and nobody is asked")
	units := waiting(t, root, "a.service", "b.service").Network(t.Context()).Units
	require.Len(t, units, 2)
	for i, name := range []string{"a.service", "b.service"} {
		require.Equal(t, name, units[i].Name)
		require.Equal(t, readiness.Unknown, units[i].Presence)
		require.Contains(t, units[i].Problem, "systemd could not be asked")
		require.NotContains(t, units[i].Problem, root, "paths are the host's")
	}
}

func TestWatchHearsUnitsThatAreWaitedFor(t *testing.T) {
	root := layOut(t, nil)
	b := startBus(t, root, map[string]map[string]any{"mine.service": {"LoadState": "loaded"}})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var count atomic.Int32
	var watching errgroup.Group
	h := waiting(t, root, "mine.service")
	watching.Go(func() error { return h.Watch(ctx, func() { count.Add(1) }) })
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, watching.Wait(), context.Canceled)
	})
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Contains(b.rules, "type='signal',path='/org/freedesktop/systemd1/unit/mine_2eservice',interface='org.freedesktop.DBus.Properties'")
	}, 5*time.Second, 10*time.Millisecond)
	before := count.Load()
	require.Eventually(t, func() bool { b.emit("mine.service"); return count.Load() > before+5 }, 20*time.Second, 10*time.Millisecond)
}
