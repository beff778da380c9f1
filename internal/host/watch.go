package host

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
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

// target is a directory whose changes matter, as the host names it.
type target struct {
	dir string
	// names are patterns of the names that matter; all do if there are none.
	names []string
}

// targets are the directories that Network and Etcd look into. Directories and not files: a file that is replaced by
// renaming another over it takes the watch of the old one away with it.
func (h *Host) targets() []target {
	file := func(path string) target { return target{filepath.Dir(path), []string{filepath.Base(path)}} }
	all := []target{file(h.opts.SubnetFile), file(h.opts.Marker), file(busSocket)}
	for _, dir := range slices.Concat(h.opts.CNIConfDirs, h.opts.CNIBinDirs) {
		all = append(all, target{dir: dir})
	}
	units := serverUnits()
	for _, unit := range serverUnits() {
		units = append(units, unit+".d")
	}
	for _, dir := range unitDirs() {
		all = append(all, target{dir, units})
	}
	for _, l := range layouts() {
		for _, path := range slices.Concat(l.envFiles, l.manifests) {
			all = append(all, file(path))
		}
		for _, dir := range l.dataDirs {
			all = append(all, target{dir, []string{"member"}})
		}
	}
	return all
}

// watchFiles watches the targets, and in place of one that does not exist the nearest directory above it that does.
func (h *Host) watchFiles(ctx context.Context, wake, up func()) error {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }() // nothing to lose
	w := dirWatch{root: h.root, events: events, targets: h.targets(), at: map[string]watched{}}
	if _, err = w.arm(); err != nil {
		return err
	}
	up()
	wake() // what changed while nobody watched
	compare := time.NewTicker(rearm)
	defer compare.Stop()
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
			if mattered || w.mayMove(event) {
				moved, err = w.arm()
			}
		case <-compare.C:
			moved, err = w.arm()
		}
		if moved || mattered || err != nil {
			wake()
		}
		if err != nil {
			return err
		}
	}
}

// dirWatch keeps watches on the directories that stand for the targets.
type dirWatch struct {
	root    tree
	events  *fsnotify.Watcher
	targets []target
	// at are the directories watched now, by path without links.
	at map[string]watched
}

// watched is a directory with a watch, or that ought to have one.
type watched struct {
	// names are patterns of the names in it that matter.
	names []string
	// standIn says that it stands in for a target below that does not exist.
	standIn bool
	// device and inode say which directory it is: a watch stays with that, whatever is at its path later.
	device, inode uint64
}

// mayMove says whether the event may have made or taken away a directory on the way to a target.
func (w *dirWatch) mayMove(event fsnotify.Event) bool {
	if !event.Has(fsnotify.Create) && !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
		return false
	}
	if _, found := w.at[event.Name]; found { // another directory may be there now, and the watch is gone with the one that was
		_ = w.events.Remove(event.Name)
		delete(w.at, event.Name)
		return true
	}
	return w.at[filepath.Dir(event.Name)].standIn
}

// arm watches what ought to be watched now and says whether that changed. All that is to go goes first: two watches on one
// directory are one, under the name of the first.
func (w *dirWatch) arm() (changed bool, err error) {
	for {
		want := w.wanted()
		for dir, has := range w.at {
			if is, wanted := want[dir]; !wanted || is.device != has.device || is.inode != has.inode {
				_ = w.events.Remove(dir) // it may be gone, and its watch with it
				delete(w.at, dir)
				changed = true
			}
		}
		added := false
		for dir, is := range want {
			if _, has := w.at[dir]; !has {
				err := w.events.Add(dir)
				added, changed = true, true
				if absent(err) {
					continue
				}
				if err != nil {
					return true, fmt.Errorf("watching %s: %w", dir, plain(err))
				}
			}
			w.at[dir] = is
		}
		if !added {
			return changed, nil
		} // else look again: something may have been made before the watch was there
	}
}

// wanted are the directories to watch for the targets as the host is now.
func (w *dirWatch) wanted() map[string]watched {
	at := map[string]watched{}
	for _, t := range w.targets {
		dir, info, exists := nearest(w.root, t.dir)
		if info == nil {
			continue // not even the host's root can be looked at
		}
		is := at[dir]
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			is.device, is.inode = stat.Dev, stat.Ino
		}
		switch {
		case !exists:
			is.standIn = true
		case len(t.names) == 0:
			is.names = append(is.names, "*")
		default:
			is.names = append(is.names, t.names...)
		}
		at[dir] = is
	}
	return at
}

// matters says whether a path with an event is one of those that are looked at.
func (w *dirWatch) matters(path string) bool {
	return matchesAny(w.at[filepath.Dir(path)].names, filepath.Base(path)) || len(w.at[path].names) > 0
}

// nearest returns the directory to watch for dir: itself, or the nearest one above it that exists. What cannot be
// followed is watched as far as it can be.
func nearest(root tree, dir string) (at string, info fs.FileInfo, exists bool) {
	for above := dir; ; above = filepath.Dir(above) {
		if at, err := root.locate(above); err == nil {
			at, err = filepath.EvalSymlinks(at) // in the agent's own root they are left in place
			if info, statErr := os.Lstat(at); err == nil && statErr == nil && info.IsDir() {
				return at, info, above == dir
			}
		}
		if above == "/" || above == "." {
			return string(root), nil, false
		}
	}
}
