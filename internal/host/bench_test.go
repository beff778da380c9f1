package host_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// BenchmarkLook is one full look at a member's host with 2,000 processes besides. They are 200 real ones, each shown ten
// times: what is read of them, the kernel makes anew for each. It reports the CPU time of a look, the kernel's included.
func BenchmarkLook(b *testing.B) {
	etcd := testenv.NewEtcd(b, testenv.EtcdOptions{TLS: true, BootID: func(int) string { return bootID }})
	h, err := host.New(host.Options{Root: crowded(b, etcd.Member(1).Root)})
	require.NoError(b, err)
	before := cpu(b)
	for b.Loop() {
		look := h.Look(b.Context())
		require.Len(b, look.Found, 1)
		require.Empty(b, look.Unknown)
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// BenchmarkIdleWatch is what watching costs while nothing happens, in thousandths of a core.
func BenchmarkIdleWatch(b *testing.B) {
	etcd := testenv.NewEtcd(b, testenv.EtcdOptions{TLS: true, BootID: func(int) string { return bootID }})
	h, err := host.New(host.Options{Root: etcd.Member(1).Root})
	require.NoError(b, err)
	h.Look(b.Context())
	for b.Loop() {
		before, began := cpu(b), time.Now()
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		require.ErrorIs(b, h.Watch(ctx, func() {}), context.DeadlineExceeded)
		cancel()
		b.ReportMetric(1000*(cpu(b)-before).Seconds()/time.Since(began).Seconds(), "millicores")
	}
}

// crowded adds 2,000 processes to a host's process table.
func crowded(b *testing.B, root string) string {
	b.Helper()
	sleep, err := exec.LookPath("sleep")
	require.NoError(b, err)
	for i := range 200 {
		process := exec.CommandContext(b.Context(), sleep, "600") // and not for ever, should nobody end it
		require.NoError(b, process.Start())
		b.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() }) // Wait tells of the signal
		for j := range 10 {
			link := filepath.Join(root, "proc", fmt.Sprint(1_000_000+10*i+j))
			require.NoError(b, os.Symlink(fmt.Sprintf("/proc/%d", process.Process.Pid), link))
		}
	}
	return root
}

// cpu is the time that this process has had on processors.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
