package quorum_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// rejoinedCluster returns a cluster whose URLs are no Node's addresses. Member a was removed, and
// its host w1 joined again as member d. The agent of w1 is silent, so d is bound to no Node.
func rejoinedCluster() *quorumtest.Cluster {
	cluster := quorumtest.Voters(4).Unbound(3)
	cluster.Cluster.Observations = cluster.Cluster.Observations[:3]
	for i := range 4 {
		cluster.URLs(i, fmt.Sprintf("https://203.0.113.%d:2380", i%3+1))
	}
	return cluster.Removed(0).Silent(0)
}

// externalMember returns a cluster whose member d runs on a host that is no Node. Member a was
// removed, and its agent has been silent since.
func externalMember() *quorumtest.Cluster {
	cluster := quorumtest.Voters(4).Unbound(3)
	cluster.Cluster.Observations = cluster.Cluster.Observations[:3]
	return cluster.URLs(3, "https://203.0.113.9:2380").RemovedFrom(1, 0).RemovedFrom(2, 0).Silent(0)
}

// oldListWithBoth returns rejoinedCluster with an old list of w3, by which member d was started
// while member a was healthy.
func oldListWithBoth() *quorumtest.Cluster {
	cluster := rejoinedCluster().Silent(2)
	old := cluster.Observer(2)
	old.Members = append(old.Members, quorumtest.Member(0))
	return cluster
}

