package clusterstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A slowServer stands for an API server with slow or failing writes: the test sets how long
// a write takes and how it ends.
type slowServer struct {
	client.Writer
	takes time.Duration
	fail  error

	mu       sync.Mutex
	version  int
	nonces   []string
	attempts int
}

func (server *slowServer) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption,
) error {
	server.mu.Lock()
	server.attempts++
	server.mu.Unlock()
	select {
	case <-time.After(server.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if server.fail != nil {
		return server.fail
	}
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var ops []Operation
	if err := json.Unmarshal(body, &ops); err != nil {
		return err
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	latest := ""
	if len(server.nonces) > 0 {
		latest = server.nonces[len(server.nonces)-1]
	}
	if tested, _ := ops[1].Value.(string); tested != latest {
		return apierrors.NewInvalid(schema.GroupKind{}, "c1", nil)
	}
	server.write(ops[2].Value.(string))
	c := obj.(*v1alpha1.EtcdCluster)
	c.ResourceVersion, c.Spec.Nonce = strconv.Itoa(server.version), server.nonces[len(server.nonces)-1]
	return nil
}

// write writes a nonce. The caller holds the lock if there are other goroutines.
func (server *slowServer) write(nonce string) {
	server.version += 10
	server.nonces = append(server.nonces, nonce)
}

func (server *slowServer) read(context.Context, string) (*v1alpha1.EtcdCluster, error) {
	return server.latest(), nil
}

// latest returns the object.
func (server *slowServer) latest() *v1alpha1.EtcdCluster {
	server.mu.Lock()
	defer server.mu.Unlock()
	c := clusterVersion(strconv.Itoa(server.version), "")
	if len(server.nonces) > 0 {
		c.Spec.Nonce = server.nonces[len(server.nonces)-1]
	}
	return c
}

func newTestRequester(server *slowServer) *ProbeRequester {
	return newProbeRequester(server, server.read, 0, prometheus.NewCounter(prometheus.CounterOpts{Name: "probes"}))
}

// clusterVersion returns a version of the cluster with UID c. The agents of the Nodes have
// answered these nonces.
func clusterVersion(rv, nonce string, answered ...string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID, c.ResourceVersion, c.Spec.Nonce = "c1", "c", rv, nonce
	for _, nonce := range answered {
		c.Status.Observations = append(c.Status.Observations, v1alpha1.Observation{Nonce: nonce})
	}
	return c
}

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
			require.Same(t, f.first, f.request(t, clusterVersion("109", "")))
		}, 1, 50 * ms},
		{"read before another version without a nonce", func(t *testing.T, f *sharingFixture) {
			f.addVersion(clusterVersion("120", f.nonce(), "old"))
			require.Same(t, f.first, f.request(t, clusterVersion("105", "")))
		}, 1, 0},
		{"F4 read after its nonce", func(t *testing.T, f *sharingFixture) {
			require.NotSame(t, f.first, f.request(t, clusterVersion("110", f.nonce(), f.nonce())))
		}, 2, 600 * ms},
		{"all answered at 200 ms", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			probes := make([]*ProbeRequest, 30)
			for i := range probes {
				g.Go(func() error {
					<-time.After(time.Duration(i) * 5 * ms)
					probes[i] = f.request(t, clusterVersion("112", f.nonce(), f.nonce(), "old"))
					return nil
				})
			}
			<-time.After(200 * ms)
			f.addVersion(clusterVersion("114", f.nonce(), f.nonce(), f.nonce()))
			require.NoError(t, g.Wait())
			for _, p := range probes {
				require.Same(t, probes[0], p)
			}
		}, 2, 300 * ms},
		{"one agent silent", func(t *testing.T, f *sharingFixture) {
			f.addVersion(clusterVersion("114", f.nonce(), f.nonce(), "old"))
			f.request(t, clusterVersion("114", f.nonce(), f.nonce(), "old"))
		}, 2, 600 * ms},
		{"nonce of another replica", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			var p *ProbeRequest
			g.Go(func() error {
				p = f.request(t, clusterVersion("112", f.nonce(), f.nonce(), "old"))
				return nil
			})
			<-time.After(50 * ms)
			f.addVersion(clusterVersion("120", "theirs", f.nonce(), "old"))
			require.NoError(t, g.Wait())
			require.Equal(t, []string{"theirs"}, p.Result().Nonces)
		}, 1, 50 * ms},
		{"nonce of another replica in an older version", func(t *testing.T, f *sharingFixture) {
			var g errgroup.Group
			g.Go(func() error {
				f.request(t, clusterVersion("121", f.nonce(), f.nonce(), "old"))
				return nil
			})
			<-time.After(50 * ms)
			f.addVersion(clusterVersion("120", "theirs", f.nonce(), "old"))
			require.NoError(t, g.Wait())
		}, 2, 650 * ms},
		{"another replica writes at the same time", func(t *testing.T, f *sharingFixture) {
			answered := clusterVersion("112", f.nonce(), f.nonce())
			f.addVersion(answered)
			f.server.write("theirs")
			p := f.request(t, answered)
			require.Equal(t, []string{"theirs"}, p.Result().Nonces)
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
				f.addVersion(clusterVersion("111", f.nonce(), "old", "old"))
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
		require.NotSame(t, probes[0], probes[1])
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

func TestNoncesOfResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{version: 100, takes: 100 * time.Millisecond}
		requester := newTestRequester(server)
		var g errgroup.Group
		g.Go(func() error { // while the nonce, which makes version 110, is being written
			<-time.After(50 * time.Millisecond)
			requester.addVersion(clusterVersion("99", "before"))
			requester.addVersion(clusterVersion("112", "early"))
			return nil
		})
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		require.NoError(t, g.Wait())

		requester.addVersion(clusterVersion("130", "last"))
		requester.addVersion(clusterVersion("120", "overtaken"))
		requester.addVersion(clusterVersion("109", "too old"))
		requester.addVersion(clusterVersion("bogus", "unordered"))
		remade := clusterVersion("140", "other object")
		remade.UID = "other"
		requester.addVersion(remade)

		got := probe.Result()
		require.Equal(t, []string{server.nonces[0], "early", "last", "overtaken"}, got.Nonces)
		require.Equal(t, "130", got.Cluster.ResourceVersion)
	})
}

func TestResultChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowServer{})
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		before := probe.Result()
		requester.addVersion(clusterVersion("50", ""))
		<-before.Changed
		require.Equal(t, "50", probe.Result().Cluster.ResourceVersion)
	})
}

func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		requester := newTestRequester(server)
		for range 10 {
			probe, err := requester.request(t.Context(), server.latest())
			require.NoError(t, err)
			probe.Release()
			<-time.After(time.Second)
		}
		require.Empty(t, requester.queues["c"].open)
	})
}

// TestProbedNodes checks that the reviews that share a request share its reads of Nodes.
func TestProbedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowServer{})
		probe, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
		var mu sync.Mutex
		var reads [][]string
		isDown := false
		read := func(_ context.Context, names []string) map[string]observation.NodeState {
			<-time.After(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			reads = append(reads, names)
			states := map[string]observation.NodeState{}
			for _, name := range names {
				states[name] = observation.NodeState{Known: !isDown, UID: types.UID("uid of " + name)}
			}
			return states
		}
		var g errgroup.Group
		for range 10 {
			g.Go(func() error {
				states := probe.liveStates(t.Context(), []string{"a", "b"}, read)
				require.Equal(t, types.UID("uid of b"), states["b"].UID)
				return nil
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, probe.liveStates(t.Context(), []string{"a", "c"}, read), 2)
		require.Equal(t, [][]string{{"a", "b"}, {"c"}}, reads)

		isDown = true
		for range 2 { // A read that fails is repeated.
			require.False(t, probe.liveStates(t.Context(), []string{"d"}, read)["d"].Known)
		}
		require.Len(t, reads, 4)

		// A review whose time is up does not wait for the read of another one.
		done, cancel := context.WithCancel(t.Context())
		cancel()
		g.Go(func() error { probe.liveStates(t.Context(), []string{"e"}, read); return nil })
		synctest.Wait()
		require.Empty(t, probe.liveStates(done, []string{"e"}, read))
		require.NoError(t, g.Wait())
	})
}

// TestSharedRead checks that a caller shares only a read that began after its call.
func TestSharedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newSharedRead[time.Duration]()
		begun := time.Now()
		read := func(ctx context.Context) (time.Duration, error) {
			at := time.Since(begun)
			return at, loop.Wait(ctx, 100*time.Millisecond, nil)
		}
		hasty, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for i := range 10 {
			ctx := t.Context()
			if i == 1 {
				ctx = hasty // It makes the second read, which goes on without it.
			}
			g.Go(func() error {
				called := time.Duration(i) * 15 * time.Millisecond
				<-time.After(called)
				at, err := shared.do(ctx, read)
				require.NoError(t, err)
				require.GreaterOrEqual(t, at, called)
				require.Contains(t, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}, at)
				return nil
			})
		}
		<-time.After(120 * time.Millisecond)
		cancel()
		require.NoError(t, g.Wait())
		require.Equal(t, 300*time.Millisecond, time.Since(begun), "three reads")
	})
}

// TestIsAnswered: an agent that still waits for members is busy, and its answer counts as one of
// two.
func TestIsAnswered(t *testing.T) {
	c := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Nonce: "b"}}
	c.Status.Observations = []v1alpha1.Observation{{Node: "0", Nonce: "b"}, {Node: "1", Nonce: "a"}}
	answers := func() int { return ProbeResult{Cluster: c, Nonces: []string{"b"}}.Answers() }
	require.False(t, isAnswered(c))
	require.Equal(t, 2, answers())
	c.Status.Observations[1] = v1alpha1.Observation{Node: "1", Nonce: "b", Incomplete: true}
	require.False(t, isAnswered(c))
	require.Equal(t, 3, answers())
	c.Status.Observations[1].Incomplete = false
	require.True(t, isAnswered(c))
	require.Equal(t, 4, answers())
}
