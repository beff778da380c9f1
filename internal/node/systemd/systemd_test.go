package systemd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestUnitFiles(t *testing.T) {
	const name = "etcd@blue.service"
	root := hostfs.Root(hosttest.New(t, hosttest.Files{
		"/etc/systemd/system/" + name:                    "x",
		"/etc/systemd/system/" + name + ".d/20.conf":     "x",
		"/usr/lib/systemd/system/" + name + ".d/20.conf": "hidden",
		"/usr/lib/systemd/system/" + name + ".d/10.conf": "x",
		"/usr/lib/systemd/system/" + name:                "weaker",
		"/etc/systemd/system/other.service":              "x",
		"/etc/systemd/system/etcd.service":               "weaker",
		"/run/systemd/generator.early/etcd.service":      "x",
	}))
	files, unread := UnitFiles(root, []string{"*etcd*.service"})
	require.Empty(t, unread)
	require.Equal(t, map[string][]string{
		name: {
			"/etc/systemd/system/" + name, "/usr/lib/systemd/system/" + name + ".d/10.conf",
			"/etc/systemd/system/" + name + ".d/20.conf",
		},
		"etcd.service": {"/run/systemd/generator.early/etcd.service"},
	}, files)
}

// TestUnitFilesOfInstances has an instance with etcd in its name, whose template has another one.
func TestUnitFilesOfInstances(t *testing.T) {
	const dir = "/etc/systemd/system/"
	root := hostfs.Root(hosttest.New(t, hosttest.Files{
		dir + "compose@.service": "x", dir + "getty@.service": "x",
		dir + "multi-user.target.wants/compose@etcd.service": "-> ../compose@.service",
		dir + "multi-user.target.wants/compose@web.service":  "-> ../compose@.service",
	}))
	files, unread := UnitFiles(root, []string{"*etcd*.service"})
	require.Empty(t, unread)
	require.Equal(t, map[string][]string{"compose@etcd.service": {dir + "compose@.service"}}, files)
}

func TestShutdownState(t *testing.T) {
	now := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	var m ShutdownMonitor
	facts := func(after time.Duration) (f readiness.Facts) { m.SetFacts(&f, now.Add(after)); return f }
	state := func(after time.Duration) string {
		s := facts(after)
		return map[[3]bool]string{
			{true, false, false}: "going down", {false, true, false}: "stays up", {false, false, true}: "pending", {}: "unknown",
		}[[3]bool{s.GoingDown, s.StaysUp, s.AwaitsLogind}]
	}
	m.setLost(now)
	require.Equal(t, "pending", state(0))
	m.setLost(now.Add(time.Second)) // keeps the first time
	require.Equal(t, "unknown", state(stateLifetime), "logind is not awaited without a limit")
	require.False(t, m.set(false))
	require.Equal(t, "stays up", state(0))
	require.False(t, facts(0).SawShutdown)
	require.True(t, m.set(true))
	require.False(t, m.set(true), "no change")
	require.Equal(t, "going down", state(time.Hour), "while connected")
	m.setLost(now)
	require.Equal(t, "going down", state(5*time.Minute), "the bus ends before the host, and units stop slowly")
	require.Equal(t, "going down", state(shutdownLifetime-time.Second), "systemd has not forced the end yet")
	require.Equal(t, "unknown", state(shutdownLifetime), "an unreported cancellation must not hold the node")
	m.set(false)
	require.True(t, facts(0).SawShutdown, "a shutdown that has begun, and was cancelled")
	m.setLost(now)
	require.Equal(t, "pending", state(stateLifetime-time.Second))
}

// A countingContext counts the functions that wait for its end.
type countingContext struct {
	done    chan struct{}
	waiting int
}

func (c *countingContext) Deadline() (deadline time.Time, ok bool) { return }
func (c *countingContext) Done() <-chan struct{}                   { return c.done }
func (c *countingContext) Err() error                              { return nil }
func (c *countingContext) Value(any) any                           { return nil }

func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.waiting++
	return func() bool { c.waiting--; return true }
}

// The agent calls Watch again and again on a host without a bus.
func TestWatchWithoutBus(t *testing.T) {
	m := NewShutdownMonitor(hostfs.Root(hosttest.New(t, nil)))
	ctx := &countingContext{done: make(chan struct{})}
	for range 3 {
		require.ErrorContains(t, m.Watch(ctx, nil, nil), "connecting to the system bus")
	}
	require.Zero(t, ctx.waiting)
}
