// Package storetest runs one etcd cluster on a real API server, for the tests of the
// packages that use clusterstore: three Nodes, their members, and agents that answer probe
// requests.
package storetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// WaitTimeout limits every wait for an expected state.
	WaitTimeout = time.Minute
	// PollInterval is the time between two checks of an expected state.
	PollInterval = 10 * time.Millisecond
)

// NewServer starts a kube-apiserver with the CRDs of Holdfast.
func NewServer(t *testing.T) *rest.Config {
	t.Helper()
	server := apiserver.New(t)
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "manifests/base/crd/*.yaml"))
	require.NoError(t, err)
	api := server.Client().RESTClient()
	for _, file := range files {
		definition, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, api.Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/yaml").Body(definition).Do(t.Context()).Error())
	}
	for _, kind := range []string{"etcdclusters", "etcdobservations"} {
		require.Eventually(t, func() bool {
			return api.Get().AbsPath("/apis/holdfast.dev/v1alpha1/"+kind).Do(t.Context()).Error() == nil
		}, WaitTimeout, PollInterval)
	}
	return server.Admin()
}

// A Fixture is one etcd cluster of three members, each with a Node and an agent.
type Fixture struct {
	t         *testing.T
	Config    *rest.Config
	scheme    *runtime.Scheme
	Client    client.WithWatch
	ClusterID v1alpha1.ClusterID
	Nodes     []*corev1.Node

	// AgentClients are the clients of the agents by node. The default is Client.
	AgentClients map[string]client.Client

	mu sync.Mutex // guards the fields below
	// written are the last versions that the agents have written, by node.
	written map[string]*v1alpha1.EtcdObservation
	// Members is the member list that every agent reports.
	Members []v1alpha1.MemberStatus
	// Local has the members that agents report as their own, by name of the Node, if they changed.
	Local map[string]v1alpha1.MemberID
	// Silent has the names of the Nodes whose agents do not answer.
	Silent map[string]bool
	// Blind has the names of the Nodes whose agents answer without a member list.
	Blind map[string]bool
}

// New creates the Nodes with labels, a role, and announcements, but no EtcdCluster. The number
// makes IDs and names unique.
func New(t *testing.T, config *rest.Config, number int) *Fixture {
	t.Helper()
	f := &Fixture{
		t: t, Config: config, scheme: runtime.NewScheme(), ClusterID: v1alpha1.ClusterID(fmt.Sprintf("c%04x", number)),
		Local: map[string]v1alpha1.MemberID{}, Silent: map[string]bool{}, Blind: map[string]bool{},
	}
	require.NoError(t, corev1.AddToScheme(f.scheme))
	require.NoError(t, v1alpha1.AddToScheme(f.scheme))
	var err error
	f.Client, err = client.NewWithWatch(config, client.Options{Scheme: f.scheme})
	require.NoError(t, err)
	for i := range 3 {
		f.Members = append(f.Members, v1alpha1.MemberStatus{
			ID: f.MemberID(i), Name: fmt.Sprintf("etcd%d", i), Healthy: true,
			PeerURLs:   []string{fmt.Sprintf("https://10.0.%d.%d:2380", number, i+1)},
			ClientURLs: []string{fmt.Sprintf("https://10.0.%d.%d:2379", number, i+1)},
		})
		f.Nodes = append(f.Nodes, f.CreateNode(fmt.Sprintf("n%d-%s", i, f.ClusterID),
			fmt.Sprintf("10.0.%d.%d", number, i+1), f.MemberID(i)))
		f.SetRole(f.Nodes[i], true)
	}
	f.DeleteAfterTest(f.EmptyCluster())
	t.Cleanup(func() { // includes Nodes that the test created again
		for _, n := range f.Nodes {
			require.NoError(t, client.IgnoreNotFound(f.Client.Delete(context.WithoutCancel(t.Context()), n)))
		}
	})
	return f
}

// MemberID returns the ID of the i-th member.
func (f *Fixture) MemberID(i int) v1alpha1.MemberID {
	return v1alpha1.MemberID(fmt.Sprintf("%sa%d", f.ClusterID, i))
}

// EmptyCluster returns an EtcdCluster that has only the name.
func (f *Fixture) EmptyCluster() *v1alpha1.EtcdCluster {
	return &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(f.ClusterID)}}
}

// CreateNode creates a Node that announces a member.
func (f *Fixture) CreateNode(name, address string, member v1alpha1.MemberID) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
		Annotations: map[string]string{
			observation.AnnouncementAnnotation: observation.FormatAnnouncement([]evidence.MemberRef{{
				Cluster: f.ClusterID,
				Member:  member,
			}}),
		},
	}}
	require.NoError(f.t, f.Client.Create(f.t.Context(), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	require.NoError(f.t, f.Client.Status().Update(f.t.Context(), node))
	return node
}

// SetRole gives the Node the role of etcd, or takes it.
func (f *Fixture) SetRole(node *corev1.Node, hasRole bool) {
	f.t.Helper()
	before := node.DeepCopy()
	delete(node.Labels, observation.RoleLabels()[1])
	if hasRole {
		node.Labels[observation.RoleLabels()[1]] = ""
	}
	require.NoError(f.t, f.Client.Patch(f.t.Context(), node, client.MergeFrom(before)))
}

// CreateBound creates the EtcdCluster with bindings for all members, and the EtcdObservations, as
// the leader would.
func (f *Fixture) CreateBound() {
	f.t.Helper()
	c := f.EmptyCluster()
	c.Spec.Observers = v1alpha1.NodesWithRole
	for i, n := range f.Nodes {
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{
			MemberID: f.MemberID(i), Node: n.Name, NodeUID: n.UID, Basis: v1alpha1.BasisRole,
		})
	}
	require.NoError(f.t, f.Client.Create(f.t.Context(), c))
	for _, n := range f.Nodes {
		f.CreateObservation(c, n.Name)
	}
}

