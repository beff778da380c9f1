package leader

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestListedHolders: two founders list a member at the address of a Node that does not announce it.
func TestListedHolders(t *testing.T) {
	const url = "https://10.0.0.2:2380"
	listed := []v1alpha1.MemberStatus{
		{ID: "a", Name: "a"}, {ID: "b", Name: "b", PeerURLs: []string{url}}, {ID: "c", Name: "c"},
	}
	for name, test := range map[string]struct {
		list        []v1alpha1.MemberStatus
		isConfirmed bool
		nonce       string // of the last probe request; the observations answer "now"
		want        int
	}{
		"confirmed":                {listed, true, "now", 1},
		"F89 no list is confirmed": {listed, false, "now", 1},
		// F93: before the first answer to a probe request, old lists put the label on the wrong node
		// permanently.
		"F93 not answered yet":       {listed, true, "next", 0},
		"all members are located":    {slices.Delete(slices.Clone(listed), 1, 2), true, "now", 0},
		"the same, unconfirmed":      {slices.Delete(slices.Clone(listed), 1, 2), false, "now", 0},
		"no observer knows a member": {nil, false, "now", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
			for id, node := range map[v1alpha1.MemberID]string{"a": "etcd-1", "c": "etcd-3"} {
				uid := types.UID("uid of " + node)
				c.Spec.Members = append(c.Spec.Members,
					v1alpha1.Binding{MemberID: id, Node: node, NodeUID: uid, Basis: v1alpha1.BasisRole})
				c.Observations = append(c.Observations, v1alpha1.Observation{
					Node: node, NodeUID: uid, LocalMember: id, Linearizable: test.isConfirmed, Members: test.list, Nonce: "now",
				})
			}
			c.Spec.Nonce = test.nonce
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "etcd-2", UID: "uid of etcd-2"}}
			c.Spec.Grants = []v1alpha1.Grant{{Node: n.Name, NodeUID: n.UID, Members: []v1alpha1.MemberID{"left"}}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}
			require.Len(t, place.Members(place.On(c, n), labelSources(c)), test.want)
		})
	}
}

// TestRestoreLabelsBesideManyNodes: a member is on no Node. The leader compares its URLs with the
// addresses of all Nodes at once.
func TestRestoreLabelsBesideManyNodes(t *testing.T) {
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
	c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "etcd-1", NodeUID: "u1", Basis: v1alpha1.BasisRole}}
	o := v1alpha1.Observation{Node: "etcd-1", NodeUID: "u1", LocalMember: "a", Linearizable: true, Nonce: "now"}
	c.Spec.Nonce = o.Nonce
	o.Members = []v1alpha1.MemberStatus{{ID: "a", Name: "a"}, {ID: "b", Name: "b"}}
	for i := range 20 {
		o.Members[1].PeerURLs = append(o.Members[1].PeerURLs, fmt.Sprintf("http://elsewhere-%d", i))
	}
	c.Observations = []v1alpha1.Observation{o}
	require.NotEqual(t, place.Bound, labelSources(c))
	const nodes = 2000
	index := nodeIndex{}
	for i := range nodes {
		name := fmt.Sprint("worker-", i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		n.Status.Addresses = []corev1.NodeAddress{{Address: name}}
		index[name] = indexedNode{Node: n}
	}
	l := &Leader{Options: Options{Now: time.Now}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, l.restoreLabels(t.Context(), c, index, newClusterState()))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*nodes<<10))
}

func TestSharedProviderIDs(t *testing.T) {
	index := nodeIndex{}
	for name, id := range map[string]string{
		"etcd-1": "aws:///a/i-1", "etcd-2": "aws:///a/i-2", "etcd-3": "",
		"worker-1": "aws:///a/i-1", "worker-2": "", "worker-3": "aws:///a/i-9", "worker-4": "aws:///a/i-9",
	} {
		index[name] = indexedNode{Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)},
			Spec:       corev1.NodeSpec{ProviderID: id},
		}}
	}
	bind := func(names ...string) *v1alpha1.EtcdCluster {
		c := &v1alpha1.EtcdCluster{}
		for _, name := range names {
			c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{Node: name, NodeUID: types.UID("uid of " + name)})
		}
		return c
	}
	const first = "nodes etcd-1 and worker-1 have the same spec.providerID aws:///a/i-1"
	require.Equal(t, []string{first}, sharedProviderIDs(bind("etcd-1", "etcd-2", "etcd-3", "gone"), index),
		"an empty ID is no shared ID, and workers do not matter")
	require.Equal(t, []string{first}, sharedProviderIDs(bind("etcd-1", "worker-1"), index), "each pair once")

	replaced := bind("etcd-1")
	replaced.Spec.Members[0].NodeUID = "uid of an earlier Node"
	require.Empty(t, sharedProviderIDs(replaced, index))
}

