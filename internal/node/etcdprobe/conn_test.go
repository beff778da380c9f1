package etcdprobe

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestPairEndpoints(t *testing.T) {
	one, two := evidence.Credential{Origin: "one"}, evidence.Credential{Origin: "two"}
	require.Equal(t, []endpoint{{url: "http://a:1"}, {"https://b:2", one}, {"https://b:2", two}},
		pairEndpoints([]string{"http://a:1", "https://b:2"}, []evidence.Credential{one, two}))
	require.Equal(t, []endpoint{{"https://b:2", evidence.Credential{Origin: "no client certificate"}}},
		pairEndpoints([]string{"https://b:2"}, nil))
}

func TestConnPool(t *testing.T) {
	s := newFakeServer(t, func(n int32) error {
		if n == 3 {
			return rpctypes.ErrGRPCCorrupt
		}
		return nil
	})
	p := newConnPool(500*time.Millisecond, "/", func(probeOutcome) {})
	t.Cleanup(p.close)
	e := endpoint{url: s.url}
	var conns []*grpc.ClientConn
	request := func(ctx context.Context, conn *grpc.ClientConn) error {
		conns = append(conns, conn)
		return readKey(ctx, conn, fakeIdentity().Ref, false)
	}
	require.NoError(t, p.call(t.Context(), e, request))
	require.NoError(t, p.call(t.Context(), e, request))
	require.Len(t, conns, 2)
	require.Same(t, conns[0], conns[1], "a connection that works is reused")

	require.ErrorContains(t, p.call(t.Context(), e, request), "corrupt cluster")
	require.Equal(t, connectivity.Shutdown, conns[0].GetState(), "a connection is closed after a failure")
	require.NoError(t, p.call(t.Context(), e, request))
	require.NotSame(t, conns[0], conns[len(conns)-1])

	old := p.idle[e][0]
	old.dialed = old.dialed.Add(-maxConnAge - time.Second)
	require.NoError(t, p.call(t.Context(), e, request))
	require.NotSame(t, old.conn, conns[len(conns)-1], "a connection older than maxConnAge is not reused")
	require.Equal(t, connectivity.Shutdown, old.conn.GetState())

	idle := p.idle[e][0]
	idle.lastUsed = idle.lastUsed.Add(-maxIdleTime - time.Second)
	other := newFakeServer(t, nil)
	require.NoError(t, p.call(t.Context(), endpoint{url: other.url}, request))
	require.NotContains(t, p.idle, e, "a release drops other connections idle for maxIdleTime")
	require.Equal(t, connectivity.Shutdown, idle.conn.GetState())
}

func TestObserveReusesConnections(t *testing.T) {
	s := newFakeServer(t, nil)
	p := newTestProber(t)
	for range 5 {
		require.True(t, p.Observe(t.Context(), s.found(), fakeIdentity()).Members[0].Healthy)
	}
	require.LessOrEqual(t, len(p.conns.idle[endpoint{url: s.url}]), 2, "one for the member and one for the alarms")
}

// TestClose counts goroutines, so it must not run in parallel with other tests.
func TestClose(t *testing.T) {
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true})
	local := etcd.Member(1)
	first := newTestProber(t)
	leader := first.Observe(t.Context(), foundServer(local), identify(t, first, local)).Leader
	first.Close()
	hanging := etcd.Member(2)
	if string(leader) == hanging.HexID() {
		hanging = etcd.Member(3)
	}
	require.NoError(t, hanging.Pause())
	before := countGoroutines(t)

	p := New(Options{})
	identity := identify(t, p, local)
	for range 3 {
		require.Len(t, p.Observe(t.Context(), foundServer(local), identity).Members, 3)
	}
	p.Close()
	require.Equal(t, before, countGoroutines(t))

	require.Contains(t, p.Identify(t.Context(), foundServer(local)).Problem, "the prober is closed")
}

// countGoroutines returns the number of goroutines after ten equal counts in a row.
func countGoroutines(t *testing.T) int {
	t.Helper()
	last, equal := -1, 0
	require.Eventually(t, func() bool {
		if now := runtime.NumGoroutine(); now != last {
			last, equal = now, 0
		}
		equal++
		return equal > 10
	}, 20*time.Second, 50*time.Millisecond)
	return last
}
