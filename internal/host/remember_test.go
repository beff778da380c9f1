package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRemember(t *testing.T) {
	names := func(from, to int) (all []string) {
		for i := from; i < to; i++ {
			all = append(all, fmt.Sprint(i))
		}
		return all
	}
	var kept []string
	require.True(t, remember(&kept, names(0, 3)))
	require.False(t, remember(&kept, names(1, 3)), "no news")
	require.True(t, remember(&kept, names(3, mostTraces)))
	require.True(t, remember(&kept, names(1, mostTraces+1)), "the one that is not found any more makes room")
	require.Equal(t, names(1, mostTraces+1), kept)
	require.False(t, remember(&kept, names(1, mostTraces+7)), "those that are found again make none")
	require.Equal(t, names(1, mostTraces+1), kept)
	require.True(t, remember(&kept, append(names(2, mostTraces+1), "new", "newer")))
	require.Equal(t, append(names(2, mostTraces+1), "new"), kept)
}

// A host with more units than are kept is not looked at without end because each look finds them again.
func TestMoreUnitsThanAreKeptAreNoNews(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "etc/systemd/system")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for i := range mostTraces + 6 {
		text := "[Service]\nExecStart=/usr/bin/etcdctl snapshot save /x\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("etcd-backup-%d.service", i)), []byte(text), 0o600))
	}
	h, err := New(Options{Root: root})
	require.NoError(t, err)
	h.Look(t.Context())
	require.Len(t, h.traces.newUnits, 1)
	require.Len(t, h.traces.newFiles, 1)
	<-h.traces.newUnits
	<-h.traces.newFiles
	h.Look(t.Context())
	require.Empty(t, h.traces.newUnits)
	require.Empty(t, h.traces.newFiles)
}
