package datasearch

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

const segment = "/0000000000000000-0000000000000000.wal"

func newSearch(root string, limits Limits) *Search {
	if limits.MaxTime == 0 {
		limits.MaxTime = time.Minute
	}
	if limits.MaxDirectories == 0 {
		limits.MaxDirectories = 1000
	}
	return New(hostfs.Root(root), limits, discardLog())
}

func TestSearch(t *testing.T) {
	const volume = "pvc-0b5a1c0e-7d6f-4b7e-9c54-0f4a3d2e1b00"
	for name, c := range map[string]struct {
		files hosttest.Files
		want  []string
	}{
		"empty":          {nil, nil},
		"data directory": {hosttest.Files{"/srv/x/member/wal" + segment: "x"}, []string{"/srv/x/member/wal"}},
		"two segments": {
			hosttest.Files{"/srv/wal" + segment: "x", "/srv/wal/0000000000000001-00000000000000ff.wal": "x"},
			[]string{"/srv/wal"},
		},
		"two directories": {
			hosttest.Files{"/srv/wal" + segment: "x", "/data/a/member/wal" + segment: "x"},
			[]string{"/data/a/member/wal", "/srv/wal"},
		},
		"below a log": {
			hosttest.Files{"/w" + segment: "x", "/w/copy" + segment: "x"}, []string{"/w", "/w/copy"},
		},
		"line break": {hosttest.Files{"/a\nb" + segment: "x"}, []string{"/a\nb"}},
		"docker volume": {
			hosttest.Files{"/var/lib/docker/volumes/v/_data" + segment: "x"},
			[]string{"/var/lib/docker/volumes/v/_data"},
		},
		"podman volume": {
			hosttest.Files{"/home/a/.local/share/containers/storage/volumes/v" + segment: "x"},
			[]string{"/home/a/.local/share/containers/storage/volumes/v"},
		},
		"link": {hosttest.Files{"/a/link": "-> ../b", "/b/x": "x"}, nil},
		"other names": {
			hosttest.Files{"/a/0.tmp": "x", "/a/0000000000000000-000000000000000G.wal": "x", "/a/000000001.wal": "x"}, nil,
		},
		"docker's layers": {hosttest.Files{"/data/docker/overlay2/1/diff" + segment: "x"}, nil},
		"containerd's":    {hosttest.Files{"/x/io.containerd.snapshotter.v1.overlayfs/1/fs" + segment: "x"}, nil},
		"podman's layers": {hosttest.Files{"/var/lib/containers/storage/overlay/1/diff" + segment: "x"}, nil},
		"volumes of pods": {hosttest.Files{"/var/lib/kubelet/pods/1/volumes" + segment: "x"}, nil},
		"provisioned": {hosttest.Files{
			"/opt/local-path/" + volume + "_default_x" + segment: "x", "/srv/microk8s/default-x-" + volume + segment: "x",
		}, nil},
		"installed": {hosttest.Files{"/nix/store/x" + segment: "x", "/sysroot/x" + segment: "x"}, nil},
		"named like one": {
			hosttest.Files{
				"/srv/nix/store" + segment: "x", "/srv/pods" + segment: "x", "/srv/mounts" + segment: "x",
				"/srv/docker/containers/etcd" + segment: "x", "/srv/docker/image/etcd" + segment: "x",
			},
			[]string{
				"/srv/docker/containers/etcd", "/srv/docker/image/etcd", "/srv/mounts", "/srv/nix/store", "/srv/pods",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := newSearch(hosttest.New(t, c.files), Limits{}).Once(t.Context())
			require.Empty(t, result.Incomplete)
			require.Equal(t, c.want, result.LogDirs)
		})
	}
}

func TestContainerDirs(t *testing.T) {
	result := newSearch(hosttest.New(t, hosttest.Files{
		"/data/docker/containers/1/x": "x", "/srv/containers/1/x": "x", "/srv/storage/x": "x",
		"/var/lib/docker/containers/1/config.v2.json": "x",
		"/data/engine/containers/1/config.v2.json":    "x", "/data/engine/containers/2/config.v2.json": "x",
		"/home/a/.local/share/containers/storage/overlay-containers/1/x": "x",
	}), Limits{}).Once(t.Context())
	require.ElementsMatch(t, []string{
		"/var/lib/docker/containers", "/data/engine/containers", "/home/a/.local/share/containers/storage/overlay-containers",
	}, result.ContainerDirs)
}

