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
	drain := func(g *v1alpha1.Grant) { g.Delete, g.Drain = nil, &v1alpha1.Door{} }
	for name, c := range map[string]struct {
		node   observation.NodeState
		grant  func(*v1alpha1.Grant)
		isVoid bool
	}{
		// F46, F48, F82, F83: by the cure of F31 one grant answered two reviews, and a member died or
		// joined between: two of four were left.
		"written since": {node: node("10"), isVoid: true},
		"written since, forced": {
			node: node("10"), grant: func(g *v1alpha1.Grant) { g.Delete.BreakGlass = true },
			isVoid: true,
		},
		"the same version":           {node: node("9")},
		"read before the grant":      {node: node("8")},
		"no version is known":        {node: node("")},
		"being deleted":              {node: deleting},
		"gone":                       {node: observation.NodeState{Known: true}},
		"another Node has the name":  {node: again},
		"not read":                   {node: unread},
		"drain":                      {node: node("10"), grant: drain},
		"deletion of a drained node": {node: node("10"), grant: func(g *v1alpha1.Grant) { g.Drain = &v1alpha1.Door{} }},
		"F80 deletion of a NodeClaim": {node: node("10"), grant: func(g *v1alpha1.Grant) {
			g.Machine, g.Delete = g.Delete, nil
		}},
		"F80 deletion of a NodeClaim too": {node: node("10"), grant: func(g *v1alpha1.Grant) {
			g.Machine = &v1alpha1.Door{}
		}},
		"gone without a review": {node: node("10"), grant: func(g *v1alpha1.Grant) { g.Gone = &v1alpha1.Door{} }},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := quorumtest.Voters(3).Granted(0).State(0, func(n *observation.NodeState) { *n = c.node })
			g := &cluster.Cluster.Spec.Grants[0]
			g.Delete.Version = "9"
			if c.grant != nil {
				c.grant(g)
			}
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