func TestPossibleRejoin(t *testing.T) {
	bound, boundToGone := rejoinedCluster(), rejoinedCluster()
	bound.Bind(3)
	boundToGone.Bind(3)
	boundToGone.State(3, quorumtest.Gone)
	unbound := rejoinedCluster()
	unbound.Cluster.Spec.Members, _ = membership.Bind(unbound.Cluster, quorumtest.Nodes(3), unbound.Nonces,
		quorumtest.Noon())
	require.Len(t, unbound.Cluster.Spec.Members, 2)
	oneOldListWithBoth := rejoinedCluster().Bound(4).WithoutRoles()
	oneOldListWithBoth.Observer(4).Members = append(oneOldListWithBoth.Observer(4).Members, quorumtest.Member(0))
	answering := rejoinedCluster()
	answering.Observer(0).Nonce = quorumtest.Nonce
	answering.RemovedFrom(0, 0)
	confirming := rejoinedCluster().LocalMember(0, "d")
	confirming.Observer(0).Nonce = quorumtest.Nonce
	hasRole := func(n *observation.NodeState) { n.HasRole = true }
	elsewhere := func() *quorumtest.Cluster { return rejoinedCluster().MayRunAt(3, 3).State(3, hasRole) }
	claimed := func() *quorumtest.Cluster {
		claimed := rejoinedCluster()
		claimed.Bind(3)
		return claimed.Basis(v1alpha1.BasisClaim, 3)
	}
	unprobed := rejoinedCluster()
	unprobed.Nonces = nil
	noRole := func() *quorumtest.Cluster { return rejoinedCluster().MayRunAt(3, 3).WithoutRoles() }
	const unknown, nothing, kept = quorum.UnknownMember, quorum.NothingToProtect, quorum.QuorumKept
	ids := quorumtest.IDs
	members := map[string][]v1alpha1.MemberID{ // others are empty
		"agent reports the new member": ids("d"), "old member still listed": ids("a"), "no etcd": ids("a"),
	}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		reason  quorum.Reason
		forced  []v1alpha1.MemberID // the members that a forced deletion gives up
	}{
		"agent silent":                            {rejoinedCluster(), unknown, ids("a", "d")},
		"agent silent, binding gone":              {unbound, unknown, ids("a", "d")},
		"agent reports no local member yet":       {answering, unknown, ids("a", "d")},
		"agent reports the new member":            {confirming, kept, ids("a", "d")},
		"no etcd":                                 {unprobed, quorum.CannotSee, ids("a", "d")},
		"bound to another Node":                   {bound, nothing, ids("a")},
		"bound to a Node that is gone":            {boundToGone, nothing, ids("a")},
		"possibly at another Node":                {elsewhere(), nothing, ids("a")},
		"possibly at a Node without a role":       {rejoinedCluster().MayRunAt(3, 3), unknown, ids("a", "d")},
		"possibly at another Node, no role":       {noRole(), nothing, ids("a")},
		"claimed by another Node":                 {claimed(), unknown, ids("a", "d")},
		"claimed by another Node, no role":        {claimed().WithoutRoles(), unknown, ids("a", "d")},
		"possibly at a missing Node":              {elsewhere().State(3, quorumtest.Gone), unknown, ids("a", "d")},
		"possibly at an unread Node":              {elsewhere().State(3, unread), unknown, ids("a", "d")},
		"possibly at the node itself":             {rejoinedCluster().MayRunAt(3, 0), unknown, ids("a", "d")},
		"ran at the same time":                    {externalMember(), nothing, ids("a")},
		"ran at the same time, old list":          {oldListWithBoth(), nothing, ids("a")},
		"ran at the same time, one list, no role": {oneOldListWithBoth, unknown, ids("a", "d")},
		"ran while the old one was dead":          {externalMember().InList(0, 0, unhealthy), unknown, ids("a", "d")},
		"only added at the same time":             {externalMember().InList(0, 3, unstarted), unknown, ids("a", "d")},
		"all others bound":                        {quorumtest.Voters(3).Removed(0).Silent(0), nothing, ids("a")},
		"old member still listed":                 {quorumtest.Voters(4).Unbound(3).Unhealthy(0), kept, ids("a")},
	} {
		t.Run(name, func(t *testing.T) {
			v := quorum.Decide(c.cluster.View, quorumtest.Deletion(0))
			require.Equal(t, c.reason, v.Reason, words.Message(v))
			require.Equal(t, c.reason == kept || c.reason == nothing, v.Allowed)
			require.Equal(t, members[name], v.Members)
			forced := quorum.Force(c.cluster.View, quorumtest.Deletion(0))
			require.True(t, forced.Allowed)
			require.Equal(t, c.forced, forced.Members)
		})
	}
	v := quorum.Decide(rejoinedCluster().View, quorumtest.Deletion(0))
	require.False(t, v.Final, "the agent may still answer")
	require.Contains(t, words.Message(v), "kubectl annotate node w1 holdfast.dev/etcd-,")
	require.True(t, quorum.Decide(answering.View, quorumtest.Deletion(0)).Final)
	unannounced := quorumtest.Deletion(0)
	unannounced.Announced = nil
	require.NotContains(t, words.Message(quorum.Decide(answering.View, unannounced)), "kubectl annotate node w1 "+
		"holdfast.dev/etcd-,")
	other := quorum.Request{Node: "w9", UID: "u9", Labelled: true}
	require.Empty(t, quorum.Decide(rejoinedCluster().View, other).Members)
	quorumtest.RequireAllowed(t, rejoinedCluster(), other)
}

// A forced deletion of such a node gives up the member that may be on it. The next deletion must
// not count that member.
func TestForcePossibleRejoin(t *testing.T) {
	cluster := rejoinedCluster()
	members := quorum.Force(cluster.View, quorumtest.Deletion(0)).Members
	cluster.Forced(0).State(0, quorumtest.Gone).Cluster.Spec.Grants[0].Members = members
	require.False(t, quorum.Decide(cluster.View, quorumtest.Deletion(1)).Allowed, "d is lost with the machine of w1")
}

// TestForceWithOneObserver: without roles, the word of the only other observer does not count about
// a node that announces a member. An old list of a Node that is gone shows both members at once.
func TestForceWithOneObserver(t *testing.T) {
	cluster := oldListWithBoth().WithoutRoles().Basis(v1alpha1.BasisClaim, 0).State(2, quorumtest.Gone)
	require.Equal(t, quorumtest.IDs("a", "d"), quorum.Force(cluster.View, quorumtest.Deletion(0)).Members)
}

// By this trace an earlier draft lost two of three members.
func TestDeletionsAroundRejoin(t *testing.T) {
	cluster := rejoinedCluster()
	quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(1))
	require.False(t, quorum.Decide(cluster.Granted(1).View, quorumtest.Deletion(0)).Allowed)
}
