package protect

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestSettle(t *testing.T) {
	gone := func(n *NodeState) { n.UID = "" }
	reborn := func() *world { // w1 is gone, member a lives on w4, whose agent proves it healthy
		w := voters(3).granted(0)
		w.Nodes["w1"] = NodeState{Known: true}
		w.Cluster.Spec.Members[0].Node, w.Cluster.Spec.Members[0].NodeUID = "w4", "u4"
		w.Nodes["w4"] = NodeState{Known: true, UID: "u4"}
		w.Cluster.Status.Observations[0].Node, w.Cluster.Status.Observations[0].NodeUID = "w4", "u4"
		return w
	}
	since := func(t time.Time) map[v1alpha1.MemberID]time.Time { return map[v1alpha1.MemberID]time.Time{"a": t} }
	for name, c := range map[string]struct {
		world   *world
		after   time.Duration
		node    NodeState
		since   map[v1alpha1.MemberID]time.Time
		settled bool
		why     string
	}{
		"F1b the Node lives, but not long enough":    {voters(3), UnharmedAfter - time.Second, NodeState{Known: true, UID: "u1"}, nil, false, "still in the member list"},
		"the Node lives five minutes later":          {voters(3), UnharmedAfter, NodeState{Known: true, UID: "u1"}, nil, true, "node w1 still lives, more than 5m0s after"},
		"even if nobody answers":                     {voters(3).silent(0, 1, 2), UnharmedAfter, NodeState{Known: true, UID: "u1"}, nil, true, "still lives"},
		"the Node lives and is being deleted":        {voters(3), time.Hour, NodeState{Known: true, UID: "u1", Deleting: true}, nil, false, "still in the member list"},
		"F1c the Node was not read":                  {voters(3), time.Hour, NodeState{UID: "u1"}, nil, false, "still in the member list"},
		"a Node of the same name lives":              {voters(3), time.Hour, NodeState{Known: true, UID: "u1-again"}, nil, false, "still in the member list"},
		"the clock of who granted is ahead":          {voters(3), -time.Hour, NodeState{Known: true, UID: "u1"}, nil, false, "still in the member list"},
		"the member left every list":                 {voters(3).removed(0).state(0, gone), 0, NodeState{Known: true}, nil, true, "member a has left the member list"},
		"the member left one list of three":          {voters(3).removedFrom(1, 0).state(0, gone), 0, NodeState{Known: true}, nil, false, "still in the member list"},
		"F1e the member left silent lists only":      {voters(3).removed(0).silent(0, 1, 2), 0, NodeState{Known: true}, nil, false, "no confirmed member list answers"},
		"F1e the one that answers has it":            {voters(3).removedFrom(1, 0).removedFrom(2, 0).silent(1, 2), 0, NodeState{Known: true}, nil, false, "still in the member list"},
		"the member left the one list that answers":  {voters(3).removed(0).silent(1, 2).state(0, gone), 0, NodeState{Known: true}, nil, false, "member a has left the list of node w1, and nobody else has answered"},
		"the member left the only list there can be": {voters(3).removed(0).silent(0, 1).state(0, gone).state(1, gone), 0, NodeState{Known: true}, nil, true, "member a has left the member list"},
		"the list is not confirmed":                  {voters(3).removed(0).unconfirmed(0, 1, 2), 0, NodeState{Known: true}, nil, false, "no confirmed member list answers"},
		"another member of the Node has not left":    {voters(3).rebound(1, 0).removed(0), 0, NodeState{Known: true}, nil, false, "member b is still in the member list"},
		"F11 reborn, but not long enough":            {reborn(), RebornAfter - time.Second, NodeState{Known: true}, since(noon()), false, "member a has been proven healthy on node w4 for 20m0s of 20m0s"},
		"reborn twenty minutes ago":                  {reborn(), RebornAfter, NodeState{Known: true}, since(noon()), true, "member a has been proven healthy on node w4 for more than 20m0s"},
		"F11 proven long before the deletion":        {reborn(), time.Minute, NodeState{Known: true}, since(noon().Add(-time.Hour)), false, "for 1m0s of 20m0s"},
		"F11 reborn, and silent at this look":        {reborn().mute(0), RebornAfter, NodeState{Known: true}, since(noon()), false, "whose agent does not prove it healthy"},
		"reborn, proven by others only":              {reborn().inList(0, 0, func(m *v1alpha1.MemberStatus) { m.Healthy = false }), RebornAfter, NodeState{Known: true}, since(noon()), false, "whose agent does not prove it healthy"},
		"reborn, and nobody has read the alarms":     {reborn().inList(0, 0, func(*v1alpha1.MemberStatus) {}).alarmless(), RebornAfter, NodeState{Known: true}, since(noon()), false, "whose agent does not prove it healthy"},
		"reborn, never proven":                       {reborn(), RebornAfter, NodeState{Known: true}, nil, false, "whose agent does not prove it healthy"},
		"reborn, and the new Node is to go as well":  {reborn().state(3, func(n *NodeState) { n.DeletionTaint = "ToBeDeleted" }), RebornAfter, NodeState{Known: true}, since(noon()), false, "on no other Node"},
	} {
		t.Run(name, func(t *testing.T) {
			settled, why := Settle(c.world.View, grantFor(0), SettleEvidence{Now: noon().Add(c.after), Node: c.node, ProvenSince: c.since})
			require.Equal(t, c.settled, settled, why)
			require.Contains(t, why, c.why)
		})
	}
}

// alarmless makes nobody read the alarms.
func (w *world) alarmless() *world {
	for o := range w.Cluster.Status.Observations {
		w.Cluster.Status.Observations[o].AlarmsUnknown = true
	}
	return w
}

// mute makes the o-th observation no answer to this question.
func (w *world) mute(o int) *world {
	w.Cluster.Status.Observations[o].Nonce = "before"
	return w
}

func TestF1aARenewedGrantStartsAnew(t *testing.T) {
	g := grantFor(0)
	g.Time.Time = noon().Add(4 * time.Minute)
	settled, _ := Settle(voters(3).View, g, SettleEvidence{Now: noon().Add(6 * time.Minute), Node: NodeState{Known: true, UID: "u1"}})
	require.False(t, settled)
}

func TestSettleWordsStayTheSame(t *testing.T) {
	_, first := Settle(voters(3).View, grantFor(0), SettleEvidence{Now: noon().Add(6 * time.Minute), Node: NodeState{Known: true, UID: "u1"}})
	_, second := Settle(voters(3).View, grantFor(0), SettleEvidence{Now: noon().Add(7 * time.Minute), Node: NodeState{Known: true, UID: "u1"}})
	require.Equal(t, first, second, "a reason is recognised at the second look")
}

func TestSettleWithoutMembersOrCluster(t *testing.T) {
	g := grantFor(8)
	g.Members = nil
	settled, why := Settle(voters(3).View, g, SettleEvidence{Now: noon(), Node: NodeState{Known: true}})
	require.True(t, settled, why)
	settled, _ = Settle(View{}, g, SettleEvidence{})
	require.False(t, settled)
}

func TestSelfProven(t *testing.T) {
	require.Equal(t, ids("a", "b", "c"), SelfProven(voters(3).View))
	w := voters(4).silent(0).inList(1, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = false })
	require.Equal(t, ids("c", "d"), SelfProven(w.View), "what others prove is not enough")
	require.Equal(t, ids("d"), SelfProven(w.inList(0, 2, func(*v1alpha1.MemberStatus) {}).inList(3, 2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} }).View))
}
