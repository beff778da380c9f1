package clusterstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// A sharingFixture is a requester whose first request has been written at once, as nonce a in
// version 110. Its write takes 100 ms.
type sharingFixture struct {
	*ProbeRequester
	server *slowServer
	first  *ProbeRequest
}

// request requests a probe for a review that has read c.
func (f *sharingFixture) request(t *testing.T, c *v1alpha1.EtcdCluster) *ProbeRequest {
	t.Helper()
	p, err := f.ProbeRequester.request(t.Context(), c)
	require.NoError(t, err)
	return p
}

// requireShared requires that the nonce of the first request answers a review that has read c.
func (f *sharingFixture) requireShared(t *testing.T, c *v1alpha1.EtcdCluster) {
	t.Helper()
	require.Equal(t, []string{f.nonce()}, f.request(t, c).Result().Nonces)
}

// deliver delivers a version with a nonce, and the nonces that the agents of the Nodes have
// answered.
func (f *sharingFixture) deliver(version, nonce string, answered ...string) {
	f.addVersion(clusterVersion(version, nonce))
	for i, nonce := range answered {
		f.addObservation(observed(strconv.Itoa(i), types.UID(fmt.Sprint("u", i)), nonce))
	}
}

// nonce returns the nonce of the first request.
func (f *sharingFixture) nonce() string { return f.server.nonces[0] }

// TestRequestSharing shows which reviews share a probe request, and when a request is written. The
// first request is under way: written at 100 ms, as version 110.
func TestRequestSharing(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		run  func(*testing.T, *sharingFixture)
		// writes is the number of nonces that this replica wrote.
		writes int
		// took is the time until the last request had its nonce.
		took time.Duration
	}{
		{"read before its nonce", func(t *testing.T, f *sharingFixture) {
			<-time.After(50 * ms)
			f.requireShared(t, clusterVersion("109", ""))
		}, 1, 50 * ms},
		{"read before another version without a nonce", func(t *testing.T, f *sharingFixture) {
			f.deliver("120", f.nonce(), "old")
			f.requireShared(t, clusterVersion("105", ""))
		}, 1, 0},
		{"F4 read after its nonce", func(t *testing.T, f *sharingFixture) {
			require.NotContains(t, f.request(t, clusterVersion("110", f.nonce())).Result().Nonces, f.nonce())
		}, 2, 600 * ms},
		{"all answered at 200 ms", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			probes := make([]*ProbeRequest, 30)
			for i := range probes {
				g.Go(func() error {
					<-time.After(time.Duration(i) * 5 * ms)
					probes[i] = f.request(t, clusterVersion("112", f.nonce()))
					return nil
				})
			}
			<-time.After(200 * ms)
			f.deliver("114", f.nonce(), f.nonce(), f.nonce())
			require.NoError(t, g.Wait())
			for _, p := range probes {
				require.Equal(t, f.server.nonces[1:], p.Result().Nonces)
			}
		}, 2, 300 * ms},
		{"one agent silent", func(t *testing.T, f *sharingFixture) {
			f.deliver("114", f.nonce(), f.nonce(), "old")
			f.request(t, clusterVersion("114", f.nonce()))
		}, 2, 600 * ms},
		{"nonce of another replica", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			var p *ProbeRequest
			g.Go(func() error {
				p = f.request(t, clusterVersion("112", f.nonce()))
				return nil
			})
			<-time.After(50 * ms)
			f.deliver("120", "theirs", f.nonce(), "old")
			require.NoError(t, g.Wait())
			require.Equal(t, []string{"theirs"}, p.Result().Nonces)
		}, 1, 50 * ms},
		{"nonce of another replica in an older version", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			g.Go(func() error {
				f.request(t, clusterVersion("121", f.nonce()))
				return nil
			})
			<-time.After(50 * ms)
			f.deliver("120", "theirs", f.nonce(), "old")
			require.NoError(t, g.Wait())
		}, 2, 650 * ms},
		{"another replica writes at the same time", func(t *testing.T, f *sharingFixture) {
			f.deliver("112", f.nonce(), f.nonce(), f.nonce())
			f.server.write("theirs")
			p := f.request(t, clusterVersion("112", f.nonce()))
			require.Equal(t, []string{"theirs"}, p.Result().Nonces)
		}, 2, 100 * ms},
		{"another replica writes before this one has the answer to its write", func(t *testing.T, f *sharingFixture) {
			f.deliver("112", f.nonce(), f.nonce(), f.nonce())
			var g errgroup.Group
			g.Go(func() error {
				f.request(t, clusterVersion("112", f.nonce()))
				return nil
			})
			<-time.After(50 * ms)
			f.deliver("200", "theirs")
			require.NoError(t, g.Wait())
			p := f.request(t, clusterVersion("115", f.nonce()))
			require.Equal(t, "theirs", p.Result().Cluster.Spec.Nonce, "agents answer the last nonce only")
		}, 2, 100 * ms},
		{"restored API server", func(t *testing.T, f *sharingFixture) {
			<-time.After(defaultProbeInterval)
			f.server.version, f.server.nonces = 50, []string{"restored"}
			p := f.request(t, f.server.latest())
			require.Equal(t, f.server.nonces[1:], p.Result().Nonces)
		}, 2, 600 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &sharingFixture{server: &slowServer{takes: 100 * ms, version: 100}}
				f.ProbeRequester = newTestRequester(f.server)
				f.first = f.request(t, clusterVersion("100", ""))
				f.deliver("111", f.nonce(), "old", "old")
				before := time.Now()
				test.run(t, f)
				require.Equal(t, test.took, time.Since(before).Round(ms))
				require.Len(t, f.server.nonces, test.writes)
			})
		})
	}
}

