package storetest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// RunAgents simulates the agents until the end of the test: each answers every nonce.
func (f *Fixture) RunAgents() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	g, ctx := errgroup.WithContext(ctx)
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, g.Wait())
	})
	watched := f.ColdCache()
	for i, node := range f.Nodes {
		wake := loop.NewSignal()
		notify := toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake.Notify() }, UpdateFunc: func(any, any) { wake.Notify() },
		}
		for _, kind := range []client.Object{&v1alpha1.EtcdCluster{}, &corev1.Node{}} {
			informer, err := watched.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
			require.NoError(f.t, err)
			_, err = informer.AddEventHandler(notify)
			require.NoError(f.t, err)
		}
		g.Go(func() error { return f.runAgent(ctx, watched, wake, node.Name, f.MemberID(i)) })
	}
	g.Go(func() error { return watched.Start(ctx) })
}

// runAgent simulates the agent of one node. It repeats what fails.
func (f *Fixture) runAgent(
	ctx context.Context, watched client.Reader, wake loop.Signal, name string, local v1alpha1.MemberID,
) error {
	answered := ""
	for {
		c, node, retry := f.EmptyCluster(), &corev1.Node{}, time.Duration(math.MaxInt64)
		err := watched.Get(ctx, client.ObjectKeyFromObject(c), c)
		if err == nil {
			err = watched.Get(ctx, client.ObjectKey{Name: name}, node)
		}
		if due := fmt.Sprint(c.Spec.Nonce, node.UID); err == nil && due != answered {
			if f.PublishObservation(ctx, node, local, c.Spec.Nonce) == nil {
				answered = due
			} else {
				retry = PollInterval
			}
		}
		if loop.Wait(ctx, retry, wake) != nil {
			return nil
		}
	}
}

// PublishObservation publishes the observation of the agent of a node as an answer to this
// nonce.
func (f *Fixture) PublishObservation(
	ctx context.Context, node *corev1.Node, local v1alpha1.MemberID, nonce string,
) error {
	f.mu.Lock()
	local = cmp.Or(f.Local[node.Name], local)
	silent, blind, list := f.Silent[node.Name], f.Blind[node.Name], slices.Clone(f.Members)
	f.mu.Unlock()
	if silent {
		return fmt.Errorf("the agent of %s is silent", node.Name)
	}
	seen := v1alpha1.Observation{
		Node: node.Name, NodeUID: node.UID, Nonce: nonce, Time: metav1.Now(), LocalMember: local, Linearizable: true,
		Members: list,
	}
	if blind {
		seen.Linearizable, seen.Members, seen.Problem = false, nil, "connection refused"
	}
	return f.Observe(ctx, seen)
}

// Observe writes the observation of a node, as its agent does.
func (f *Fixture) Observe(ctx context.Context, seen v1alpha1.Observation) error {
	agent, ok := f.AgentClients[seen.Node]
	if !ok {
		agent = f.Client
	}
	f.mu.Lock()
	last := f.written[seen.Node]
	f.mu.Unlock()
	if last != nil { // As an agent, which knows the version that it has written.
		o := last.DeepCopy()
		o.Observation = seen
		if err := agent.Update(ctx, o); err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			f.setWritten(o, err)
			return err
		}
	}
	// The agent that the fixture runs may write at the same time.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o := &v1alpha1.EtcdObservation{}
		key := client.ObjectKey{Name: v1alpha1.ObservationName(f.ClusterID, seen.Node)}
		if err := agent.Get(ctx, key, o); err != nil {
			return err
		}
		o.Observation = seen
		err := agent.Update(ctx, o)
		f.setWritten(o, err)
		return err
	})
}

// setWritten remembers what a successful write has made.
func (f *Fixture) setWritten(o *v1alpha1.EtcdObservation, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.written == nil {
		f.written = map[string]*v1alpha1.EtcdObservation{}
	}
	if err == nil {
		f.written[o.Node] = o
	}
}

// CreateObservation creates the EtcdObservation of a node, as the leader would.
func (f *Fixture) CreateObservation(c *v1alpha1.EtcdCluster, node string) {
	f.t.Helper()
	o := &v1alpha1.EtcdObservation{Cluster: f.ClusterID, Observation: v1alpha1.Observation{Node: node}}
	o.Name = v1alpha1.ObservationName(f.ClusterID, node)
	o.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID,
	}}
	require.NoError(f.t, f.Client.Create(f.t.Context(), o))
	f.DeleteAfterTest(o)
}

// Observations reads the reports of the agents, by node.
func (f *Fixture) Observations() map[string]v1alpha1.Observation {
	f.t.Helper()
	found := map[string]v1alpha1.Observation{}
	for _, o := range f.Cluster().Observations {
		found[o.Node] = o
	}
	return found
}

// ChangeAgents changes what the agents report.
func (f *Fixture) ChangeAgents(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// SilenceAgents makes all agents stop answering.
func (f *Fixture) SilenceAgents() {
	f.ChangeAgents(func() {
		for _, n := range f.Nodes {
			f.Silent[n.Name] = true
		}
	})
}

// WriteNonce writes a nonce, as another replica would.
func (f *Fixture) WriteNonce(nonce string) {
	f.t.Helper()
	body := fmt.Appendf(nil, `{"spec":{"nonce":%q}}`, nonce)
	require.NoError(f.t, f.Client.Patch(f.t.Context(), f.EmptyCluster(), client.RawPatch(types.MergePatchType, body)))
}

// PublishAll publishes the observations of all agents as answers to this nonce.
func (f *Fixture) PublishAll(nonce string) {
	f.t.Helper()
	for i, n := range f.Nodes {
		require.NoError(f.t, f.PublishObservation(f.t.Context(), n, f.MemberID(i), nonce))
	}
}
