package etcdprobe

import (
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
)

// BenchmarkListMembers reports the cost of one read of the local server's list. An agent makes
// thirty of them between two observations.
func BenchmarkListMembers(b *testing.B) {
	etcd := etcd.New(b, etcd.Options{Members: 3, TLS: true})
	p, server := New(Options{}), foundServer(etcd.Member(1))
	defer p.Close()
	identity := p.Identify(b.Context(), server)
	measureCPU(b, etcd, func() {
		list, err := p.ListMembers(b.Context(), server, identity)
		require.NoError(b, err)
		require.Len(b, list, 3)
	})
}

// BenchmarkObserve reports the cost of one observation of a cluster of three.
func BenchmarkObserve(b *testing.B) {
	etcd := etcd.New(b, etcd.Options{Members: 3, TLS: true})
	p, server := New(Options{}), foundServer(etcd.Member(1))
	defer p.Close()
	identity := p.Identify(b.Context(), server)
	measureCPU(b, etcd, func() { require.Empty(b, p.Observe(b.Context(), server, identity).Problem) })
}

// measureCPU reports the CPU time of this process and of all members for each call, including the
// kernel's.
func measureCPU(b *testing.B, cluster *etcd.Cluster, call func()) {
	b.Helper()
	b.ReportAllocs()
	call()
	own, members := ownCPU(b), memberCPU(b, cluster)
	for b.Loop() {
		call()
	}
	perCall := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) }
	b.ReportMetric(perCall(ownCPU(b)-own), "agent-cpu-µs/op")
	b.ReportMetric(perCall(memberCPU(b, cluster)-members), "etcd-cpu-µs/op")
}

func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	usage := syscall.Rusage{}
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func memberCPU(b *testing.B, cluster *etcd.Cluster) time.Duration {
	b.Helper()
	var total float64
	for _, m := range cluster.Members() {
		process, err := procfs.NewProc(m.PID())
		require.NoError(b, err)
		stat, err := process.Stat()
		require.NoError(b, err)
		total += stat.CPUTime()
	}
	return time.Duration(total * float64(time.Second))
}
