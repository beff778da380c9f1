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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A slowWriter stands for an API server with slow or failing writes: the test sets how long
// a write takes and how it ends.
type slowWriter struct {
	client.Writer
	takes time.Duration
	fail  error

	mu      sync.Mutex
	version int
	nonces  []string
}

func (writer *slowWriter) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption,
) error {
	select {
	case <-time.After(writer.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if writer.fail != nil {
		return writer.fail
	}
	c := obj.(*v1alpha1.EtcdCluster)
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, c); err != nil {
		return err
	}
	writer.mu.Lock()
	defer writer.mu.Unlock()
	writer.version += 10
	writer.nonces = append(writer.nonces, c.Spec.Nonce)
	c.ResourceVersion = strconv.Itoa(writer.version)
	return nil
}

func newTestRequester(writer *slowWriter) *ProbeRequester {
	return newProbeRequester(writer, 0, prometheus.NewCounter(prometheus.CounterOpts{Name: "probes"}))
}

// clusterVersion returns a version of the cluster with UID c.
func clusterVersion(rv, nonce string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID, c.ResourceVersion, c.Spec.Nonce = "c1", "c", rv, nonce
	return c
}

func TestRequestSharing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writer := &slowWriter{takes: 10 * time.Millisecond}
		requester := newTestRequester(writer)
		var g errgroup.Group
		probes, begun := make([]*ProbeRequest, 30), time.Now()
		for i := range probes {
			g.Go(func() (err error) {
				// 0 to 435 ms after the first, on synctest's clock.
				<-time.After(time.Duration(i) * 15 * time.Millisecond)
				probes[i], err = requester.request(t.Context(), clusterVersion("1", ""))
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, writer.nonces, 3, "the first two immediately, then one for all later requests")
		require.NotSame(t, probes[0], probes[1])
		for _, probe := range probes[2:] {
			require.Same(t, probes[2], probe)
		}
		require.Equal(t, 510*time.Millisecond, time.Since(begun))
	})
}

// A request must not share a nonce that is already being written: agents may have begun
// their probes before, and a member may have been removed since.
func TestRequestDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writer := &slowWriter{takes: 100 * time.Millisecond}
		requester := newTestRequester(writer)
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
		require.Len(t, writer.nonces, 2)
		require.NotSame(t, probes[0], probes[1])
	})
}

func TestRequestAfterCanceledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writer := &slowWriter{}
		requester := newTestRequester(writer)
		for range probeBurst {
			_, err := requester.request(t.Context(), clusterVersion("1", ""))
			require.NoError(t, err)
		}
		hasty, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		var first error
		g.Go(func() error {
			_, first = requester.request(hasty, clusterVersion("1", ""))
			return nil
		})
		g.Go(func() error {
			<-time.After(10 * time.Millisecond)
			_, err := requester.request(t.Context(), clusterVersion("1", ""))
			return err
		})
		<-time.After(50 * time.Millisecond)
		cancel()
		require.NoError(t, g.Wait())
		require.ErrorIs(t, first, context.Canceled)
		require.Len(t, writer.nonces, probeBurst+1)
	})
}

func TestRequestAfterFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the API server is not reachable")
		writer := &slowWriter{fail: down}
		requester := newTestRequester(writer)
		_, err := requester.request(t.Context(), clusterVersion("1", ""))
		require.ErrorIs(t, err, down)
		writer.fail = nil
		_, err = requester.request(t.Context(), clusterVersion("1", ""))
		require.NoError(t, err)
	})
}

func TestNoncesOfResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writer := &slowWriter{version: 100, takes: 100 * time.Millisecond}
		requester := newTestRequester(writer)
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
		require.Equal(t, []string{writer.nonces[0], "early", "last", "overtaken"}, got.Nonces)
		require.Equal(t, "130", got.Cluster.ResourceVersion)
	})
}

func TestResultChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requester := newTestRequester(&slowWriter{})
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
		requester := newTestRequester(&slowWriter{})
		for range 10 {
			probe, err := requester.request(t.Context(), clusterVersion("1", ""))
			require.NoError(t, err)
			probe.Release()
			<-time.After(time.Second)
		}
		require.Empty(t, requester.queues["c"].open)
	})
}
