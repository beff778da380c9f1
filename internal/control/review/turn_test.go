package review

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A deafCache delivers no change of an EtcdCluster, as a watch that hangs.
type deafCache struct{ cache.Cache }

type deafInformer struct{ toolscache.SharedIndexInformer }

// AddEventHandler implements cache.Informer.
func (deafInformer) AddEventHandler(
	toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil //nolint:nilnil // The registration has no user.
}

// GetInformer implements cache.Cache.
func (c deafCache) GetInformer(
	ctx context.Context, o client.Object, options ...cache.InformerGetOption,
) (cache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, o, options...)
	shared, isShared := informer.(toolscache.SharedIndexInformer)
	if _, isCluster := o.(*v1alpha1.EtcdCluster); isCluster && isShared {
		return deafInformer{shared}, err
	}
	return informer, err
}

// nonceWhileAnotherDecides: the watch of the EtcdClusters hangs, and while another review decides,
// the agents answer a nonce of another replica.
func nonceWhileAnotherDecides(t *testing.T, f *storetest.Fixture) {
	const wait = 300 * time.Millisecond
	reviewer := newReviewer(f, wait, func(o *clusterstore.Options) { o.Cache = deafCache{o.Cache} })
	c, hasDecided := f.Cluster(), make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		_, err := reviewer.turns.take(&attempt{ctx: t.Context(), cluster: c}, func(batch []*attempt) {
			<-hasDecided
			batch[0].err = nil
		})
		return err
	})
	var decision quorum.Decision
	g.Go(func() error { decision = review(t, reviewer, f.Request(0)); return nil })
	require.Eventually(t, func() bool { return f.Cluster().Spec.Nonce != "" },
		storetest.WaitTimeout, storetest.PollInterval)
	f.WriteNonce("first")
	f.PublishAll("first")
	require.Eventually(t, func() bool { // The review waits for no further answer.
		reviewer.turns.mu.Lock()
		defer reviewer.turns.mu.Unlock()
		return len(reviewer.turns.queues[c.UID].waiting) == 1
	}, storetest.WaitTimeout, storetest.PollInterval)
	f.WriteNonce("second")
	f.PublishAll("second")
	close(hasDecided)
	require.NoError(t, g.Wait())
	require.True(t, decision.Allowed, decision.Message)
}
