package host

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
)

const (
	// settle is how long a burst of events is gathered after its first, which is told at once.
	settle = 20 * time.Millisecond
	// retryFirst and retryMost bound the wait before a watch that failed is tried again.
	retryFirst = time.Second
	retryMost  = time.Minute
	// rearm is how often the watches are compared with the host. Nothing tells of a link or a mount on the way to a directory
	// that leads elsewhere from now on.
	rearm = 2 * time.Second
)

// Watch calls notify whenever something that Network or Etcd looks at may have changed, at once and then at most every
// 20 ms, until ctx ends; it returns ctx's cause. A watch that fails is tried again, with growing waits: what it would have
// told, the caller's next look finds.
func (h *Host) Watch(ctx context.Context, notify func()) error {
	events := make(chan struct{}, 1)
	wake := func() {
		select {
		case events <- struct{}{}:
		default: // one is waiting already
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return h.again(ctx, "files", func(up func()) error { return h.watchFiles(ctx, wake, up) })
	})
	group.Go(func() error {
		return h.again(ctx, "shutdown", func(up func()) error { return h.watchShutdown(ctx, wake, up) })
	})
	group.Go(func() error { return h.again(ctx, "bus", func(up func()) error { return h.watchBus(ctx, wake, up) }) })
	group.Go(func() error { return pass(ctx, events, notify) })
	return group.Wait()
}

// pass calls notify at once for the first event, and once for all that come within the next moments.
func pass(ctx context.Context, events <-chan struct{}, notify func()) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-events:
		}
		notify()
		gather := time.NewTimer(settle)
		select {
		case <-ctx.Done():
			gather.Stop()
			return context.Cause(ctx)
		case <-gather.C:
		}
	}
}

// again runs a watch until ctx ends, and after a failure waits before it runs it once more. It logs when the watch
// begins to fail, when the reason changes and when it works again. The watch calls up when it works.
func (h *Host) again(ctx context.Context, what string, watch func(up func()) error) error {
	wait, last := retryFirst, ""
	up := func() {
		if last != "" {
			h.log.InfoContext(ctx, "watching again", "watch", what)
		}
		wait, last = retryFirst, ""
	}
	for {
		err := watch(up)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if reason := err.Error(); reason != last {
			last = reason
			level := slog.LevelWarn
			if absent(err) { // a host without a bus is a host like another
				level = slog.LevelInfo
			}
			h.log.Log(ctx, level, "watch does not work, looking at intervals until it does", "watch", what, "reason", reason)
		}
		pause := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		case <-pause.C:
		}
		wait = min(2*wait, retryMost)
	}
}

// watchFiles watches the targets, and in place of one that does not exist the nearest directory above it that does.
func (h *Host) watchFiles(ctx context.Context, wake, up func()) error {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }() // nothing to lose
	w := dirWatch{root: h.root, add: events.Add, remove: events.Remove, targets: h.targets, at: map[string]watched{}}
	if _, err = w.arm(); err != nil {
		return err
	}
	w.started = false
	up()
	wake() // what changed while nobody watched
	compare := time.NewTicker(rearm)
	defer compare.Stop()
	var later echo
	defer later.stop()
	for {
		mattered, moved := false, false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-events.Errors:
			wake() // too many events at once: some are lost
			return err
		case event := <-events.Events:
			mattered = w.matters(event.Name)
			w.started = w.starts(event)
			if mattered || w.mayMove(event) {
				moved, err = w.arm()
			}
		case <-later.C():
			later.next()
			mattered = true
		case <-h.traces.newFiles:
			_, err = w.arm() // a look has just been there
		case <-compare.C:
			moved, err = w.arm()
		}
		if w.started {
			w.started = false
			later.begin()
		}
		if moved || mattered || err != nil {
			wake()
		}
		if err != nil {
			return err
		}
	}
}
