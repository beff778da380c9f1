package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// floating is StarlingX with three voters on two controllers (stx-puppet, platform::etcd). Member c
// has a floating address and a replicated disk, and runs on the active controller.
func floating() *quorumtest.Cluster {
	w := quorumtest.Voters(3).URLs(2, "https://10.0.0.100:2380").NeverBound()
	w.Cluster.Observations = w.Cluster.Observations[:2]
	delete(w.Nodes, "w3")
	return w
}

// controllers returns the Nodes of the two controllers, which announce these members.
func controllers(w1, w2 []evidence.MemberRef) []observation.AnnouncingNode {
	nodes := quorumtest.Nodes(2)
	nodes[0].Announced, nodes[1].Announced = w1, w2
	return nodes
}

func refs(indexes ...int) []evidence.MemberRef {
	var all []evidence.MemberRef
	for _, i := range indexes {
		all = append(all, evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: quorumtest.ID(i)})
	}
	return all
}

// bindTwice is the bootstrap, and the next round, in which the founders are observers.
func bindTwice(w *quorumtest.Cluster, nodes []observation.AnnouncingNode) {
	bind(w, nodes)
	bind(w, nodes)
}

// A member that moves between two Nodes that exist stays bound to the first one, because its agent
// still announces it. Each deletion and drain is then refused, but no advice harms a Node that has
// a member.
func TestFloatingMember(t *testing.T) {
	w := floating()
	bindTwice(w, controllers(refs(0, 2), refs(1)))
	require.Equal(t, "a=u1 b=u2 c=u1", uids(w.Cluster.Spec.Members))
	require.False(t, quorum.Decide(w.View, quorumtest.Deletion(0)).Allowed, "two of three")
	require.True(t, quorum.Decide(w.View, quorumtest.Deletion(1)).Allowed)

	moved := controllers(refs(0, 2), refs(1, 2))
	bindTwice(w, moved)
	require.Equal(t, "a=u1 b=u2 c=u1", uids(w.Cluster.Spec.Members))
	for i := range moved {
		for _, door := range []quorum.DoorKind{quorum.DoorDelete, quorum.DoorDrain} {
			w.State(i, quorumtest.Cordoned)
			r := quorumtest.Deletion(i)
			r.Announced, r.Door = moved[i].Announced, door
			v := quorum.Decide(w.View, r)
			require.False(t, v.Allowed)
			require.NotContains(t, words.Message(v), "delete that Node")
			require.NotContains(t, words.Message(v), "leftover")
			require.NotContains(t, words.Message(v), "member remove b")
		}
	}
}

// The way out of the refusal: the announcement of the Node where the member is not any more is
// removed, then the EtcdCluster. While both announce it, it stays unbound, and neither goes.
func TestFloatingMemberWayOut(t *testing.T) {
	w := floating()
	bindTwice(w, controllers(refs(0), refs(1, 2)))
	require.Equal(t, "a=u1 b=u2 c=u2", uids(w.Cluster.Spec.Members))
	w = floating()
	both := controllers(refs(0, 2), refs(1, 2))
	bindTwice(w, both)
	require.Equal(t, "a=u1 b=u2", uids(w.Cluster.Spec.Members))
	for i := range both {
		r := quorumtest.Deletion(i)
		r.Announced = both[i].Announced
		require.False(t, quorum.Decide(w.View, r).Allowed, r.Node)
	}
}
