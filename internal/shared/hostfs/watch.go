package hostfs

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// compareInterval is how often the watches are compared with the host. inotify reports nothing if
// a link or mount on the path to a watched directory changes.
const compareInterval = 2 * time.Second

// A Target is a directory of the host whose changes matter. Targets are directories and not
// files: when a file is replaced by renaming another one over it, a watch on the old file is
// lost.
type Target struct {
	Dir string
	// Names are patterns of the names that matter. Without patterns, all names do.
	Names []string
	// Starts are patterns of the names whose creation begins something that takes a while, such as
	// the start of a server. A new name is followed by delayed notifications.
	Starts []string
}

// FileTarget returns the target for one file.
func FileTarget(name string) Target {
	return Target{Dir: filepath.Dir(name), Names: []string{filepath.Base(name)}}
}

// WatchOptions are what to watch, and whom to call.
type WatchOptions struct {
	Targets func() []Target
	// Grown receives a value when Targets returns more than before.
	Grown <-chan struct{}
	// Delays are the times after a start at which Notify is called again. Each begins when the one
	// before has ended.
	Delays []time.Duration
	// Notify is called whenever a target may have changed.
	Notify func()
	// Ready is called once the watch has begun.
	Ready func()
}

// Watch watches the targets until ctx ends or the watch fails. If a target does not exist, Watch
// watches the nearest existing directory above it.
func (r Root) Watch(ctx context.Context, o WatchOptions) error {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }() // nothing to lose
	w := dirWatch{root: r, add: events.Add, remove: events.Remove, targets: o.Targets, dirs: map[string]watchedDir{}}
	if _, err = w.update(); err != nil {
		return err
	}
	w.started = false
	o.Ready()
	o.Notify() // for changes before the watch began
	compare := time.NewTicker(compareInterval)
	defer compare.Stop()
	later := delayedNotify{delays: o.Delays}
	defer later.stop()
	for {
		relevant, moved := false, false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-events.Errors:
			o.Notify() // the queue overflowed, and events are lost
			return err
		case event := <-events.Events:
			relevant = w.isRelevant(event.Name)
			w.started = w.isStart(event)
			if relevant || w.removeMovedWatch(event) {
				moved, err = w.update()
			}
		case <-later.C():
			later.next()
			relevant = true
		case <-o.Grown:
			_, err = w.update() // the caller has just read the new targets
		case <-compare.C:
			moved, err = w.update()
		}
		if w.started {
			w.started = false
			later.begin()
		}
		if moved || relevant || err != nil {
			o.Notify()
		}
		if err != nil {
			return err
		}
	}
}

// A delayedNotify schedules more notifications after a start.
type delayedNotify struct {
	delays []time.Duration
	timer  *time.Timer
	rest   []time.Duration
}

// C returns the channel of the next notification. It blocks if none is scheduled.
func (d *delayedNotify) C() <-chan time.Time {
	if d.timer == nil {
		return nil
	}
	return d.timer.C
}

// begin schedules the notifications after the latest start.
func (d *delayedNotify) begin() {
	d.stop()
	d.rest = d.delays
	d.next()
}

func (d *delayedNotify) next() {
	if len(d.rest) == 0 {
		d.timer = nil
		return
	}
	d.timer, d.rest = time.NewTimer(d.rest[0]), d.rest[1:]
}

func (d *delayedNotify) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// A dirWatch keeps inotify watches on the directories of the targets.
type dirWatch struct {
	root Root
	// add and remove are the methods of fsnotify.Watcher.
	add, remove func(dir string) error
	targets     func() []Target
	// dirs are the watched directories by path without links.
	dirs map[string]watchedDir
	// started is true if a new watch covers a directory in which starts are visible.
	// Everything in the directory has started before that.
	started bool
}

// A watchedDir is a directory that is watched, or that should be.
type watchedDir struct {
	// names are patterns of the names in it that matter.
	names []string
	// starts are those of the targets.
	starts []string
	// isAncestor is set for a directory above a target that does not exist.
	isAncestor bool
	// device and inode identify the directory. A watch stays with the inode, whatever
	// directory is at its path later.
	device, inode uint64
}

