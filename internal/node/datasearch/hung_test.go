package datasearch

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestHungMount searches a host on which a file system hangs.
func TestHungMount(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/mnt/hung/x": "x", "/srv/etcd/member/wal" + segment: "x"})
	defer hosttest.MountHung(t, filepath.Join(root, "mnt/hung"))()
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
