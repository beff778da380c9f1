package ledger

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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// slate takes the place of the API server where its time matters: a write takes as long, and ends, as the test says.
type slate struct {
	client.Writer
	takes time.Duration
	fail  error

	mu      sync.Mutex
	version int
	nonces  []string
}

func (s *slate) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.fail != nil {
		return s.fail
	}
	c := obj.(*v1alpha1.EtcdCluster)
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 10
	s.nonces = append(s.nonces, c.Spec.Nonce)
	c.ResourceVersion = strconv.Itoa(s.version)
	return nil
}

func newAsker(s *slate) *asker {
	return &asker{
		client: s, pace: 500 * time.Millisecond, queues: map[types.UID]*queue{},
		asks: prometheus.NewCounter(prometheus.CounterOpts{Name: "asks"}),
	}
}

// version makes a version of the cluster with UID c.
func version(rv, nonce string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID, c.ResourceVersion, c.Spec.Nonce = "c1", "c", rv, nonce
	return c
}

func TestRequestsShareTheQuestionThatWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slate{takes: 10 * time.Millisecond}
		a := newAsker(s)
		var g errgroup.Group
		asks, begun := make([]*ask, 30), time.Now()
		for i := range asks {
			g.Go(func() (err error) {
				<-time.After(time.Duration(i) * 15 * time.Millisecond) // 0 … 435 ms after the first, on synctest's clock
				asks[i], err = a.ask(t.Context(), version("1", ""))
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, s.nonces, 3, "two at once, and one for all who came after them")
		require.NotSame(t, asks[0], asks[1])
		for _, q := range asks[2:] {
			require.Same(t, asks[2], q)
		}
		require.Equal(t, 510*time.Millisecond, time.Since(begun))
	})
}

// What the agents saw before a request was made is no answer to it: a member may have been removed in between.
func TestAQuestionThatIsBeingWrittenIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slate{takes: 100 * time.Millisecond}
		a := newAsker(s)
		var g errgroup.Group
		asks := make([]*ask, 2)
		for i := range asks {
			g.Go(func() (err error) {
				<-time.After(time.Duration(i) * time.Millisecond)
				asks[i], err = a.ask(t.Context(), version("1", ""))
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, s.nonces, 2)
		require.NotSame(t, asks[0], asks[1])
	})
}

func TestWhoJoinedAQuestionThatWasNeverWrittenWritesItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slate{}
		a := newAsker(s)
		for range burst {
			_, err := a.ask(t.Context(), version("1", ""))
			require.NoError(t, err)
		}
		hasty, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		var first error
		g.Go(func() error {
			_, first = a.ask(hasty, version("1", ""))
			return nil
		})
		g.Go(func() error {
			<-time.After(10 * time.Millisecond)
			_, err := a.ask(t.Context(), version("1", ""))
			return err
		})
		<-time.After(50 * time.Millisecond)
		cancel()
		require.NoError(t, g.Wait())
		require.ErrorIs(t, first, context.Canceled)
		require.Len(t, s.nonces, burst+1)
	})
}

func TestAFailedQuestionIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the API server is away")
		s := &slate{fail: down}
		a := newAsker(s)
		_, err := a.ask(t.Context(), version("1", ""))
		require.ErrorIs(t, err, down)
		s.fail = nil
		_, err = a.ask(t.Context(), version("1", ""))
		require.NoError(t, err)
	})
}

func TestOnlyNoncesThatFollowedTheQuestionCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slate{version: 100, takes: 100 * time.Millisecond}
		a := newAsker(s)
		var g errgroup.Group
		g.Go(func() error { // while the nonce, which makes version 110, is being written
			<-time.After(50 * time.Millisecond)
			a.seen(version("99", "before"))
			a.seen(version("112", "early"))
			return nil
		})
		q, err := a.ask(t.Context(), version("1", ""))
		require.NoError(t, err)
		require.NoError(t, g.Wait())

		a.seen(version("130", "last"))
		a.seen(version("120", "overtaken"))
		a.seen(version("109", "too old"))
		a.seen(version("bogus", "unordered"))
		remade := version("140", "other object")
		remade.UID = "other"
		a.seen(remade)

		got := a.sight(q)
		require.Equal(t, []string{s.nonces[0], "early", "last", "overtaken"}, got.asked)
		require.Equal(t, "130", got.cluster.ResourceVersion)
	})
}

func TestAChangeWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsker(&slate{})
		q, err := a.ask(t.Context(), version("1", ""))
		require.NoError(t, err)
		before := a.sight(q)
		a.seen(version("50", ""))
		<-before.changed
		require.Equal(t, "50", a.sight(q).cluster.ResourceVersion)
	})
}

func TestReleasedQuestionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsker(&slate{})
		for range 10 {
			q, err := a.ask(t.Context(), version("1", ""))
			require.NoError(t, err)
			a.release("c", q)
			<-time.After(time.Second)
		}
		require.Empty(t, a.queues["c"].open)
	})
}
