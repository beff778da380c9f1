package hostfs

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newDirWatch(root, target string, add func(dir string) error) dirWatch {
	return dirWatch{
		root: Root(root), add: add, remove: func(string) error { return nil }, dirs: map[string]watchedDir{},
		targets: func() []Target { return []Target{{Dir: target}} },
	}
}

// A directory can disappear between the comparison that finds it and the watch on it, and
// reappear with the same inode. A test cannot time that, so here the first attempt to watch
// fails.
func TestUpdateRetriesAbsentDirectory(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "srv"), 0o755))
	events, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, events.Close()) })
	failures := 1
	w := newDirWatch(root, "/srv", func(dir string) error {
		if failures--; failures >= 0 {
			return &os.PathError{Op: "watch", Path: dir, Err: syscall.ENOENT}
		}
		return events.Add(dir)
	})
	w.remove = events.Remove
	changed, err := w.update()
	require.NoError(t, err)
	require.True(t, changed)
	require.NoError(t, os.WriteFile(filepath.Join(root, "srv/file"), nil, 0o644))
	select {
	case event := <-events.Events:
		require.True(t, w.isRelevant(event.Name))
	case <-time.After(5 * time.Second):
		require.Fail(t, "nothing is watched")
	}
}

// The operator may name the host's root by a link. A target that appears later is watched
// too.
func TestUpdateFollowsRootLink(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.Symlink("real", root))
	var added []string
	w := newDirWatch(root, "/srv/data", func(dir string) error { added = append(added, dir); return nil })
	_, err := w.update()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "srv/data"), 0o755))
	changed, err := w.update()
	require.NoError(t, err)
	require.True(t, changed)
	real, err := filepath.EvalSymlinks(root)
	require.NoError(t, err)
	require.Equal(t, []string{real, filepath.Join(real, "srv/data")}, added, "paths without links")
}

func TestUpdateReturnsWatchError(t *testing.T) {
	w := newDirWatch(t.TempDir(), "/", func(string) error { return syscall.ENOSPC })
	_, err := w.update()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Empty(t, w.dirs)
}

// TestWatchNotifiesOfNewTargets: a target may change between the read that found it and the watch
// on it.
func TestWatchNotifiesOfNewTargets(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "srv"), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var hasGrown atomic.Bool
	notified := 0
	err := Root(root).Watch(ctx, WatchOptions{
		Targets: func() []Target {
			if hasGrown.Load() {
				return []Target{{Dir: "/etc"}, {Dir: "/srv"}}
			}
			return []Target{{Dir: "/etc"}}
		},
		Ready: func() {},
		Notify: func() {
			switch notified++; notified {
			case 1:
				hasGrown.Store(true)
			case 2:
				cancel()
			}
		},
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, notified)
}

// TestUpdateEndsAtRemovedMount has a target on which a directory is mounted that was removed. The
// kernel's path for it leads nowhere, as long as the mount exists.
func TestUpdateEndsAtRemovedMount(t *testing.T) {
	root := t.TempDir()
	dir, source := filepath.Join(root, "srv"), filepath.Join(root, "source")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.MkdirAll(source, 0o755))
	if err := unix.Mount(source, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("SKIPPED: a removed mount is not tested, because this test may not mount: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	require.NoError(t, os.Remove(source))
	attempts := 0
	w := newDirWatch(root, "/srv", func(dir string) error {
		attempts++
		require.Less(t, attempts, 100, "the comparison ends")
		_, err := os.Stat(dir)
		return err
	})
	changed, err := w.update()
	require.NoError(t, err)
	require.False(t, changed)
	require.Positive(t, attempts)
}
