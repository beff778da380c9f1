package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	// eventually is how long anything may take that is only waited for.
	eventually = 20 * time.Second
	often      = 10 * time.Millisecond
)

// newServer starts a kube-apiserver that knows EtcdClusters.
func newServer(t *testing.T) *rest.Config {
	t.Helper()
	server := testenv.NewAPIServer(t)
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-f", filepath.Join(root, "manifests/base/crd/holdfast.dev_etcdclusters.yaml"))
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "crd/etcdclusters.holdfast.dev")
	require.NoError(t, err)
	return server.Admin()
}

// world is one etcd cluster of three members with a Node each, and their agents. Members are named m0, m1, m2 in its
// methods by their index.
type world struct {
	t      *testing.T
	config *rest.Config
	scheme *runtime.Scheme
	client client.WithWatch
	id     v1alpha1.ClusterID
	nodes  []*corev1.Node

	mu sync.Mutex // guards what follows: what the agents see
	// list are the members as every agent sees them.
	list []v1alpha1.MemberStatus
	// silent are the Nodes whose agent does not answer.
	silent map[string]bool
	// blind are the Nodes whose agent answers that it cannot see.
	blind map[string]bool
}

// newWorld makes the Nodes, labelled and announcing, and no EtcdCluster. The number makes IDs and names unique.
func newWorld(t *testing.T, config *rest.Config, number int) *world {
	t.Helper()
	w := &world{
		t: t, config: config, scheme: runtime.NewScheme(), id: v1alpha1.ClusterID(fmt.Sprintf("c%04x", number)),
		silent: map[string]bool{}, blind: map[string]bool{},
	}
	require.NoError(t, corev1.AddToScheme(w.scheme))
	require.NoError(t, v1alpha1.AddToScheme(w.scheme))
	var err error
	w.client, err = client.NewWithWatch(config, client.Options{Scheme: w.scheme})
	require.NoError(t, err)
	for i := range 3 {
		w.list = append(w.list, v1alpha1.MemberStatus{
			ID: w.member(i), Name: fmt.Sprintf("etcd%d", i), Healthy: true,
			PeerURLs:   []string{fmt.Sprintf("https://10.0.%d.%d:2380", number, i+1)},
			ClientURLs: []string{fmt.Sprintf("https://10.0.%d.%d:2379", number, i+1)},
		})
		w.nodes = append(w.nodes, w.register(fmt.Sprintf("n%d-%s", i, w.id), fmt.Sprintf("10.0.%d.%d", number, i+1), w.member(i)))
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, client.IgnoreNotFound(w.client.Delete(ctx, w.object())))
		for _, n := range w.nodes {
			require.NoError(t, client.IgnoreNotFound(w.client.Delete(ctx, n)))
		}
	})
	return w
}

// member returns the ID of the i-th member.
func (w *world) member(i int) v1alpha1.MemberID {
	return v1alpha1.MemberID(fmt.Sprintf("%sa%d", w.id, i))
}

func (w *world) object() *v1alpha1.EtcdCluster {
	return &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(w.id)}}
}

// register makes a Node that announces a member.
func (w *world) register(name, address string, member v1alpha1.MemberID) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue},
		Annotations: map[string]string{
			protect.AnnouncementAnnotation: protect.FormatAnnouncement([]protect.MemberRef{{Cluster: w.id, Member: member}}),
		},
	}}
	require.NoError(w.t, w.client.Create(w.t.Context(), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	require.NoError(w.t, w.client.Status().Update(w.t.Context(), node))
	return node
}

// bound makes the EtcdCluster with all members bound, as the leader would have.
func (w *world) bound() {
	w.t.Helper()
	c := w.object()
	for i, n := range w.nodes {
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{MemberID: w.member(i), Node: n.Name, NodeUID: n.UID})
	}
	require.NoError(w.t, w.client.Create(w.t.Context(), c))
}

