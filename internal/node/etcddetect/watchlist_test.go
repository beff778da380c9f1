package etcddetect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

func TestAddNames(t *testing.T) {
	names := func(from, to int) (all []string) {
		for i := from; i < to; i++ {
			all = append(all, fmt.Sprint(i))
		}
		return all
	}
	var kept []string
	require.True(t, addNames(&kept, names(0, 3)))
	require.False(t, addNames(&kept, names(1, 3)), "known names")
	require.True(t, addNames(&kept, names(3, maxWatched)))
	require.True(t, addNames(&kept, names(1, maxWatched+1)), "a name that is not found any more is replaced")
	require.Equal(t, names(1, maxWatched+1), kept)
	require.False(t, addNames(&kept, names(1, maxWatched+7)), "names that are found again are not replaced")
	require.Equal(t, names(1, maxWatched+1), kept)
	require.True(t, addNames(&kept, append(names(2, maxWatched+1), "new", "newer")))
	require.Equal(t, append(names(2, maxWatched+1), "new"), kept)
}

// Each scan of a host with too many units finds all of them again. That must not cause
// another scan.
func TestWatchlistWithTooManyUnits(t *testing.T) {
	units := hosttest.Files{}
	for i := range maxWatched + 6 {
		name := fmt.Sprintf("/etc/systemd/system/etcd-backup-%d.service", i)
		units[name] = "[Service]\nExecStart=/usr/bin/etcdctl snapshot save /x\n"
	}
	d := New(hostfs.Root(hosttest.New(t, units)), nil)
	d.Detect()
	require.Len(t, d.watchlist.newUnits, 1)
	require.Len(t, d.watchlist.newTargets, 1)
	<-d.watchlist.newUnits
	<-d.watchlist.newTargets
	d.Detect()
	require.Empty(t, d.watchlist.newUnits)
	require.Empty(t, d.watchlist.newTargets)
}
