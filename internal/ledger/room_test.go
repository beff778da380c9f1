package ledger

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func tooMany(t *testing.T, w *world) {
	r := w.reign(func(o *LeaderOptions) { o.MaxClusters = 1 })
	r.until("one object", func(*v1alpha1.EtcdCluster) bool { return true })
	r.announce(r.extra(), "eeee")
	r.until("the log to say so", func(*v1alpha1.EtcdCluster) bool { return r.leader.said["create/eeee"] != "" })
	list := &v1alpha1.EtcdClusterList{}
	require.NoError(t, w.client.List(t.Context(), list))
	require.Len(t, list.Items, 1)
}

// extra registers a Node that holds nothing.
func (r *reign) extra() *corev1.Node {
	r.t.Helper()
	node := r.register("extra-"+string(r.id), "10.99.0.3", "1")
	r.t.Cleanup(func() {
		require.NoError(r.t, client.IgnoreNotFound(r.client.Delete(context.WithoutCancel(r.t.Context()), node)))
	})
	return node
}

// announce has a Node announce the member 1 of each of these clusters, and nothing else.
func (r *reign) announce(node *corev1.Node, ids ...v1alpha1.ClusterID) {
	r.t.Helper()
	var refs []protect.MemberRef
	for _, id := range ids {
		refs = append(refs, protect.MemberRef{Cluster: id, Member: "1"})
	}
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, protect.AnnouncementAnnotation, protect.FormatAnnouncement(refs))
	require.NoError(r.t, r.client.Patch(r.t.Context(), node, client.RawPatch(types.MergePatchType, []byte(body))))
}

func tooManyOfOne(t *testing.T, w *world) {
	r := w.reign()
	r.until("one object", func(*v1alpha1.EtcdCluster) bool { return true })
	there := func(id string) bool {
		c := &v1alpha1.EtcdCluster{}
		c.Name = id
		err := w.client.Get(t.Context(), client.ObjectKeyFromObject(c), c)
		require.NoError(t, client.IgnoreNotFound(err))
		return err == nil
	}
	t.Cleanup(func() {
		for _, id := range []string{"eee1", "eee2", "eee3", "eee4"} {
			c := &v1alpha1.EtcdCluster{}
			c.Name = id
			require.NoError(t, client.IgnoreNotFound(w.client.Delete(context.WithoutCancel(t.Context()), c)))
		}
	})
	extra := r.extra()
	r.announce(extra, "eee1", "eee2", "eee3")
	r.until("the log to say so", func(*v1alpha1.EtcdCluster) bool { return r.leader.said["create/eee3"] != "" })
	require.True(t, there("eee1") && there("eee2"), "kOps runs two")
	r.announce(extra, "eee4")
	r.until("the log to say so", func(*v1alpha1.EtcdCluster) bool { return r.leader.said["create/eee4"] != "" })
	require.False(t, there("eee3") || there("eee4"))
	r.announce(w.nodes[0], "eee4") // another one's share
	r.until("its object", func(*v1alpha1.EtcdCluster) bool { return there("eee4") })
}

func swept(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	seenBy := func(c *v1alpha1.EtcdCluster, node *corev1.Node) bool {
		for _, o := range c.Status.Observations {
			if o.Node == node.Name && o.NodeUID == node.UID {
				return true
			}
		}
		return false
	}
	extra := r.extra()
	r.nodes = append(r.nodes, extra)
	require.NoError(t, w.answer(t.Context(), extra, "1", ""))
	r.until("its binding to be refused", func(c *v1alpha1.EtcdCluster) bool { return seenBy(c, extra) && len(c.Spec.Members) == 3 })
	require.NoError(t, r.leader.round(t.Context()))
	require.True(t, seenBy(w.now(), extra), "it is there")
	require.NoError(t, w.client.Delete(t.Context(), extra))
	w.see(func() { w.silent[w.nodes[0].Name] = true })
	w.delete(0)
	c := r.until("its entry to go", func(c *v1alpha1.EtcdCluster) bool { return !seenBy(c, extra) && len(c.Spec.Grants) == 1 })
	for _, n := range w.nodes[:3] {
		require.True(t, seenBy(c, n), n.Name)
	}
	require.NoError(t, r.leader.round(t.Context()))
	require.True(t, seenBy(w.now(), w.nodes[0]), "the entry of a tombstone stays")
}
