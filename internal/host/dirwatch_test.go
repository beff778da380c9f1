package host

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
)

// A directory may go between the look that finds it and the watch on it, and come back as what it was before: the same
// inode. That cannot be timed, so the first attempt to watch fails here by order.
func TestAWatchThatFailedIsTriedAgain(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "srv"), 0o755))
	events, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, events.Close()) })
	failures := 1
	w := dirWatch{
		root: tree(root), remove: events.Remove, at: map[string]watched{},
		targets: func() []target { return []target{{dir: "/srv"}} },
		add: func(dir string) error {
			if failures--; failures >= 0 {
				return &os.PathError{Op: "watch", Path: dir, Err: syscall.ENOENT}
			}
			return events.Add(dir)
		},
	}
	changed, err := w.arm()
	require.NoError(t, err)
	require.True(t, changed)
	require.NoError(t, os.WriteFile(filepath.Join(root, "srv/file"), nil, 0o644))
	select {
	case event := <-events.Events:
		require.True(t, w.matters(event.Name))
	case <-time.After(5 * time.Second):
		require.Fail(t, "nothing is watched")
	}
}

// Somebody may name the host's root by a link. What is not there yet is seen to come all the same.
func TestTheRootIsALink(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.Symlink("real", root))
	var added []string
	w := dirWatch{
		root: tree(root), remove: func(string) error { return nil }, at: map[string]watched{},
		targets: func() []target { return []target{{dir: "/srv/data"}} },
		add:     func(dir string) error { added = append(added, dir); return nil },
	}
	_, err := w.arm()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "srv/data"), 0o755))
	changed, err := w.arm()
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []string{root, filepath.Join(root, "srv/data")}, added)
}

func TestAWatchThatCannotBeIsTold(t *testing.T) {
	w := dirWatch{
		root: tree(t.TempDir()), remove: func(string) error { return nil }, at: map[string]watched{},
		targets: func() []target { return []target{{dir: "/"}} },
		add:     func(string) error { return syscall.ENOSPC },
	}
	_, err := w.arm()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Empty(t, w.at)
}
