package membership_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestResolveRemoval: the grant for the removal of a member ends when the update of its Node is
// over. A door that was opened besides must be shut too.
func TestResolveRemoval(t *testing.T) {
	const over, young = quorum.ResolvePresentAfter, quorum.ResolvePresentAfter - time.Second
	const inProgress = "the removal of the member of node w1 was allowed less than 5m0s ago, and may be in progress"
	const shut = "node w1 still exists more than 5m0s after the removal of its member was last allowed"
	written, marked := node("u1"), node("u1")
	written.Version = "10"
	quorumtest.MarkedForRemoval(&marked)
	door := func(version string) *v1alpha1.Door {
		d := quorumtest.GrantFor(0).Delete
		d.Version = version
		return d
	}
	for name, c := range map[string]struct {
		change     func(*v1alpha1.Grant)
		node       observation.NodeState
		after      time.Duration
		isResolved bool
		why        string
	}{
		"young":                 {node: node("u1"), after: young, why: inProgress},
		"written meanwhile":     {node: written, after: young, why: inProgress},
		"over, not carried out": {node: node("u1"), after: over, isResolved: true, why: shut},
		"over, marked":          {node: marked, after: over, isResolved: true, why: shut},
		"Node gone": {
			node: node(""), after: over,
			why: "member a is still in the member list, and no other Node is known to run it; " +
				"the machine of node w1 may join again until 2026-05-01T12:20:00Z",
		},
		"Node unread": {
			node: observation.NodeState{}, after: over,
			why: "member a is still in the member list, and no other Node is known to run it; node w1 is not known to be gone",
		},
		"by an EtcdMember, over": {
			change: func(g *v1alpha1.Grant) { g.Remove = door("") }, node: written, after: over,
			why: "member a is still in the member list, and may be removed at any time, unless its EtcdMember " +
				"no longer requests that",
		},
		"by an EtcdMember, joined again": {
			change: func(g *v1alpha1.Grant) { g.Remove, g.Members = door(""), quorumtest.IDs("e") }, node: written,
			isResolved: true, why: "member e has left the member list",
		},
		"deletion, and written since": {
			change: func(g *v1alpha1.Grant) { g.Delete = door("9") }, node: written, after: young, why: inProgress,
		},
		"drained": {
			change: func(g *v1alpha1.Grant) { g.Drain = door("") }, node: marked, after: over,
			why: "node w1 was drained, and is marked for the removal of its etcd member (annotation etcd.k3s.cattle.io/remove)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := quorumtest.RemovalGrantFor(0)
			if c.change != nil {
				c.change(&g)
			}
			isResolved, why := membership.Resolve(quorumtest.Voters(3).View, g, membership.ResolveEvidence{
				Now: quorumtest.Noon().Add(c.after), Opened: quorumtest.Noon(), Node: c.node,
			})
			require.Equal(t, c.isResolved, isResolved)
			require.Equal(t, c.why, why)
		})
	}
}

// TestTombstoneAfterRemoval: the removal of a member allows no deletion of its Node.
func TestTombstoneAfterRemoval(t *testing.T) {
	w := quorumtest.Voters(3).State(0, quorumtest.Gone)
	g := quorumtest.RemovalGrantFor(0)
	w.Cluster.Spec.Grants = []v1alpha1.Grant{g}
	g.Gone = &v1alpha1.Door{}
	require.Equal(t, []v1alpha1.Grant{g}, membership.Tombstones(w.View))
	w.Cluster.Spec.Grants = []v1alpha1.Grant{g}
	require.Empty(t, membership.Tombstones(w.View))
}
