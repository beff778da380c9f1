package deletion

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestGrantQueue checks that one review writes the grants of all that wait. A write takes 100 ms.
func TestGrantQueue(t *testing.T) {
	const takes = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		queues := newGrantQueues()
		var batches []int
		isBroken := false
		write := func(batch []*grantRequest) {
			batches = append(batches, len(batch))
			<-time.After(takes)
			if isBroken {
				panic("broken")
			}
			for _, g := range batch {
				g.verdict, g.err = quorum.Verdict{Allowed: true}, nil
			}
		}
		do := func(ctx context.Context, cluster string) (v quorum.Verdict, err error) {
			c := &v1alpha1.EtcdCluster{}
			c.UID = types.UID(cluster)
			g := &grantRequest{ctx: ctx, cluster: c, done: make(chan struct{})}
			err = loop.RecoverPanic(func() (err error) {
				v, err = queues.do(g, write)
				return err
			})
			return v, err
		}
		var g errgroup.Group
		for i := range 10 {
			g.Go(func() error {
				<-time.After(time.Duration(i) * time.Millisecond)
				v, err := do(t.Context(), "c")
				require.True(t, v.Allowed)
				return err
			})
		}
		begun := time.Now()
		require.NoError(t, g.Wait())
		require.Equal(t, 2*takes, time.Since(begun))
		require.Equal(t, []int{1, 9}, batches)

		// A review whose time is up leaves no grant.
		batches = nil
		g.Go(func() error { _, err := do(t.Context(), "c"); return err })
		synctest.Wait()
		hasty, cancel := context.WithTimeout(t.Context(), takes/2)
		defer cancel()
		_, err := do(hasty, "c")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, g.Wait())
		require.Equal(t, []int{1}, batches)

		// A panic is an error of all reviews of the batch, and others can write.
		isBroken = true
		for range 3 {
			g.Go(func() error { _, err := do(t.Context(), "c"); require.Error(t, err); return nil })
		}
		require.NoError(t, g.Wait())
		isBroken = false
		_, err = do(t.Context(), "c")
		require.NoError(t, err)
	})
}

// reviewsAtOnce makes 30 reviews of three nodes at one replica, each for another user.
func reviewsAtOnce(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	const count = 30
	decisions := make([]quorum.Decision, count)
	var g errgroup.Group
	for i := range count {
		g.Go(func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			req := f.Request(i % 3)
			req.User = fmt.Sprint("user ", i)
			decisions[i], err = reviewer.Review(ctx, req)
			return err
		})
	}
	require.NoError(t, g.Wait())
	c := f.Cluster()
	require.Len(t, c.Spec.Grants, 1)
	for i, d := range decisions {
		require.Equal(t, f.Nodes[i%3].UID == c.Spec.Grants[0].NodeUID, d.Allowed, "%d: %s", i, d.Message)
	}
	require.LessOrEqual(t, c.Spec.Ledger, int64(count/3/2), "the ten reviews that allow share their writes")
	require.LessOrEqual(t, reviewer.counterSum(t, "holdfast_webhook_asks_total"), 4.0, "they share their probes")
}