func TestReportSharedIDs(t *testing.T) {
	node := func(name, id string) indexedNode {
		return indexedNode{Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}, Spec: corev1.NodeSpec{ProviderID: id},
		}}
	}
	var messages []string
	event := func(_ *corev1.ObjectReference, eventType, _, message string) {
		require.Equal(t, corev1.EventTypeWarning, eventType)
		messages = append(messages, message)
	}
	l := &Leader{Options: Options{Log: slog.New(slog.DiscardHandler), RecordEvent: event}}
	c, s := &v1alpha1.EtcdCluster{}, newClusterState()
	c.Spec.Members = []v1alpha1.Binding{{Node: "etcd-1", NodeUID: "u"}}
	shared := nodeIndex{"etcd-1": node("etcd-1", "x"), "worker-1": node("worker-1", "x")}
	l.reportSharedIDs(c, nodeIndex{"etcd-1": node("etcd-1", "x")}, s)
	require.Empty(t, messages)
	l.reportSharedIDs(c, shared, s)
	l.reportSharedIDs(c, shared, s)
	require.Len(t, messages, 1, "an event per round would be noise")
	require.Contains(t, messages[0], "nodes etcd-1 and worker-1 have the same spec.providerID x; an autoscaler may")
}

func removedLabel(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	breakGlass, err := json.Marshal(quorum.BreakGlass{
		UID: f.Nodes[1].UID, Until: time.Now().Add(time.Minute),
		Reason: "the webhook is down",
	})
	require.NoError(t, err)
	patch := func(i int, body map[string]any) {
		text, err := json.Marshal(map[string]any{"metadata": body})
		require.NoError(t, err)
		require.NoError(t, f.Client.Patch(t.Context(), f.Nodes[i].DeepCopy(), client.RawPatch(types.MergePatchType, text)))
	}
	patch(1, map[string]any{
		"labels":      map[string]any{observation.EtcdMemberLabel: nil},
		"annotations": map[string]any{quorum.BreakGlassAnnotation: string(breakGlass)},
	})
	patch(0, map[string]any{"labels": map[string]any{observation.EtcdMemberLabel: nil, "example.org/other": "kept"}})
	patch(2, map[string]any{
		"labels":     map[string]any{observation.EtcdMemberLabel: nil},
		"finalizers": []string{"example.org/slow"},
	})
	require.NoError(t, f.Client.Delete(t.Context(), f.Nodes[2]))
	node := &corev1.Node{}
	h.reconcileUntil("the label, also of a Node that is being deleted", func(*v1alpha1.EtcdCluster) bool {
		return f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[2]), node) == nil && observation.IsLabelled(node)
	})
	h.reconcileUntil("the label", func(*v1alpha1.EtcdCluster) bool {
		return f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[0]), node) == nil && observation.IsLabelled(node)
	})
	require.Equal(t, "kept", node.Labels["example.org/other"])
	require.Equal(t, f.Nodes[0].UID, node.UID)
	require.Contains(t, h.events(), "Normal LabelRestored")
	require.Len(t, f.Cluster().Spec.Members, 3)

	require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Nodes[1]), node))
	require.False(t, observation.IsLabelled(node), "the user who set the break-glass annotation removed the label")
}

func listedByOthers(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	bare := func(name, address string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + string(f.ClusterID)}}
		require.NoError(t, f.Client.Create(t.Context(), node))
		f.DeleteAfterTest(node)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		require.NoError(t, f.Client.Status().Update(t.Context(), node))
		return node
	}
	hasLabel := func(node *corev1.Node) bool {
		require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		return observation.IsLabelled(node)
	}
	fourth, empty, worker := bare("fourth", "10.98.0.4"), bare("empty", "10.98.0.5"), bare("worker", "10.98.0.6")
	empty.Status.Conditions = []corev1.NodeCondition{{
		Type:   observation.EtcdMemberCondition,
		Status: corev1.ConditionFalse,
	}}
	require.NoError(t, f.Client.Status().Update(t.Context(), empty))
	f.ChangeAgents(func() {
		f.Members = append(slices.Clone(f.Members),
			v1alpha1.MemberStatus{ID: "4", Name: "etcd4", PeerURLs: []string{"https://10.98.0.4:2380"}},
			v1alpha1.MemberStatus{ID: "5", Name: "etcd5", PeerURLs: []string{"https://10.98.0.5:2380"}})
	})
	h.advance(2 * time.Minute)
	h.reconcileUntil("the label", func(*v1alpha1.EtcdCluster) bool { return hasLabel(fourth) })
	require.Contains(t, h.events(), "Normal LabelRestored")
	h.reconcileUntil("the label: the agent may have found nothing before etcd was installed, and stopped",
		func(*v1alpha1.EtcdCluster) bool { return hasLabel(empty) })
	require.NoError(t, f.Client.Patch(t.Context(), empty,
		client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`,
			observation.EtcdMemberLabel))))
	h.probeTimes(1, 2*time.Minute)
	require.NoError(t, h.reconcileAll())
	require.False(t, hasLabel(empty), "its agent runs and reports no member")
	require.False(t, hasLabel(worker))
}