// now reads the object.
func (w *world) now() *v1alpha1.EtcdCluster {
	w.t.Helper()
	c := w.object()
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKeyFromObject(c), c))
	return c
}

// observe plays the agents from now on: each answers every nonce with what the world says it sees.
func (w *world) observe() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	g, ctx := errgroup.WithContext(ctx)
	for i, node := range w.nodes {
		g.Go(func() error { return w.agent(ctx, node.Name, w.member(i)) })
	}
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, g.Wait())
	})
}

// agent plays the agent of one node. It looks every few milliseconds, as nothing else wakes it when the world changes
// what it sees.
func (w *world) agent(ctx context.Context, name string, local v1alpha1.MemberID) error {
	answered := ""
	for {
		c, node := w.object(), &corev1.Node{}
		err := w.client.Get(ctx, client.ObjectKeyFromObject(c), c)
		if err == nil {
			err = w.client.Get(ctx, client.ObjectKey{Name: name}, node)
		}
		if err == nil && c.Spec.Nonce+string(node.UID) != answered {
			if w.answer(ctx, node, local, c.Spec.Nonce) == nil {
				answered = c.Spec.Nonce + string(node.UID)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(often):
		}
	}
}

// answer publishes what the agent of a node sees, as an answer to this nonce.
func (w *world) answer(ctx context.Context, node *corev1.Node, local v1alpha1.MemberID, nonce string) error {
	w.mu.Lock()
	silent, blind, list := w.silent[node.Name], w.blind[node.Name], slices.Clone(w.list)
	w.mu.Unlock()
	if silent {
		return fmt.Errorf("the agent of %s is silent", node.Name)
	}
	seen := v1alpha1.Observation{
		Node: node.Name, NodeUID: node.UID, Nonce: nonce, Time: metav1.Now(), LocalMember: local, Linearizable: true, Members: list,
	}
	if blind {
		seen.Linearizable, seen.Members, seen.Problem = false, nil, "connection refused"
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&seen)
	if err != nil {
		return err
	}
	apply := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"observations": []any{raw}}}}
	apply.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("EtcdCluster"))
	apply.SetName(string(w.id))
	return w.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		client.FieldOwner("holdfast/"+node.Name), client.ForceOwnership)
}

// see changes what the agents see.
func (w *world) see(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// book opens a Book with a cache of its own, as each replica of the webhook has.
func (w *world) book(change ...func(*Options)) *Book {
	w.t.Helper()
	informers, err := cache.New(w.config, cache.Options{Scheme: w.scheme})
	require.NoError(w.t, err)
	o := Options{
		Client: w.client, Reader: w.client, Cache: informers, Wait: 3 * time.Second,
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Registerer: prometheus.NewRegistry(),
	}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	b, err := New(ctx, o)
	require.NoError(w.t, err)
	_, err = informers.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	require.NoError(w.t, err)
	var g errgroup.Group
	g.Go(func() error { return informers.Start(ctx) })
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, g.Wait())
	})
	require.True(w.t, informers.WaitForCacheSync(ctx))
	return b
}

// question is the deletion of the i-th node, as admission asks it.
func (w *world) question(i int) protect.Question {
	n := w.nodes[i]
	return protect.Question{User: "alice", Request: protect.Request{
		Node: n.Name, UID: n.UID, Labelled: true, Addresses: []string{n.Status.Addresses[0].Address},
		Announced: []protect.MemberRef{{Cluster: w.id, Member: w.member(i)}},
	}}
}

// delete deletes the i-th Node behind Holdfast's back.
func (w *world) delete(i int) {
	w.t.Helper()
	require.NoError(w.t, w.client.Delete(w.t.Context(), w.nodes[i]))
}

// grantFor returns the grant for a Node UID, nil if there is none.
func grantFor(c *v1alpha1.EtcdCluster, uid types.UID) *v1alpha1.Grant {
	for i := range c.Spec.Grants {
		if c.Spec.Grants[i].NodeUID == uid {
			return &c.Spec.Grants[i]
		}
	}
	return nil
}
