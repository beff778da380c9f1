package clusterstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func TestNodeState(t *testing.T) {
	now := metav1.NewTime(time.Now())
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		change(n)
		return n
	}
	taint := func(key string) *corev1.Node {
		return node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: key}} })
	}
	marked := func(class departure.Class, key, says string) observation.NodeState {
		return observation.NodeState{
			Known: true, UID: "u", Departure: departure.Mark{Class: class, Kind: departure.Taint, Key: key, Says: says},
		}
	}
	for name, test := range map[string]struct {
		read LiveNode
		want observation.NodeState
	}{
		"unreadable": {LiveNode{Err: errors.New("timeout")}, observation.NodeState{}},
		"absent":     {LiveNode{}, observation.NodeState{Known: true}},
		"present":    {LiveNode{Node: node(func(*corev1.Node) {})}, observation.NodeState{Known: true, UID: "u"}},
		"cordoned": {
			LiveNode{Node: node(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
			observation.NodeState{Known: true, UID: "u", Cordoned: true},
		},
		"being deleted": {
			LiveNode{Node: node(func(n *corev1.Node) { n.DeletionTimestamp = &now })},
			observation.NodeState{Known: true, UID: "u", Deleting: true},
		},
		"cluster-autoscaler": {
			LiveNode{Node: taint("ToBeDeletedByClusterAutoscaler")},
			marked(departure.ForGood, "ToBeDeletedByClusterAutoscaler", "is about to be deleted"),
		},
		"medik8s": {
			LiveNode{Node: taint("medik8s.io/drain")},
			marked(departure.ForAWhile, "medik8s.io/drain", "is under maintenance by node-maintenance-operator"),
		},
		"--doomed-taint": {
			LiveNode{Node: taint("example.com/gone")},
			marked(departure.ForGood, "example.com/gone", "is marked by --doomed-taint as going for good"),
		},
		"deletion candidate": {
			LiveNode{Node: taint("DeletionCandidateOfClusterAutoscaler")},
			observation.NodeState{Known: true, UID: "u"},
		},
	} {
		table := departure.Table{}.Add(departure.ForGood, "example.com/gone")
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, test.read.State(table)) })
	}
}

// TestUnfilledCache: before the first list, the Nodes are not known, which is an error.
func TestUnfilledCache(t *testing.T) {
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.Node{}, 0, toolscache.Indexers{})
	nodes, err := openNodes(t.Context(), oneInformer{Informer: informer})
	require.NoError(t, err)
	s := &Store{nodes: nodes}
	_, err = s.CachedNodes(t.Context())
	require.ErrorIs(t, err, errNotFilled)
	_, err = s.CachedNodesNamed([]string{"n"})
	require.ErrorIs(t, err, errNotFilled)
	_, err = openNodes(t.Context(), oneInformer{})
	require.ErrorContains(t, err, "has no store")
}

// A watch that was interrupted may miss the deletion of an object.
func TestFollowMissedDeletion(t *testing.T) {
	informer := &handlerInformer{}
	s := &Store{cache: oneInformer{Informer: informer}}
	var seen []string
	require.NoError(t, s.Follow(t.Context(), func(c *v1alpha1.EtcdCluster) { seen = append(seen, c.Name) }))
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
	informer.handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "c1", Obj: c})
	require.Equal(t, []string{"c1"}, seen)
}

// handlerInformer keeps the handler that is added.
type handlerInformer struct {
	cache.Informer
	handler toolscache.ResourceEventHandler
}

func (i *handlerInformer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handler = handler
	return nil, nil
}

// oneInformer is a cache with one informer.
type oneInformer struct {
	cache.Cache
	cache.Informer
}

// GetInformer returns the informer.
func (c oneInformer) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return c.Informer, nil
}