// A request that is being written may be shared only by a review that is known to have read before:
// agents may have begun their probes, and a member may have been removed since.
func TestRequestDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{takes: 100 * time.Millisecond}
		requester := newTestRequester(server)
		var g errgroup.Group
		probes := make([]*ProbeRequest, 2)
		for i := range probes {
			g.Go(func() (err error) {
				<-time.After(time.Duration(i) * time.Millisecond)
				probes[i], err = requester.request(t.Context(), clusterVersion("1", ""))
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, server.nonces, 1)
		require.Equal(t, 1, server.attempts, "the second request waits for the write of the first")
		require.Equal(t, probes[0].Result().Nonces, probes[1].Result().Nonces, "it was written after both reads")
	})
}

// A write that does not end delays other requests for no longer than the interval.
func TestRequestDuringHangingWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{takes: time.Hour}
		requester := newTestRequester(server)
		hanging, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error {
			_, err := requester.request(hanging, clusterVersion("1", ""))
			return err
		})
		synctest.Wait()
		server.takes = 0
		before := time.Now()
		_, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		require.Equal(t, defaultProbeInterval, time.Since(before))
		cancel()
		require.ErrorIs(t, g.Wait(), context.Canceled)
	})
}

func TestRequestAfterCanceledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		requester := newTestRequester(server)
		for range probeBurst {
			_, err := requester.request(t.Context(), server.latest())
			require.NoError(t, err)
		}
		hasty, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		var first error
		g.Go(func() error {
			_, first = requester.request(hasty, server.latest())
			return nil
		})
		g.Go(func() error {
			<-time.After(10 * time.Millisecond)
			_, err := requester.request(t.Context(), server.latest())
			return err
		})
		<-time.After(50 * time.Millisecond)
		cancel()
		require.NoError(t, g.Wait())
		require.ErrorIs(t, first, context.Canceled)
		require.Len(t, server.nonces, probeBurst+1)
	})
}

func TestRequestAfterFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the API server is not reachable")
		server := &slowServer{fail: down}
		requester := newTestRequester(server)
		_, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.ErrorIs(t, err, down)
		server.fail = nil
		_, err = requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
	})
}

// TestSharedRead checks that a caller shares only a read that began after its call, and begins
// another one if the caller that began it had too little time.
func TestSharedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newSharedRead[time.Duration]("")
		begun := time.Now()
		read := func(ctx context.Context) (time.Duration, error) {
			at := time.Since(begun)
			return at, loop.Wait(ctx, 100*time.Millisecond, nil)
		}
		hasty, cancel := context.WithTimeout(t.Context(), 110*time.Millisecond)
		defer cancel()
		var g errgroup.Group
		for i := range 10 {
			ctx := t.Context()
			if i == 1 {
				ctx = hasty // It makes the second read, which fails after 10 ms.
			}
			g.Go(func() error {
				called := time.Duration(i) * 15 * time.Millisecond
				<-time.After(called)
				at, err := shared.do(ctx, read)
				if ctx == hasty {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					return nil
				}
				require.NoError(t, err)
				require.GreaterOrEqual(t, at, called)
				require.Contains(t, []time.Duration{0, 110 * time.Millisecond, 210 * time.Millisecond}, at)
				return nil
			})
		}
		require.NoError(t, g.Wait())
		require.Equal(t, 310*time.Millisecond, time.Since(begun), "four reads")
	})
}

// TestSharedReadWithLessTime: a caller waits for no read longer than its own time, whether the read
// is under way or next. A review of a Node without the label has two seconds, and then decides from
// the cache.
func TestSharedReadWithLessTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newSharedRead[int]("")
		hangs := func(ctx context.Context) (int, error) { return 0, loop.Wait(ctx, time.Hour, nil) }
		var g errgroup.Group
		for range 2 { // The second one waits for the next read.
			g.Go(func() error { _, err := shared.do(t.Context(), hangs); return err })
			synctest.Wait()
		}
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err := shared.do(hasty, hangs)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
		require.ErrorIs(t, g.Wait(), context.DeadlineExceeded)
	})
}

// A panic in a read is an error of all callers that share it, and not an empty list.
func TestPanicInSharedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newSharedRead[int]("")
		var g errgroup.Group
		for range 3 { // The second one makes the read of the third.
			g.Go(func() error {
				require.Error(t, loop.RecoverPanic(func() error {
					_, err := shared.do(t.Context(), func(context.Context) (int, error) {
						<-time.After(time.Second)
						panic("broken")
					})
					return err
				}))
				return nil
			})
		}
		require.NoError(t, g.Wait())
	})
}
