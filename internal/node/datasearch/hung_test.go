package datasearch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestHungMount searches a host on which a file system hangs: its server never answers, so every
// access to it waits, as with NFS whose server is gone.
func TestHungMount(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/mnt/hung/x": "x", "/srv/etcd/member/wal" + segment: "x"})
	dir := filepath.Join(root, "mnt/hung")
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("SKIPPED: a hung file system is not tested, because this test may not open /dev/fuse: %v", err)
	}
	defer func() { require.NoError(t, unix.Close(server)) }()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", server, os.Getuid(), os.Getgid())
	if err := unix.Mount("hung", dir, "fuse", 0, options); err != nil {
		t.Skipf("SKIPPED: a hung file system is not tested, because this test may not mount one: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	result := newSearch(root, Limits{}).Once(t.Context())
	require.Equal(t, []string{"/srv/etcd/member/wal"}, result.LogDirs)
	require.Empty(t, result.Incomplete)
}

// TestHungSearch has a later search that does not end: the earlier result does not stand for a disk
// that was mounted since.
func TestHungSearch(t *testing.T) {
	s := newSearch(hosttest.New(t, hosttest.Files{"/srv/etcd/member/wal" + segment: "x"}), Limits{MaxTime: time.Hour})
	s.Once(t.Context())
	for age, want := range map[time.Duration]string{
		time.Hour:     "",
		2 * time.Hour: "it has hung since ",
	} {
		s.began = time.Now().Add(-age)
		result, isPending := s.Latest()
		require.False(t, isPending)
		require.Equal(t, []string{"/srv/etcd/member/wal"}, result.LogDirs)
		require.Equal(t, want == "", result.Incomplete == "")
		require.Contains(t, result.Incomplete, want)
	}
	require.Empty(t, s.Once(t.Context()).Incomplete)
	result, _ := s.Latest()
	require.Empty(t, result.Incomplete, "it has ended")
}
