package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestBoundMachine: a binding has the identity of the machine, and keeps it when the Node is gone.
func TestBoundMachine(t *testing.T) {
	nodes := make([]observation.AnnouncingNode, 3)
	for i := range nodes {
		nodes[i] = observation.AnnouncingNode{
			Node: quorumtest.Node(i), UID: quorumtest.UID(i), HasRole: true,
			Machine: observation.NewMachine("m", "S"), ProviderID: "cloud:///1",
		}
	}
	c := quorumtest.Voters(3).Cluster
	want := v1alpha1.Binding{
		MemberID: "a", Node: "w1", NodeUID: "u1", Basis: v1alpha1.BasisRole,
		MachineID: "m", SystemUUID: "s", ProviderID: "cloud:///1",
	}
	bindings, _ := membership.Bind(c, nodes, []string{quorumtest.Nonce}, quorumtest.Noon())
	require.Equal(t, want, bindings[0])

	c.Spec.Members = bindings
	nodes[0].Machine, nodes[0].ProviderID = observation.NewMachine("", "t"), ""
	bindings, _ = membership.Bind(c, nodes, []string{quorumtest.Nonce}, quorumtest.Noon())
	want.SystemUUID = "t"
	require.Equal(t, want, bindings[0], "what the Node does not report stays")
	c.Spec.Members = bindings
	bindings, _ = membership.Bind(c, nodes[1:], []string{quorumtest.Nonce}, quorumtest.Noon())
	require.Equal(t, want, bindings[0], "the Node is gone")
}

// TestF95TombstoneKnowsTheMachine: a Node is deleted without a review. Its machine registers under
// another name with the same provider ID, and joins again as another member.
func TestF95TombstoneKnowsTheMachine(t *testing.T) {
	c := quorumtest.Voters(4).Gone(0)
	b := &c.Cluster.Spec.Members[0]
	b.MachineID, b.SystemUUID, b.ProviderID = "m", "s", "cloud:///1"
	tombstones := membership.Tombstones(c.View)
	require.Len(t, tombstones, 1)
	require.Equal(t, []string{"m", "s", "cloud:///1"},
		[]string{tombstones[0].MachineID, tombstones[0].SystemUUID, tombstones[0].ProviderID})

	c.Cluster.Spec.Grants = tombstones
	c.Removed(0).Unbound(0).Gone(0)
	quorumtest.RequireAllowed(t, c, quorumtest.Deletion(1))
	c.State(3, func(n *observation.NodeState) { n.ProviderID = "cloud:///1" })
	quorumtest.RequireRefused(t, c, quorumtest.Deletion(1), "etcd4 (d): counts as lost: it joined again")
}
