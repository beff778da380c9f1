package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func relabelled(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	glass, err := json.Marshal(protect.BreakGlass{UID: w.nodes[1].UID, Until: time.Now().Add(time.Minute), Reason: "the webhook is down"})
	require.NoError(t, err)
	patch := func(i int, body map[string]any) {
		text, err := json.Marshal(map[string]any{"metadata": body})
		require.NoError(t, err)
		require.NoError(t, w.client.Patch(t.Context(), w.nodes[i].DeepCopy(), client.RawPatch(types.MergePatchType, text)))
	}
	patch(1, map[string]any{
		"labels":      map[string]any{protect.EtcdMemberLabel: nil},
		"annotations": map[string]any{protect.BreakGlassAnnotation: string(glass)},
	})
	patch(0, map[string]any{"labels": map[string]any{protect.EtcdMemberLabel: nil, "somebody": "elses"}})
	node := &corev1.Node{}
	r.until("the label", func(*v1alpha1.EtcdCluster) bool {
		return w.client.Get(t.Context(), client.ObjectKeyFromObject(w.nodes[0]), node) == nil && labelled(node)
	})
	require.Equal(t, "elses", node.Labels["somebody"])
	require.Equal(t, w.nodes[0].UID, node.UID)
	require.Contains(t, r.told(), "LabelRestored")
	require.Len(t, w.now().Spec.Members, 3)

	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(w.nodes[1]), node))
	require.False(t, labelled(node), "somebody with the right to do so broke the glass and took it off")
}

func unannounced(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	bare := func(name, address string) *corev1.Node {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + string(w.id)}}
		require.NoError(t, w.client.Create(t.Context(), node))
		t.Cleanup(func() { require.NoError(t, w.client.Delete(context.WithoutCancel(t.Context()), node)) })
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		require.NoError(t, w.client.Status().Update(t.Context(), node))
		return node
	}
	isLabelled := func(node *corev1.Node) bool {
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		return labelled(node)
	}
	fourth, looked, worker := bare("fourth", "10.98.0.4"), bare("looked", "10.98.0.5"), bare("worker", "10.98.0.6")
	looked.Status.Conditions = []corev1.NodeCondition{{Type: protect.EtcdMemberCondition, Status: corev1.ConditionFalse}}
	require.NoError(t, w.client.Status().Update(t.Context(), looked))
	w.see(func() {
		w.list = append(slices.Clone(w.list),
			v1alpha1.MemberStatus{ID: "4", Name: "etcd4", PeerURLs: []string{"https://10.98.0.4:2380"}},
			v1alpha1.MemberStatus{ID: "5", Name: "etcd5", PeerURLs: []string{"https://10.98.0.5:2380"}})
	})
	r.pass(2 * time.Minute)
	r.until("the label", func(*v1alpha1.EtcdCluster) bool { return isLabelled(fourth) })
	require.Contains(t, r.told(), "LabelRestored")
	r.until("the label, since its agent may have looked before there was anything, and be dead", func(*v1alpha1.EtcdCluster) bool { return isLabelled(looked) })
	require.NoError(t, w.client.Patch(t.Context(), looked, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, protect.EtcdMemberLabel))))
	r.looks(1, 2*time.Minute)
	require.NoError(t, r.leader.round(t.Context()))
	require.False(t, isLabelled(looked), "its agent lives, and knows better")
	require.False(t, isLabelled(worker))
}
