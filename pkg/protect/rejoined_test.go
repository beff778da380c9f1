package protect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// rejoinedWorld is a cluster of which no URL names a Node's address. Member a was removed from it, and its host w1 joined
// again as d, which nobody is bound to yet: the agent of w1 is silent.
func rejoinedWorld() *world {
	w := voters(4).unbound(3)
	w.Cluster.Status.Observations = w.Cluster.Status.Observations[:3]
	for i := range 4 {
		w.urls(i, fmt.Sprintf("https://203.0.113.%d:2380", i%3+1))
	}
	return w.removed(0).silent(0)
}

// external is a cluster whose member d runs on a host that is no Node. Member a is removed, and its agent silent since.
func external() *world {
	w := voters(4).unbound(3)
	w.Cluster.Status.Observations = w.Cluster.Status.Observations[:3]
	return w.urls(3, "https://203.0.113.9:2380").removedFrom(1, 0).removedFrom(2, 0).silent(0)
}

func (w *world) placedAt(i, at int) *world {
	w.Placed = append(w.Placed, v1alpha1.Binding{MemberID: id(i), Node: node(at), NodeUID: uid(at)})
	w.Nodes[node(at)] = NodeState{Known: true, UID: uid(at)}
	return w
}

func TestWhoMayHaveJoinedAgainIsNotDeleted(t *testing.T) {
	rebound := rejoinedWorld()
	rebound.bind(3)
	unbinding := rejoinedWorld()
	unbinding.Cluster.Spec.Members, _ = Bind(unbinding.Cluster, claims(3), unbinding.Asked)
	require.Len(t, unbinding.Cluster.Spec.Members, 2)
	silentNow := deletion(0)
	silentNow.Announced = nil
	answering := rejoinedWorld()
	answering.observer(0).Nonce = asked
	answering.removedFrom(0, 0)
	saying := rejoinedWorld().localMember(0, "d")
	saying.observer(0).Nonce = asked
	for name, c := range map[string]struct {
		world   *world
		reason  Reason
		members []v1alpha1.MemberID
	}{
		"its agent is silent":                       {rejoinedWorld(), UnknownMember, nil},
		"its agent is silent, and its binding gone": {unbinding, UnknownMember, nil},
		"its agent has not noticed yet":             {answering, UnknownMember, nil},
		"its agent says that it is":                 {saying, QuorumKept, ids("d")},
		"another Node is bound to it":               {rebound, NothingToProtect, nil},
		"it is placed at another Node":              {rejoinedWorld().placedAt(3, 3), NothingToProtect, nil},
		"it is placed at a Node that is gone":       {rejoinedWorld().placedAt(3, 3).state(3, goneNode), UnknownMember, nil},
		"it is placed at a Node that is not read":   {rejoinedWorld().placedAt(3, 3).state(3, func(n *NodeState) { *n = NodeState{} }), UnknownMember, nil},
		"it ran beside the one that was here":       {external(), NothingToProtect, nil},
		"it ran beside the one that was here, dead": {external().inList(0, 0, func(m *v1alpha1.MemberStatus) { m.Healthy = false }), UnknownMember, nil},
		"it was only added beside it":               {external().inList(0, 3, func(m *v1alpha1.MemberStatus) { m.Name = "" }), UnknownMember, nil},
		"all others are bound":                      {voters(3).removed(0).silent(0), NothingToProtect, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := Decide(c.world.View, deletion(0))
			require.Equal(t, c.reason, v.Reason, v.Message)
			require.Equal(t, c.reason != UnknownMember, v.Allowed)
			require.Equal(t, c.members, v.Members)
		})
	}
	v := Decide(rejoinedWorld().View, deletion(0))
	require.False(t, v.Final, "its agent may yet answer")
	require.Contains(t, v.Message, "kubectl annotate node w1 holdfast.dev/etcd-,")
	require.True(t, Decide(answering.View, deletion(0)).Final)
	require.NotContains(t, Decide(answering.View, silentNow).Message, "kubectl annotate node w1 holdfast.dev/etcd-,", "there is none")
	require.Empty(t, Decide(rejoinedWorld().View, Request{Node: "w9", UID: "u9", Labelled: true}).Members, "nothing was there")
	allows(t, rejoinedWorld(), Request{Node: "w9", UID: "u9", Labelled: true})
}

// Who breaks the glass for such a node gives up the member that may be on it: the next deletion must not count it.
func TestAForcedDeletionGivesUpWhoMayHaveJoinedAgain(t *testing.T) {
	unasked, rebound := rejoinedWorld(), rejoinedWorld()
	unasked.Asked = nil
	rebound.bind(3)
	for name, c := range map[string]struct {
		world *world
		gives []v1alpha1.MemberID
	}{
		"its agent is silent":             {rejoinedWorld(), ids("a", "d")},
		"etcd is away":                    {unasked, ids("a", "d")},
		"it ran beside the one that is":   {external(), ids("a")},
		"the one that was here is sick":   {external().inList(0, 0, func(m *v1alpha1.MemberStatus) { m.Healthy = false }), ids("a", "d")},
		"the one that was here is listed": {voters(4).unbound(3).sick(0), ids("a")},
		"all others are bound":            {voters(3).removed(0).silent(0), ids("a")},
		"it is placed at another Node":    {rejoinedWorld().placedAt(3, 3), ids("a")},
		"another Node is bound to it":     {rebound, ids("a")},
		"it is well":                      {voters(3), ids("a")},
	} {
		t.Run(name, func(t *testing.T) {
			v := Force(c.world.View, deletion(0))
			require.True(t, v.Allowed)
			require.Equal(t, c.gives, v.Members)
		})
	}
	w := rejoinedWorld()
	w.Cluster.Spec.Grants = append(w.Cluster.Spec.Grants, v1alpha1.Grant{
		Node: node(0), NodeUID: uid(0), Members: Force(w.View, deletion(0)).Members, User: "anna", BreakGlass: true,
	})
	w.state(0, goneNode)
	require.False(t, Decide(w.View, deletion(1)).Allowed, "d dies with the machine of w1")
}

// The trace by which two of three were lost.
func TestTwoDeletionsAroundAMemberThatHasJoinedAgain(t *testing.T) {
	w := rejoinedWorld()
	allows(t, w, deletion(1))
	require.False(t, Decide(w.granted(1).View, deletion(0)).Allowed)
}
