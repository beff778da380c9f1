package etcddetect

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/datasearch"
	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// detectWithSearch scans a host after a search of its disks.
func detectWithSearch(t *testing.T, root string) evidence.Findings {
	t.Helper()
	limits := datasearch.Limits{Interval: time.Hour, MaxTime: time.Minute, MaxDirectories: 1000}
	search := datasearch.New(hostfs.Root(root), limits, slog.New(slog.DiscardHandler))
	detector := New(hostfs.Root(root), nil)
	detector.UseSearch(search)
	require.True(t, detector.Detect(t.Context()).Searching)
	search.Once(t.Context())
	findings := detector.Detect(t.Context())
	require.False(t, findings.Searching)
	return findings
}

// TestData has the data of a stopped member in places that nothing names.
func TestData(t *testing.T) {
	const (
		segment = "/0000000000000000-0000000000000000.wal"
		dir     = "/data/etcd"
		log     = dir + "/member/wal" + segment
	)
	head := string(walHead(t))
	ref, err := parseWALHead([]byte(head))
	require.NoError(t, err)
	found := func(dir string) []evidence.Data { return []evidence.Data{{Dir: dir, Ref: ref}} }
	unit := func(flags string) hosttest.Files {
		text := "[Service]\nExecStart=/usr/bin/etcd --data-dir=" + dir + flags
		return hosttest.Files{"/etc/systemd/system/etcd.service": text, log: head}
	}
	for name, c := range map[string]struct {
		files   hosttest.Files
		data    []evidence.Data
		servers int
		unknown string
	}{
		"no unit": {files: hosttest.Files{log: head}, data: found(dir)},
		"docker volume": {
			files: hosttest.Files{"/var/lib/docker/volumes/e/_data/member/wal" + segment: head},
			data:  found("/var/lib/docker/volumes/e/_data"),
		},
		"log alone":     {files: hosttest.Files{"/wal" + segment: head}, data: found("/wal")},
		"unit names it": {files: unit(""), servers: 1},
		"unit names log": {
			files: with(with(unit(" --wal-dir=/wal"), dir+"/member/snap/db", "x"), "/wal"+segment, head), servers: 1,
		},
		"copy": {files: with(unit(""), "/backup/member/wal"+segment, head), servers: 1},
		"damaged": {
			files:   hosttest.Files{log: "x", dir + "/member/snap/db": "x"},
			unknown: "the data directory /data/etcd: its log does not tell whose data it is",
		},
		"another program": {files: hosttest.Files{"/var/lib/docker/swarm/raft/wal-v3-encrypted" + segment: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.files)
			require.NoError(t, filepath.WalkDir(root, func(at string, _ os.DirEntry, _ error) error {
				if filepath.Ext(at) == ".wal" {
					return os.Chtimes(at, time.Time{}, time.Now().Add(-recentLog))
				}
				return nil
			}))
			findings := detectWithSearch(t, root)
			require.Equal(t, c.data, findings.Data)
			require.Len(t, findings.Found, c.servers)
			if c.unknown == "" {
				require.Empty(t, findings.Unknown)
			} else {
				require.Contains(t, findings.Unknown[0], c.unknown)
			}
		})
	}
	findings := detectWithSearch(t, hosttest.New(t, hosttest.Files{log: head}))
	require.Equal(t, []evidence.Data{{Dir: dir, Ref: ref, Recent: true}}, findings.Data)
}

func with(files hosttest.Files, path, text string) hosttest.Files {
	files[path] = text
	return files
}
