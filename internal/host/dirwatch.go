package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// dirWatch keeps watches on the directories that stand for the targets.
type dirWatch struct {
	root tree
	// add and remove are fsnotify's.
	add, remove func(dir string) error
	targets     func() []target
	// at are the directories watched now, by path without links.
	at map[string]watched
	// started says that a directory came to be watched in which starts are seen: what is in it by then was started.
	started bool
}

// watched is a directory with a watch, or that ought to have one.
type watched struct {
	// names are patterns of the names in it that matter.
	names []string
	// starts are patterns of those that tell that a server is about to run.
	starts []string
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
		_ = w.remove(event.Name)
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
				_ = w.remove(dir) // it may be gone, and its watch with it
				delete(w.at, dir)
				changed = true
			}
		}
		added := false
		for dir, is := range want {
			if _, has := w.at[dir]; !has {
				err := w.add(dir)
				added, changed = true, true
				if absent(err) {
					continue
				}
				if err != nil {
					return true, fmt.Errorf("watching %s: %w", dir, plain(err))
				}
				w.started = w.started || len(is.starts) > 0
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
	for _, t := range w.targets() {
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
		if exists {
			is.starts = append(is.starts, t.starts...)
		}
		at[dir] = is
	}
	return at
}

// matters says whether a path with an event is one of those that are looked at.
func (w *dirWatch) matters(path string) bool {
	return matchesAny(w.at[filepath.Dir(path)].names, filepath.Base(path)) || len(w.at[path].names) > 0
}

// starts says whether an event tells that a server is about to run.
func (w *dirWatch) starts(event fsnotify.Event) bool {
	return event.Has(fsnotify.Create) && matchesAny(w.at[filepath.Dir(event.Name)].starts, filepath.Base(event.Name))
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
