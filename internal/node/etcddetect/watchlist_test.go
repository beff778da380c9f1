package etcddetect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestWatchlist has more data directories than a watchlist keeps.
func TestWatchlist(t *testing.T) {
	d := New(hostfs.Root("/host"), nil)
	update := func(dirs ...string) {
		s := &hostScan{Detector: d}
		for _, dir := range dirs {
			server := evidence.Server{Config: evidence.Config{DataDir: "/host" + dir}}
			s.found = append(s.found, detectedServer{Server: server})
		}
		d.watchlist.update(s)
	}
	update("/a", "/b")
	update("/a")
	require.Equal(t, []string{"/a", "/b"}, d.watchlist.all(), "a directory stays that is not found")
	for i := range maxDataDirs {
		update("/a", fmt.Sprint("/", i))
	}
	require.Len(t, d.watchlist.all(), maxDataDirs)
	require.Contains(t, d.watchlist.all(), "/a", "a directory stays that is found")
	require.NotContains(t, d.watchlist.all(), "/b")
}
