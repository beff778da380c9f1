package host

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/internal/systemd"
)

const (
	// gatherTime is how long events are gathered after the first of a burst, which is
	// reported at once.
	gatherTime = 20 * time.Millisecond
	// minRetryWait and maxRetryWait bound the wait before a failed watch is tried again.
	minRetryWait = time.Second
	maxRetryWait = time.Minute
)

// Watch calls notify whenever the results of Network or Etcd may have changed, at once and
// then at most every 20 ms. It runs until ctx ends, and returns the cause. A watch that fails
// is tried again with growing waits. The caller must also read the host at intervals, to see
// changes meanwhile.
func (h *Host) Watch(ctx context.Context, notify func()) error {
	events := make(chan struct{}, 1)
	wake := func() {
		select {
		case events <- struct{}{}:
		default: // an event is waiting already
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	retry := func(name string, watch func(ready func()) error) {
		group.Go(func() error { return h.retry(ctx, name, watch) })
	}
	retry("files", func(ready func()) error {
		_, grown := h.etcd.Targets()
		return h.root.Watch(ctx, h.targets, grown, wake, ready)
	})
	retry("shutdown", func(ready func()) error { return h.shutdown.Watch(ctx, wake, ready) })
	retry("bus", func(ready func()) error {
		_, grown := h.etcd.Units()
		return systemd.WatchUnits(ctx, h.root, h.units, grown, wake, ready)
	})
	group.Go(func() error { return gather(ctx, events, notify) })
	return group.Wait()
}

func (h *Host) targets() []hostfs.Target {
	targets, _ := h.etcd.Targets()
	return slices.Concat(h.network.Targets(), targets)
}

func (h *Host) units() []string {
	units, _ := h.etcd.Units()
	return slices.Concat(units, h.network.Units)
}

// gather calls notify at once for the first event, and once for all events in the next
// gatherTime.
func gather(ctx context.Context, events <-chan struct{}, notify func()) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-events:
		}
		notify()
		wait := time.NewTimer(gatherTime)
		select {
		case <-ctx.Done():
			wait.Stop()
			return context.Cause(ctx)
		case <-wait.C:
		}
	}
}

// retry runs a watch until ctx ends, and waits after each failure. It logs when the watch
// begins to fail, when the reason changes, and when it works again, which the watch reports
// by calling ready.
func (h *Host) retry(ctx context.Context, name string, watch func(ready func()) error) error {
	wait, last := minRetryWait, ""
	ready := func() {
		if last != "" {
			h.log.InfoContext(ctx, "watch recovered", "watch", name)
		}
		wait, last = minRetryWait, ""
	}
	for {
		err := watch(ready)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if reason := err.Error(); reason != last {
			last = reason
			level := slog.LevelWarn
			if hostfs.IsAbsent(err) { // a host without a bus
				level = slog.LevelInfo
			}
			h.log.Log(ctx, level, "watch failed; polling until it recovers", "watch", name, "reason", reason)
		}
		if err := loop.Wait(ctx, wait/2+rand.N(wait), nil); err != nil {
			return err
		}
		wait = min(2*wait, maxRetryWait)
	}
}
