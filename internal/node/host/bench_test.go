package host_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// BenchmarkFindings scans the host of a member with 2,000 other processes. They are 200 real
// ones with ten entries each, and the kernel generates the files of each entry. The reported
// CPU time includes the kernel's.
func BenchmarkFindings(b *testing.B) {
	etcd := etcd.New(b, etcd.Options{TLS: true, BootID: bootID})
	h := newHost(b, etcd.Member(1).Root)
	addProcesses(b, etcd.Member(1).Root)
	before := cpuTime(b)
	for b.Loop() {
		findings := h.Etcd(b.Context())
		require.Len(b, findings.Found, 1)
		require.Empty(b, findings.Unknown)
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// addProcesses adds 2,000 processes to a host's process table.
func addProcesses(b *testing.B, root string) {
	b.Helper()
	sleep, err := exec.LookPath("sleep")
	require.NoError(b, err)
	for i := range 200 {
		process := exec.CommandContext(b.Context(), sleep, "600") // in case the cleanup does not run
		require.NoError(b, process.Start())
		b.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() }) // Wait reports the signal
		for j := range 10 {
			link := filepath.Join(root, "proc", fmt.Sprint(1_000_000+10*i+j))
			require.NoError(b, os.Symlink(fmt.Sprintf("/proc/%d", process.Process.Pid), link))
		}
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func bootID(int) string { return hosttest.BootID }