func TestIncompleteSearch(t *testing.T) {
	files := hosttest.Files{"/a/b/c/d" + segment: "x"}
	deep := hosttest.Files{strings.Repeat("/d", maxDepth+1) + "/x": "x"}
	many, engines := hosttest.Files{}, hosttest.Files{}
	for _, a := range "abcdefghijklmnopq" {
		for _, b := range "abcdefghijklmnopq" {
			many["/"+string(a)+"/"+string(b)+segment] = "x"
			engines["/"+string(a)+"/"+string(b)+"/containers/1/config.v2.json"] = "x"
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		files  hosttest.Files
		limits Limits
		want   string
	}{
		"directories": {
			files,
			Limits{MaxDirectories: 3},
			"it ended after 3 directories, which is its limit (--data-search-max-directories)",
		},
		"time": {
			files,
			Limits{MaxTime: time.Nanosecond},
			"it ended after 1ns, which is its limit (--data-search-max-time)",
		},
		"depth": {
			deep,
			Limits{},
			"a directory could not be read, " + strings.Repeat("/d", maxDepth+1) + ": it is too deep",
		},
		"logs":       {many, Limits{}, "it ended after 256 directories with a log of etcd"},
		"containers": {engines, Limits{}, "it ended after 256 directories with the containers of an engine"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSearch(hosttest.New(t, c.files), c.limits)
			require.Equal(t, c.want, s.Once(t.Context()).Incomplete)
			require.Equal(t, c.want, s.Once(t.Context()).Incomplete, "the next search begins again")
			before, _ := s.Latest()
			s.Once(ended)
			after, _ := s.Latest()
			require.Equal(t, before, after, "a search that was cut short is no result")
		})
	}
}

// TestMountedFile has a mount that is no directory, as each container has in /etc.
func TestMountedFile(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/etc/hostname": "x"})
	w := &walker{root: hostfs.Root(root), maxDirectories: 10}
	w.walkMounts(t.Context(), []mount{{dir: filepath.Join(root, "etc/hostname")}})
	require.Empty(t, w.incomplete())
}

// TestUnknownKind has a file system that does not tell the kinds of its entries.
func TestUnknownKind(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/a/wal" + segment: "x", "/a/file": "x", "/a/link": hosttest.Loop})
	dir := filepath.Join(root, "a")
	open, err := os.Open(dir)
	require.NoError(t, err)
	defer func() { _ = open.Close() }() // nothing was written
	w := &walker{root: hostfs.Root(root), maxDirectories: 10}
	enter := func(parent int, names ...string) {
		for _, name := range names {
			if e := (dirent{name: []byte(name), kind: unix.DT_UNKNOWN}); e.mayBeDir() {
				w.enter(t.Context(), parent, dir, name, 0)
			}
		}
	}
	enter(int(open.Fd()), ".", "..", "file", "link", "gone", "wal")
	require.Equal(t, []string{"/a/wal"}, w.LogDirs)
	require.Empty(t, w.incomplete())
	enter(-1, "x")
	require.Contains(t, w.incomplete(), "/a/x: bad file descriptor")
}

// TestKeptResult checks that a search that ends early forgets nothing.
func TestKeptResult(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/a/b/c/d" + segment: "x"})
	s := newSearch(root, Limits{})
	require.Len(t, s.Once(t.Context()).LogDirs, 1)
	s.limits.MaxDirectories = 1
	require.Equal(t, []string{"/a/b/c/d"}, s.Once(t.Context()).LogDirs)
	s.limits.MaxDirectories = 1000
	hosttest.Remove(t, root, "/a")
	require.Empty(t, s.Once(t.Context()).LogDirs)
}

