package hostfs

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
}

// FileTarget returns the target for one file.
func FileTarget(name string) Target {
	return Target{Dir: filepath.Dir(name), Names: []string{filepath.Base(name)}}
}

// WatchOptions are what to watch, and whom to call.
type WatchOptions struct {
	Targets func() []Target
	// Delays are the times after which Notify is called again when a name has appeared, because that
	// may begin something that takes a while, such as the start of a server. Each begins when the one
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
	o.Ready()
	o.Notify() // for changes before the watch began
	compare := time.NewTicker(compareInterval)
	defer compare.Stop()
	var delays []time.Duration // after the present one
	var delayed <-chan time.Time
	for {
		relevant, appeared, moved := false, false, false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-events.Errors:
			o.Notify() // the queue overflowed, and events are lost
			return err
		case event := <-events.Events:
			if relevant = w.isRelevant(event.Name); relevant {
				appeared = event.Has(fsnotify.Create)
				moved, err = w.updateAfter(event)
			}
		case <-delayed:
			relevant, delayed = true, nil
		case <-compare.C:
			moved, err = w.update()
		}
		if appeared || moved {
			delays, delayed = o.Delays, nil
		}
		if delayed == nil && len(delays) > 0 {
			delays, delayed = delays[1:], time.After(delays[0])
		}
		if moved || relevant || err != nil {
			o.Notify()
		}
		if err != nil {
			return err
		}
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
}

// A watchedDir is a directory that is watched, or that should be.
type watchedDir struct {
	// names are patterns of the names in it that matter: those of targets, and what is missing on the
	// path to a target.
	names []string
	// info identifies the directory. A watch stays with the inode, whatever directory is at its path
	// later.
	info fs.FileInfo
}

// updateAfter is update after an event. The path of a watched directory may hold another one, which
// has no watch.
func (w *dirWatch) updateAfter(event fsnotify.Event) (changed bool, err error) {
	if event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename) {
		_ = w.remove(event.Name) // fails if it is not watched
		delete(w.dirs, event.Name)
	}
	return w.update()
}

// update adds and removes watches to match the host and reports whether any changed. It
// removes before it adds: two watches on one directory are one watch, with the name of the
// first.
//
// A directory that has no path, as a mount of a directory that was removed, is not watched.
func (w *dirWatch) update() (changed bool, err error) {
	for range maxTries {
		want := w.wantedDirs()
		for dir, has := range w.dirs {
			if is, wanted := want[dir]; !wanted || !os.SameFile(is.info, has.info) {
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
				changed = true
				if err != nil {
					return true, fmt.Errorf("watching %s: %w", dir, Reason(err))
				}
			}
			w.dirs[dir] = is
		}
		if !added {
			break
		} // else compare again: a directory may have appeared before the watch was added
	}
	return changed, nil
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
		is.info = near.info
		switch {
		case near.missing != "":
			is.names = append(is.names, near.missing)
		case len(t.Names) == 0:
			is.names = append(is.names, "*")
		default:
			is.names = append(is.names, t.Names...)
		}
		dirs[near.at] = is
	}
	return dirs
}

// isRelevant reports whether the path of an event belongs to a target.
func (w *dirWatch) isRelevant(path string) bool {
	return MatchesAny(w.dirs[filepath.Dir(path)].names, filepath.Base(path)) || len(w.dirs[path].names) > 0
}

// A watchPoint is a directory to watch. If it is an ancestor of the wanted one, missing is what
// does not exist in it.
type watchPoint struct {
	at      string
	info    fs.FileInfo
	missing string
}

// nearestDir returns the directory to watch for dir: dir itself, or its nearest ancestor that
// exists and can be resolved. Most targets do not exist and share their ancestors, and every
// node compares its watches every few seconds: found caches the results of one comparison.
func nearestDir(root Root, dir string, found map[string]watchPoint) watchPoint {
	if known, done := found[dir]; done {
		return known
	}
	near := statDir(root, dir)
	if near.info == nil && dir != "/" && dir != "." {
		near = nearestDir(root, filepath.Dir(dir), found)
		near.missing = cmp.Or(near.missing, filepath.Base(dir))
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
	return watchPoint{at: at, info: info}
}
