package review

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A deafCache delivers no change of one kind, as a watch that hangs.
type deafCache struct {
	cache.Cache
	kind client.Object
}

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
	if reflect.TypeOf(o) == reflect.TypeOf(c.kind) && isShared {
		return deafInformer{shared}, err
	}
	return informer, err
}

// nonceWhileAnotherDecides: the watch of the EtcdClusters hangs, and while another review decides,
// the agents answer a nonce of another replica.
func nonceWhileAnotherDecides(t *testing.T, f *storetest.Fixture) {
	const wait = 300 * time.Millisecond
	reviewer := newReviewer(f, wait, func(o *clusterstore.Options) {
		o.Cache = deafCache{o.Cache, &v1alpha1.EtcdCluster{}}
	})
	c, hasDecided := f.Cluster(), make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		_, err := reviewer.turns.take(&attempt{ctx: t.Context(), result: resultOf(c)}, func(batch []*attempt) {
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

// hangingWatch: the watch of the observations hangs. Live reads show the answers within a second.
func hangingWatch(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, longWait, func(o *clusterstore.Options) {
		o.Cache = deafCache{o.Cache, &v1alpha1.EtcdObservation{}}
	})
	begun := time.Now()
	decision := review(t, reviewer, f.Request(0))
	require.True(t, decision.Allowed, decision.Message)
	require.Less(t, time.Since(begun), longWait)
}

// A hangingReader does not answer reads of one Node.
type hangingReader struct {
	client.Reader
	node string
}

// Get implements client.Reader.
func (r hangingReader) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	if _, isNode := o.(*corev1.Node); isNode && key.Name == r.node {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.Reader.Get(ctx, key, o, options...)
}

// resultOf returns a result that does not change.
func resultOf(c *v1alpha1.EtcdCluster, nonces ...string) func() clusterstore.ProbeResult {
	return func() clusterstore.ProbeResult { return clusterstore.ProbeResult{Cluster: c, Nonces: nonces} }
}

// attemptFor returns an attempt about the i-th node that has this time, after all agents have
// answered the nonce n.
func attemptFor(t *testing.T, f *storetest.Fixture, i int, limit time.Duration) *attempt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &attempt{
		ctx: ctx, request: f.Request(i), result: resultOf(f.Cluster(), "n"),
		judge: quorum.Decide, mayGrant: true, done: make(chan struct{}),
	}
}

// answeredProbe returns a probe request that all agents have answered.
func answeredProbe(t *testing.T, f *storetest.Fixture, reviewer testReviewer) *clusterstore.ProbeRequest {
	t.Helper()
	probe, err := reviewer.store.RequestProbe(t.Context(), f.Cluster())
	require.NoError(t, err)
	t.Cleanup(probe.Release)
	require.Eventually(t, func() bool { return len(probe.Result().Answers) == 3 },
		storetest.WaitTimeout, storetest.PollInterval)
	return probe
}

// hangingReadOfNode: two reviews share a turn. One of them is that of a hook, which has more time.
func hangingReadOfNode(t *testing.T, f *storetest.Fixture) {
	f.WriteNonce("n")
	f.PublishAll("n")
	reviewer := newReviewer(f, 0, func(o *clusterstore.Options) {
		o.Reader = hangingReader{o.Reader, f.Nodes[2].Name}
	})
	webhook, hook := attemptFor(t, f, 0, 7*time.Second), attemptFor(t, f, 1, 15*time.Second)
	reviewer.turns.add(f.Cluster().UID, webhook)
	_, err := reviewer.turns.take(hook, reviewer.turn)
	require.NoError(t, err)
	<-webhook.done
	require.NoError(t, webhook.err)
	require.Equal(t, quorum.QuorumWouldBeLost, webhook.verdict.Reason)
}

// refusalBesideRefusedWrite: two reviews share a turn. One is refused, and the grant of the other
// one cannot be written.
func refusalBesideRefusedWrite(t *testing.T, f *storetest.Fixture) {
	f.ChangeAgents(func() { f.Members[2].Healthy = false })
	f.WriteNonce("n")
	f.PublishAll("n")
	reviewer := newReviewer(f, 0, func(o *clusterstore.Options) { o.Client = refusingClient{o.Client, "/spec/grants"} })
	refused, dead := attemptFor(t, f, 0, 8*time.Second), attemptFor(t, f, 2, 8*time.Second)
	after := attemptFor(t, f, 1, 8*time.Second)
	reviewer.turns.add(f.Cluster().UID, refused)
	reviewer.turns.add(f.Cluster().UID, dead)
	_, err := reviewer.turns.take(after, reviewer.turn)
	require.ErrorContains(t, err, "recording the grant", "its refusal would name the grant")
	require.ErrorContains(t, dead.err, "recording the grant")
	require.NoError(t, refused.err)
	require.Equal(t, quorum.QuorumWouldBeLost, refused.verdict.Reason)
}
