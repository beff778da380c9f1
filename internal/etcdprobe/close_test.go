package etcdprobe_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// This test counts goroutines, so it runs beside no other.
func TestNothingIsLeftAfterClose(t *testing.T) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true})
	local := etcd.Member(1)
	first := prober(t)
	leader := first.Observe(t.Context(), sighting(local), identified(t, first, local)).Leader
	first.Close()
	hanging := etcd.Member(2)
	if string(leader) == hanging.HexID() {
		hanging = etcd.Member(3)
	}
	require.NoError(t, hanging.Pause())
	before := settled(t)

	p := etcdprobe.New(etcdprobe.Options{Timeout: timeout})
	answer := identified(t, p, local)
	for range 3 {
		require.Len(t, p.Observe(t.Context(), sighting(local), answer).Members, 3)
	}
	p.Close()
	require.Equal(t, before, settled(t))

	require.Contains(t, p.Identify(t.Context(), sighting(local)).Problem, "the prober has been closed")
}

// settled returns the number of goroutines once it has stood still for a while.
func settled(t *testing.T) int {
	t.Helper()
	last, still := -1, 0
	require.Eventually(t, func() bool {
		if now := runtime.NumGoroutine(); now != last {
			last, still = now, 0
		}
		still++
		return still > 10
	}, 20*time.Second, 50*time.Millisecond)
	return last
}
