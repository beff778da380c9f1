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
	at, found := map[string]watched{}, map[string]spot{}
	for _, t := range w.targets() {
		near := nearest(w.root, t.dir, found)
		if near.info == nil {
			continue // not even the host's root can be looked at
		}
		dir := near.at
		is := at[dir]
		if stat, ok := near.info.Sys().(*syscall.Stat_t); ok {
			is.device, is.inode = stat.Dev, stat.Ino
		}
		switch {
		case !near.exists:
			is.standIn = true
		case len(t.names) == 0:
			is.names = append(is.names, "*")
		default:
			is.names = append(is.names, t.names...)
		}
		if near.exists {
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

// spot is a directory to watch, and whether it is the one that was asked for.
type spot struct {
	at     string
	info   fs.FileInfo
	exists bool
}

// nearest returns the directory to watch for dir: itself, or the nearest one above it that exists. What cannot be
// followed is watched as far as it can be. Most targets are not there and have the ways to them in common, and this is done
// every few seconds on every node: found keeps what was found before, for one look.
func nearest(root tree, dir string, found map[string]spot) spot {
	if known, done := found[dir]; done {
		return known
	}
	near := open(root, dir)
	switch {
	case near.info != nil:
	case dir == "/" || dir == ".":
		near.at = string(root)
	default:
		near = nearest(root, filepath.Dir(dir), found)
		near.exists = false
	}
	found[dir] = near
	return near
}

// open looks at one directory. Without one there is no info.
func open(root tree, dir string) spot {
	at, err := root.locate(dir)
	if err == nil && root == "/" { // there, links are left in place
		at, err = filepath.EvalSymlinks(at)
	}
	if err != nil {
		return spot{}
	}
	look := os.Lstat
	if at == string(root) { // which may be a link itself
		look = os.Stat
	}
	info, err := look(at)
	if err != nil || !info.IsDir() {
		return spot{}
	}
	return spot{at, info, true}
}
