package leader

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestSharedProviderIDs(t *testing.T) {
	index := nodeIndex{}
	for name, id := range map[string]string{
		"etcd-1": "aws:///a/i-1", "etcd-2": "aws:///a/i-2", "etcd-3": "",
		"worker-1": "aws:///a/i-1", "worker-2": "", "worker-3": "aws:///a/i-9", "worker-4": "aws:///a/i-9",
	} {
		index[name] = nodeEntry{Node: &corev1.Node{
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
	node := func(name, id string) nodeEntry {
		return nodeEntry{Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}, Spec: corev1.NodeSpec{ProviderID: id},
		}}
	}
	var messages []string
	event := func(_ *v1alpha1.EtcdCluster, reason, message string) {
		require.Equal(t, corev1.EventTypeWarning, EventType(reason))
		messages = append(messages, message)
	}
	l := &Leader{Options: Options{Log: slog.New(slog.DiscardHandler), Event: event}}
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