// removeMovedWatch reports whether the event may have created or removed a directory on the path to
// a target. It removes the watch of such a directory.
func (w *dirWatch) removeMovedWatch(event fsnotify.Event) bool {
	if !event.Has(fsnotify.Create) && !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
		return false
	}
	// The path may hold another directory, which has no watch.
	if _, found := w.dirs[event.Name]; found {
		_ = w.remove(event.Name)
		delete(w.dirs, event.Name)
		return true
	}
	return w.dirs[filepath.Dir(event.Name)].isAncestor
}

// update adds and removes watches to match the host and reports whether any changed. It
// removes before it adds: two watches on one directory are one watch, with the name of the
// first.
func (w *dirWatch) update() (changed bool, err error) {
	for try := 0; ; try++ {
		want := w.wantedDirs()
		for dir, has := range w.dirs {
			if is, wanted := want[dir]; !wanted || is.device != has.device || is.inode != has.inode {
				_ = w.remove(dir) // fails if the directory is gone, and its watch with it
				delete(w.dirs, dir)
				changed = true
			}
		}
		added := false
		for dir, is := range want {
			if _, has := w.dirs[dir]; !has {
				err := w.add(dir)
				added = true
				if IsAbsent(err) {
					continue
				}
				if changed = true; err != nil {
					return true, fmt.Errorf("watching %s: %w", dir, Reason(err))
				}
				w.started = w.started || len(is.starts) > 0
			}
			w.dirs[dir] = is
		}
		if !added || try == maxTries {
			return changed, nil
		} // else compare again: a directory may have appeared before the watch was added
	}
}

// wantedDirs returns the directories to watch for the targets on the host as it is now.
func (w *dirWatch) wantedDirs() map[string]watchedDir {
	dirs, found := map[string]watchedDir{}, map[string]watchPoint{}
	for _, t := range w.targets() {
		near := nearestDir(w.root, t.Dir, found)
		if near.info == nil {
			continue // even the host's root cannot be read
		}
		is := dirs[near.at]
		if stat, ok := near.info.Sys().(*syscall.Stat_t); ok {
			is.device, is.inode = stat.Dev, stat.Ino
		}
		switch {
		case !near.exists:
			is.isAncestor = true
		case len(t.Names) == 0:
			is.names = append(is.names, "*")
		default:
			is.names = append(is.names, t.Names...)
		}
		if near.exists {
			is.starts = append(is.starts, t.Starts...)
		}
		dirs[near.at] = is
	}
	return dirs
}

// isRelevant reports whether the path of an event belongs to a target.
func (w *dirWatch) isRelevant(path string) bool {
	return MatchesAny(w.dirs[filepath.Dir(path)].names, filepath.Base(path)) || len(w.dirs[path].names) > 0
}

// isStart reports whether an event created a name that is a start.
func (w *dirWatch) isStart(event fsnotify.Event) bool {
	starts := w.dirs[filepath.Dir(event.Name)].starts
	return event.Has(fsnotify.Create) && MatchesAny(starts, filepath.Base(event.Name))
}

// A watchPoint is a directory to watch. exists is false if it is an ancestor of the wanted
// one.
type watchPoint struct {
	at     string
	info   fs.FileInfo
	exists bool
}

// nearestDir returns the directory to watch for dir: dir itself, or its nearest ancestor that
// exists and can be resolved. Most targets do not exist and share their ancestors, and every
// node compares its watches every few seconds: found caches the results of one comparison.
func nearestDir(root Root, dir string, found map[string]watchPoint) watchPoint {
	if known, done := found[dir]; done {
		return known
	}
	near := statDir(root, dir)
	switch {
	case near.info != nil:
	case dir == "/" || dir == ".":
		near.at = string(root)
	default:
		near = nearestDir(root, filepath.Dir(dir), found)
		near.exists = false
	}
	found[dir] = near
	return near
}

// statDir returns the watch point for one directory. Its info is nil if there is no such
// directory.
func statDir(root Root, dir string) watchPoint {
	f, err := root.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return watchPoint{}
	}
	defer func() { _ = f.Close() }() // nothing was written
	// The kernel's path for the directory has no links. If it is gone, so is the directory.
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return watchPoint{}
	}
	info, err := f.Stat()
	if err != nil {
		return watchPoint{}
	}
	return watchPoint{at, info, true}
}
