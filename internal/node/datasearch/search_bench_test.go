package datasearch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkSearch searches a tree of FILES files (100,000 by default), of which a sixth are in an
// image store that is left out, and walks it with filepath.WalkDir for comparison. "cold" drops the
// caches of the kernel before each operation, which needs root.
func BenchmarkSearch(b *testing.B) {
	files := 100_000
	if text := os.Getenv("FILES"); text != "" {
		var err error
		files, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	root := b.TempDir()
	makeTree(b, root, files)
	limits := Limits{MaxTime: time.Hour, MaxDirectories: files}
	search := func(b *testing.B) int {
		result := newSearch(root, limits).Once(b.Context())
		require.Equal(b, []string{"/srv/x/member/wal"}, result.LogDirs)
		require.Empty(b, result.Incomplete)
		return result.Directories
	}
	walk := func(b *testing.B) (directories int) {
		require.NoError(b, filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
			if d.IsDir() {
				directories++
			}
			return err
		}))
		return directories
	}
	for _, c := range []struct {
		name string
		do   func(*testing.B) int
	}{{"search", search}, {"walkdir", walk}} {
		for _, isCold := range []bool{false, true} {
			b.Run(c.name+map[bool]string{true: "/cold", false: "/cached"}[isCold], func(b *testing.B) {
				benchmarkTree(b, isCold, c.do)
			})
		}
	}
}

// benchmarkTree reports the CPU time, the directories, what was read from the disk, and the most
// memory that the process has had.
func benchmarkTree(b *testing.B, isCold bool, do func(*testing.B) int) {
	if isCold && unix.Geteuid() != 0 {
		b.Skip("dropping the caches needs root")
	}
	var cpu time.Duration
	var read uint64
	directories := 0
	for b.Loop() {
		if isCold {
			b.StopTimer()
			unix.Sync()
			require.NoError(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200))
			b.StartTimer()
		}
		cpuBefore, readBefore := used(b)
		directories = do(b)
		cpuAfter, readAfter := used(b)
		cpu, read = cpu+cpuAfter-cpuBefore, read+readAfter-readBefore
	}
	b.ReportMetric(cpu.Seconds()*1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(read)/1e6/float64(b.N), "MB/op")
	b.ReportMetric(float64(directories), "directories")
	self, err := procfs.Self()
	require.NoError(b, err)
	status, err := self.NewStatus()
	require.NoError(b, err)
	b.ReportMetric(float64(status.VmHWM)/(1<<20), "peak-MiB")
}

// used returns the CPU time of this process, and the bytes that it has read from disks.
func used(b *testing.B) (time.Duration, uint64) {
	b.Helper()
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	self, err := procfs.Self()
	require.NoError(b, err)
	io, err := self.IO()
	require.NoError(b, err)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), io.ReadBytes
}

// makeTree makes a log of etcd among files in directories of ten, as many in each sixth tree below
// an image store of docker.
func makeTree(b *testing.B, root string, files int) {
	b.Helper()
	wal := filepath.Join(root, "srv/x/member/wal")
	require.NoError(b, os.MkdirAll(wal, 0o700))
	require.NoError(b, os.WriteFile(wal+segment, nil, 0o600))
	for i := range files / 10 {
		top := "usr"
		if i%6 == 0 {
			top = "docker/overlay2"
		}
		dir := filepath.Join(root, top, strconv.Itoa(i/1000), strconv.Itoa(i))
		require.NoError(b, os.MkdirAll(dir, 0o700))
		for j := range 10 {
			require.NoError(b, os.WriteFile(filepath.Join(dir, fmt.Sprint("file", j)), nil, 0o600))
		}
	}
}
