package leader

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// registerExtra creates a Node without a member of the cluster.
func (h *leaderHarness) registerExtra() *corev1.Node {
	h.t.Helper()
	node := h.CreateNode("extra-"+string(h.ClusterID), "10.99.0.3", "1")
	h.DeleteAfterTest(node)
	return node
}

// announce makes a Node announce member 1 of each of these clusters, and nothing else.
func (h *leaderHarness) announce(node *corev1.Node, ids ...v1alpha1.ClusterID) {
	h.t.Helper()
	var refs []evidence.MemberRef
	for _, id := range ids {
		refs = append(refs, evidence.MemberRef{Cluster: id, Member: "1"})
	}
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, observation.AnnouncementAnnotation,
		observation.FormatAnnouncement(refs))
	require.NoError(h.t, h.Client.Patch(h.t.Context(), node, client.RawPatch(types.MergePatchType, []byte(body))))
}

func clusterLimitPerNode(t *testing.T, f *storetest.Fixture) {
	h := newHarness(t, f)
	h.reconcileUntil("one EtcdCluster", func(*v1alpha1.EtcdCluster) bool { return true })
	there := func(id string) bool {
		c := &v1alpha1.EtcdCluster{}
		c.Name = id
		err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c)
		require.NoError(t, client.IgnoreNotFound(err))
		return err == nil
	}
	for _, id := range []string{"eee1", "eee2", "eee3", "eee4"} {
		f.DeleteAfterTest(&v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: id}})
	}
	extra := h.registerExtra()
	h.announce(extra, "eee1", "eee2", "eee3")
	h.reconcileUntil("the log line about the limit", func(*v1alpha1.EtcdCluster) bool {
		return strings.Contains(h.log.String(), "etcd_cluster=eee3 announced_by")
	})
	require.True(t, there("eee1") && there("eee2"), "kOps runs two")
	h.announce(extra, "eee4")
	h.reconcileUntil("the log line about the limit", func(*v1alpha1.EtcdCluster) bool {
		return strings.Contains(h.log.String(), "etcd_cluster=eee4 announced_by")
	})
	require.False(t, there("eee3") || there("eee4"))
	require.NotContains(t, h.log.String(), "--max-etcd-clusters", "another value would change nothing")
	h.announce(f.Nodes[0], "eee4") // the share of another node
	h.reconcileUntil("the EtcdCluster of another node", func(*v1alpha1.EtcdCluster) bool { return there("eee4") })
}

func removedObservations(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	seenBy := func(c *v1alpha1.EtcdCluster, node *corev1.Node) bool {
		for _, o := range c.Observations {
			if o.Node == node.Name && o.NodeUID == node.UID {
				return true
			}
		}
		return false
	}
	extra := h.registerExtra()
	h.Nodes = append(h.Nodes, extra)
	h.reconcileUntil("an EtcdObservation of the new node", func(*v1alpha1.EtcdCluster) bool {
		return f.PublishObservation(t.Context(), extra, "1", "") == nil
	})
	h.reconcileUntil("the refused binding",
		func(c *v1alpha1.EtcdCluster) bool { return seenBy(c, extra) && len(c.Spec.Members) == 3 })
	require.NoError(t, h.reconcileAll())
	require.True(t, seenBy(f.Cluster(), extra), "the Node exists")
	require.NoError(t, f.Client.Delete(t.Context(), extra))
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name] = true })
	f.DeleteNode(0)
	c := h.reconcileUntil("the removed observation",
		func(c *v1alpha1.EtcdCluster) bool { return !seenBy(c, extra) && len(c.Spec.Grants) == 1 })
	for _, n := range f.Nodes[:3] {
		require.True(t, seenBy(c, n), n.Name)
	}
	require.NoError(t, h.reconcileAll())
	require.True(t, seenBy(f.Cluster(), f.Nodes[0]), "the observation of a tombstone must stay")
}
