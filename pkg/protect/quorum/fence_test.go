package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestVoidGrant: a grant allows the DELETE of one version of the Node. Its members count again for
// other deletions when the Node has a later version.
func TestVoidGrant(t *testing.T) {
	node := func(version string) observation.NodeState {
		return observation.NodeState{Known: true, UID: quorumtest.UID(0), Version: version}
	}
	deleting, unread := node("10"), node("10")
	deleting.Deleting, unread.Known = true, false
	again := node("10")
	again.UID = "u1-again"
	unchanged := func(*v1alpha1.Grant) {}
	drain := func(g *v1alpha1.Grant) { g.Delete, g.Drain = nil, &v1alpha1.Door{} }
	drainToo := func(g *v1alpha1.Grant) { g.Drain = &v1alpha1.Door{} }
	forced := func(g *v1alpha1.Grant) { g.Delete.BreakGlass = true }
	machine := func(g *v1alpha1.Grant) { g.Machine, g.Delete = g.Delete, nil }
	machineToo := func(g *v1alpha1.Grant) { g.Machine = &v1alpha1.Door{} }
	gone := func(g *v1alpha1.Grant) { g.Gone = &v1alpha1.Door{} }
	for name, c := range map[string]struct {
		node   observation.NodeState
		grant  func(*v1alpha1.Grant)
		isVoid bool
	}{
		// F46, F48, F82, F83: by the cure of F31 one grant answered two reviews, and a member died or
		// joined between: two of four were left.
		"written since":                   {node("10"), unchanged, true},
		"written since, forced":           {node("10"), forced, true},
		"the same version":                {node("9"), unchanged, false},
		"read before the grant":           {node("8"), unchanged, false},
		"no version is known":             {node(""), unchanged, false},
		"being deleted":                   {deleting, unchanged, false},
		"gone":                            {observation.NodeState{Known: true}, unchanged, false},
		"another Node has the name":       {again, unchanged, false},
		"not read":                        {unread, unchanged, false},
		"drain":                           {node("10"), drain, false},
		"deletion of a drained node":      {node("10"), drainToo, false},
		"F80 deletion of a NodeClaim":     {node("10"), machine, false},
		"F80 deletion of a NodeClaim too": {node("10"), machineToo, false},
		"gone without a review":           {node("10"), gone, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := quorumtest.Voters(3).Granted(0).State(0, func(n *observation.NodeState) { *n = c.node })
			g := &cluster.Cluster.Spec.Grants[0]
			g.Delete.Version = "9"
			c.grant(g)
			require.Equal(t, c.isVoid, quorum.IsVoid(*g, c.node))
			require.Equal(t, c.isVoid, quorum.Decide(cluster.View, quorumtest.Deletion(1)).Allowed)
			require.Len(t, cluster.Cluster.Spec.Grants, 1, "the View is not changed")

			other := quorumtest.Voters(3).Cluster
			other.Name, other.Spec.Grants = "01d", cluster.Cluster.Spec.Grants
			restored := quorumtest.Voters(3).State(0, func(n *observation.NodeState) { *n = c.node })
			restored.Others = []*v1alpha1.EtcdCluster{other}
			require.Equal(t, c.isVoid, quorum.Decide(restored.View, quorumtest.Deletion(1)).Allowed)
		})
	}
}
