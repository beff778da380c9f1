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
	byEtcdMember := func(g *v1alpha1.Grant) { g.Remove = door("") }
	joinedAgain := func(g *v1alpha1.Grant) { g.Remove, g.Members = door(""), quorumtest.IDs("e") }
	deletion := func(g *v1alpha1.Grant) { g.Delete = door("9") }
	drain := func(g *v1alpha1.Grant) { g.Drain = door("") }
	const listed = "member a is still in the member list, and no other Node is known to run it; "
	const notGone = "node w1 is not known to be gone"
	const mayJoin = "the machine of node w1 may join again until 2026-05-01T12:20:00Z"
	const requested = "member a is still in the member list, and may be removed at any time, unless its EtcdMember " +
		"no longer requests that"
	const drained = "node w1 was drained, and is marked for the removal of its etcd member " +
		"(annotation etcd.k3s.cattle.io/remove)"
	for name, c := range map[string]struct {
		change     func(*v1alpha1.Grant)
		node       observation.NodeState
		after      time.Duration
		isResolved bool
		why        string
	}{
		"young":                          {nil, node("u1"), young, false, inProgress},
		"written meanwhile":              {nil, written, young, false, inProgress},
		"over, not carried out":          {nil, node("u1"), over, true, shut},
		"over, marked":                   {nil, marked, over, true, shut},
		"Node gone":                      {nil, node(""), over, false, listed + mayJoin},
		"Node unread":                    {nil, observation.NodeState{}, over, false, listed + notGone},
		"by an EtcdMember, over":         {byEtcdMember, written, over, false, requested},
		"deletion, and written since":    {deletion, written, young, false, inProgress},
		"drained":                        {drain, marked, over, false, drained},
		"by an EtcdMember, joined again": {joinedAgain, written, young, true, "member e has left the member list"},
	} {
		t.Run(name, func(t *testing.T) {
			g := quorumtest.RemovalGrantFor(0)
			if c.change != nil {
				c.change(&g)
			}
			e := membership.ResolveEvidence{Now: quorumtest.Noon().Add(c.after), Opened: quorumtest.Noon()}
			isResolved, why := membership.Resolve(quorumtest.Voters(3).State(0, being(c.node)).View, g, e)
			require.Equal(t, c.isResolved, isResolved)
			require.Equal(t, c.why, why)
		})
	}
}