// TestRun checks when searches begin.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := hosttest.New(t, nil)
		s := newSearch(root, Limits{Interval: 6 * time.Hour})
		_, isPending := s.Latest()
		require.True(t, isPending, "no search has ended")
		ctx, cancel := context.WithCancel(t.Context())
		var searches atomic.Int32
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, func() { searches.Add(1) }) }()
		after := func(d time.Duration, want int) {
			t.Helper()
			require.NoError(t, loop.Wait(ctx, d, nil))
			synctest.Wait()
			require.EqualValues(t, want, searches.Load())
		}
		after(time.Second, 1)
		_, isPending = s.Latest()
		require.False(t, isPending)
		s.Wake()
		after(5*time.Minute, 1)
		after(7*time.Minute, 2)
		hosttest.Add(t, root, hosttest.Files{"/srv" + segment: "x"})
		after(5*time.Hour+50*time.Minute, 2)
		after(15*time.Minute, 3)
		result, _ := s.Latest()
		require.Equal(t, []string{"/srv"}, result.LogDirs)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// TestPaceOfLaterSearch checks that a search does not pause for what its thread has done before.
func TestPaceOfLaterSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s := newSearch(hosttest.New(t, hosttest.Files{"/a/b/file": "x"}), Limits{})
		for begin := threadCPU(); threadCPU() < begin+100*time.Millisecond; {
			continue
		}
		mounts := ReadMounts(s.root)
		require.Less(t, s.search(t.Context(), mounts, mounts.searched(), true).Took, 200*time.Millisecond)
	})
}

func TestNoSearches(t *testing.T) {
	s := newSearch(hosttest.New(t, nil), Limits{})
	_, isPending := s.Latest()
	require.False(t, isPending)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Run(ctx, func() { t.Error("it searched") }), context.Canceled)
}

// TestOpen checks that a directory is opened with each of the kernel's refusals.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	parent, err := os.Open(dir)
	require.NoError(t, err)
	defer func() { _ = parent.Close() }() // nothing was written
	for _, w := range []*walker{
		{}, {recordsAccess: true}, {hasNoOpenat2: true}, {recordsAccess: true, hasNoOpenat2: true},
	} {
		fd, err := w.open(int(parent.Fd()), "a")
		require.NoError(t, err)
		require.NoError(t, os.NewFile(uintptr(fd), "a").Close())
		_, err = w.open(int(parent.Fd()), "b")
		require.True(t, hostfs.IsAbsent(err))
	}
}

// TestNewMount mounts a file system after the first search. It is searched soon, and it alone, but
// not if a login of a user mounted it. Container engines mount one for each container.
func TestNewMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := hosttest.New(t, hosttest.Files{"/srv" + segment: "x", "/run/user/1000/x": "x", "/mnt/x": "x"})
		s := newSearch(root, Limits{Interval: 6 * time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, func() {}) }()
		after := func(d time.Duration) Result {
			require.NoError(t, loop.Wait(ctx, d, nil))
			synctest.Wait()
			result, _ := s.Latest()
			return result
		}
		require.Equal(t, []string{"/srv"}, after(time.Second).LogDirs)
		for _, c := range []struct {
			dir   string
			files hosttest.Files
			want  []string
		}{
			{"/run/user/1000", hosttest.Files{"/run/user/1000" + segment: "x", "/new" + segment: "x"}, []string{"/srv"}},
			{"/mnt", hosttest.Files{"/mnt" + segment: "x"}, []string{"/mnt", "/srv"}},
		} {
			dir := filepath.Join(root, c.dir)
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				cancel()
				t.Skipf("SKIPPED: a new mount is not tested, because this test may not mount: %v", err)
			}
			defer func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
			hosttest.Add(t, root, c.files)
			require.Equal(t, c.want, after(2*time.Minute).LogDirs)
		}
		s.Wake()
		require.Equal(t, []string{"/mnt", "/new", "/srv"}, after(minGap).LogDirs, "all is searched again")
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// TestKeptGaps checks that a search of a new mount forgets nothing and fills no other gap.
func TestKeptGaps(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/a/b/c/d" + segment: "x", "/mnt" + segment: "x"})
	s := newSearch(root, Limits{MaxDirectories: 1})
	incomplete := s.Once(t.Context()).Incomplete
	require.NotEmpty(t, incomplete)
	mounts := newMounts(hostfs.Root(root), []mount{
		{"/", "ext4", "8:1", "/"}, {filepath.Join(root, "mnt"), "ext4", "8:2", "/"},
	})
	part := s.search(t.Context(), mounts, mounts.searched()[1:], false)
	require.Equal(t, []string{"/mnt"}, part.LogDirs)
	require.Equal(t, incomplete, part.Incomplete)
	s.limits.MaxDirectories = 1000
	require.Empty(t, s.Once(t.Context()).Incomplete)
}