// Cluster reads the EtcdCluster with its observations.
func (f *Fixture) Cluster() *v1alpha1.EtcdCluster {
	f.t.Helper()
	c, list := f.EmptyCluster(), &v1alpha1.EtcdObservationList{}
	require.NoError(f.t, f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(c), c))
	require.NoError(f.t, f.Client.List(f.t.Context(), list))
	all := make([]*v1alpha1.EtcdObservation, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return observation.Join(c, all)
}

// SecondCluster creates a cluster with bindings whose members run on the same Nodes. Its
// third member is not healthy.
func (f *Fixture) SecondCluster() *Fixture {
	f.t.Helper()
	other := &Fixture{
		t: f.t, Config: f.Config, scheme: f.scheme, Client: f.Client, ClusterID: f.ClusterID + "b", Nodes: f.Nodes,
		Silent: map[string]bool{}, Blind: map[string]bool{},
	}
	for i := range f.Nodes {
		other.Members = append(other.Members, v1alpha1.MemberStatus{ID: other.MemberID(i), Name: "events", Healthy: i != 2})
	}
	other.CreateBound()
	f.t.Cleanup(func() {
		require.NoError(f.t, f.Client.Delete(context.WithoutCancel(f.t.Context()), other.EmptyCluster()))
	})
	return other
}

// PatchNode applies a merge patch to the i-th Node.
func (f *Fixture) PatchNode(i int, body string) {
	f.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(body))
	require.NoError(f.t, f.Client.Patch(f.t.Context(), f.Nodes[i].DeepCopy(), patch))
}

// SetCondition sets a condition of a Node.
func (f *Fixture) SetCondition(i int, kind, status string) {
	f.t.Helper()
	body := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Disk",
		"lastTransitionTime":"2026-05-01T12:00:00Z"}]}}`, kind, status)
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(body))
	require.NoError(f.t, f.Client.Status().Patch(f.t.Context(), f.Nodes[i].DeepCopy(), patch))
}

// DeleteAfterTest deletes the object at the end of the test, if it still exists.
func (f *Fixture) DeleteAfterTest(o client.Object) {
	f.t.Cleanup(func() {
		require.NoError(f.t, client.IgnoreNotFound(f.Client.Delete(context.WithoutCancel(f.t.Context()), o)))
	})
}

// OpenStore returns a Store with its own cache, as each replica of the webhook has.
func (f *Fixture) OpenStore(change ...func(*clusterstore.Options)) *clusterstore.Store {
	f.t.Helper()
	informers, err := cache.New(f.Config, cache.Options{Scheme: f.scheme})
	require.NoError(f.t, err)
	o := clusterstore.Options{Client: f.Client, Reader: f.Client, Cache: informers, Registerer: prometheus.NewRegistry()}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	s, err := clusterstore.New(ctx, o)
	require.NoError(f.t, err)
	_, err = informers.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	require.NoError(f.t, err)
	var g errgroup.Group
	g.Go(func() error { return informers.Start(ctx) })
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, g.Wait())
	})
	require.True(f.t, informers.WaitForCacheSync(ctx))
	return s
}

// AddMarks returns a change of the options of a Store: a taint of machines that go for good, and
// marks of machines that are away for a while.
func AddMarks(doomed string, away ...string) func(*clusterstore.Options) {
	return func(o *clusterstore.Options) {
		o.Departures = o.Departures.Add(departure.ForGood, doomed)
		for _, key := range away {
			o.Departures = o.Departures.Add(departure.ForAWhile, key)
		}
	}
}

// ColdCache returns a cache that has not started.
func (f *Fixture) ColdCache() cache.Cache {
	f.t.Helper()
	cold, err := cache.New(f.Config, cache.Options{Scheme: f.scheme})
	require.NoError(f.t, err)
	return cold
}

// Request returns the request to delete the i-th node, as package admission makes it.
func (f *Fixture) Request(i int) quorum.Request {
	n := f.Nodes[i]
	return quorum.Request{
		Node: n.Name, UID: n.UID, Version: n.ResourceVersion, Door: quorum.DoorDelete, Labelled: true,
		Addresses: []string{n.Status.Addresses[0].Address},
		Announced: []evidence.MemberRef{{Cluster: f.ClusterID, Member: f.MemberID(i)}}, User: "alice",
	}
}

// Drain returns the request to drain the i-th node, as package admission makes it.
func (f *Fixture) Drain(i int) quorum.Request {
	req := f.Request(i)
	req.Door, req.Version = quorum.DoorDrain, ""
	return req
}

// Cordon closes or opens the i-th Node.
func (f *Fixture) Cordon(i int, isClosed bool) {
	f.t.Helper()
	f.PatchNode(i, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, isClosed))
}

// DeleteNode deletes the i-th Node without a review.
func (f *Fixture) DeleteNode(i int) {
	f.t.Helper()
	require.NoError(f.t, f.Client.Delete(f.t.Context(), f.Nodes[i]))
}

// GrantFor returns the grant for a Node UID, nil if there is none.
func GrantFor(c *v1alpha1.EtcdCluster, uid types.UID) *v1alpha1.Grant {
	for i := range c.Spec.Grants {
		if c.Spec.Grants[i].NodeUID == uid {
			return &c.Spec.Grants[i]
		}
	}
	return nil
}
