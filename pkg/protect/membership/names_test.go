package membership_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// namedCluster returns a cluster of kops: members advertise names that only the pods of
// etcd-manager resolve, so each agent proves only its own member healthy.
func namedCluster() *quorumtest.Cluster {
	w := quorumtest.Voters(3).NeverBound()
	for i, name := range []string{"etcd-a", "etcd-b", "etcd-c"} {
		url := "https://" + name + ".internal.kops.example.com"
		w.Everywhere(i, func(m *v1alpha1.MemberStatus) {
			m.PeerURLs, m.ClientURLs = []string{url + ":2380"}, []string{url + ":4001"}
			m.Healthy, m.Reason = false, "no such host"
		})
		w.InList(i, i, func(m *v1alpha1.MemberStatus) { m.Healthy, m.Reason = true, "" })
	}
	return w
}

// The machine of a member is replaced, and the disk moves to a Node with another name. The member
// keeps its ID. Until the cluster is bound again, no other node may go.
func TestMemberMovesToNewName(t *testing.T) {
	w, nodes := namedCluster(), quorumtest.Nodes(3)
	require.Empty(t, bind(w, nodes))
	require.Equal(t, v1alpha1.BasisRole, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))

	moved := w.Granted(0).State(0, quorumtest.Gone).Observer(0)
	moved.Node, moved.NodeUID = "i-2", "u9"
	nodes = slices.Replace(nodes, 0, 1, announcing("i-2", "u9", "a", "10.0.0.9"))
	nodes[0].HasRole = true
	refused := bind(w, nodes)
	require.Contains(t, refused[0].Reason, "any Node after an operator resolves the grant for UID u1")
	quorumtest.RequireRefused(t, w, quorumtest.Deletion(1), "only 1 would remain")

	var isResolved bool
	w.Cluster.Spec.Grants, w.Cluster.Spec.Members, isResolved = membership.ResolveByHand(w.Cluster, "u1", w.Nodes)
	require.True(t, isResolved)
	require.Empty(t, bind(w, nodes))
	require.Equal(t, "a=u9 b=u2 c=u3", uids(w.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisRole, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))
}
