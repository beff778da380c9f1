package membership_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// node returns the state of a Node with this UID, or of one that is gone if the UID is empty.
func node(uid types.UID) observation.NodeState { return observation.NodeState{Known: true, UID: uid} }

// being is a change for State: this is the state of the Node, which keeps its role.
func being(state observation.NodeState) func(*observation.NodeState) {
	return func(n *observation.NodeState) { state.HasRole, *n = n.HasRole, state }
}

// unread is a change for State: the Node could not be read.
func unread(n *observation.NodeState) { *n = observation.NodeState{} }

func TestResolve(t *testing.T) {
	const unharmed, reborn = quorum.ResolvePresentAfter, quorum.ResolveMovedAfter
	const listed, unproven = "still in the member list", "whose agent does not prove it healthy"
	const ending = "Machine default/w1 of node w1 is being deleted"
	const young = "the deletion of node w1 was allowed less than 5m0s ago, and may be in progress"
	const stays = "node w1 still exists more than 5m0s after"
	const unplaced = "no other Node is known to run it"
	const left, noList = "member a has left the member list", "no observer has answered with a confirmed member list"
	voters := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	removed := func() *quorumtest.Cluster { return voters().Removed(0) }
	removedFrom := func(list int) *quorumtest.Cluster { return voters().RemovedFrom(list, 0) }
	// In moved, w1 is gone and member a runs on w4, whose agent proves it healthy.
	moved := func() *quorumtest.Cluster {
		w := voters().Granted(0)
		w.Nodes["w4"] = node("u4")
		w.Cluster.Spec.Members[0].Node, w.Cluster.Spec.Members[0].NodeUID = "w4", "u4"
		w.Cluster.Observations[0].Node, w.Cluster.Observations[0].NodeUID = "w4", "u4"
		return w
	}
	unproved := func(m *v1alpha1.MemberStatus) { m.Healthy = false }
	noon, never := quorumtest.Noon(), time.Time{}
	// In joined, member a has left, and its machine joined again as member d. Its agent proves it.
	joined := func() *quorumtest.Cluster { return quorumtest.Voters(4).Granted(0).JoinedAgain(0, 3) }
	again, other := node("u1-again"), node("u1-again")
	other.Machine.SystemUUID = "s2"
	unbound := joined()
	unbound.Unbound(3).PossibleNodes = []v1alpha1.Binding{{MemberID: "d", Node: "w1", NodeUID: "u1-again"}}
	unknown := joined().Unbound(3)
	atFive, atTen, before := noon.Add(5*time.Minute), noon.Add(10*time.Minute), noon.Add(-time.Hour)
	gone, unreadNode := node(""), observation.NodeState{}
	deleting := observation.NodeState{Known: true, UID: "u1", Deleting: true}
	deletingOther := deleting
	deletingOther.Machine = other.Machine
	const goes, mayJoin = "node w1 is being deleted", "may join again until 2026-05-01T12:20:00Z"
	const machineMayJoin, provenAgain = "the machine of node w1 " + mayJoin, "member d has been proven healthy"
	const tooShort = "member a has been proven healthy on node w4 for 20m0s of the required 20m0s"
	const longEnough = "member a has been proven healthy on node w4 for more than 20m0s"
	const provenShortly, notGone = provenAgain + " on node w1 for 15m0s", "node w1 is not known to be gone"
	const listedB = "member b is still in the member list"
	const notProvenAgain = "member d is bound to node w1, whose agent does"
	const listedD = "member d is still in the member list, and no other"
	for name, c := range map[string]struct {
		cluster    *quorumtest.Cluster
		after      time.Duration
		node       observation.NodeState
		since      time.Time
		isResolved bool
		why        string
	}{
		"F1b node alive for too short a time": {voters(), unharmed - time.Second, node("u1"), never, false, young},
		"node alive after five minutes":       {voters(), unharmed, node("u1"), never, true, stays},
		"node alive, silent agents":           {voters().Silent(0, 1, 2), unharmed, node("u1"), never, true, stays},
		"node alive, being deleted":           {voters(), time.Hour, deleting, never, false, goes},
		"F1c node not read":                   {voters(), time.Hour, observation.NodeState{UID: "u1"}, never, false, listed},
		"new node with the name":              {voters(), time.Hour, node("u1-again"), never, false, listed},
		"grant dated ahead":                   {voters(), -time.Hour, node("u1"), never, false, young},
		"left every list":                     {removed(), reborn, gone, never, true, left},
		"left one of three lists":             {removedFrom(1), 0, gone, never, false, listed},
		"F1e left only old lists":             {removed().Silent(0, 1, 2), 0, gone, never, false, noList},
		"F1e listed by the only answer":       {removedFrom(0).RemovedFrom(2, 0).Silent(0, 2), 0, gone, never, false, listed},
		"left the only answer":                {removed().Silent(0, 1), reborn, gone, never, true, left},
		"left the only answer, no role":       {removed().Silent(0, 1).WithoutRoles(), 0, gone, never, false, noList},
		"left the only possible answer":       {removed().Silent(0, 1).Gone(0, 1), reborn, gone, never, true, left},
		"left an unconfirmed list":            {removed().Unconfirmed(0, 1, 2), 0, gone, never, false, noList},
		"second member still listed":          {voters().Rebound(1, 0).Removed(0), 0, gone, never, false, listedB},
		"F11 moved for too short a time":      {moved(), reborn - time.Second, gone, noon, false, tooShort},
		"moved 20 minutes ago":                {moved(), reborn, gone, noon, true, longEnough},
		"F11 proven before the deletion":      {moved(), time.Minute, gone, before, false, "for 1m0s of the required 20m0s"},
		"F11 moved, now silent":               {moved().Silent(3), reborn, gone, noon, false, unproven},
		"moved, proven by others only":        {moved().InList(0, 0, unproved), reborn, gone, noon, false, unproven},
		"moved, alarms not read":              {moved().AlarmsUnknown(), reborn, gone, noon, false, unproven},
		"moved, never proven":                 {moved(), reborn, gone, never, false, unproven},
		"moved to a node that goes":           {moved().State(3, quorumtest.Departing), reborn, gone, noon, false, unplaced},
		"F20 the machine may join again":      {removed(), reborn - time.Second, gone, never, false, machineMayJoin},
		"F20 node not known to be gone":       {removed(), reborn, unreadNode, never, false, notGone},
		"F20 node still being deleted":        {removed(), reborn, deleting, never, false, goes},
		"F20 node reports another machine":    {removed(), reborn, deletingOther, never, false, goes},
		"F20 joined again, proven shortly":    {joined(), reborn, again, atFive, false, provenShortly},
		"F20 joined again, proven":            {joined(), reborn + 5*time.Minute, again, atFive, true, provenAgain},
		"F20 joined again, proven before":     {joined(), reborn, again, before, true, provenAgain},
		"F20 joined again, not proven":        {joined(), time.Hour, again, never, false, notProvenAgain},
		"F20 joined again, unbound":           {unbound, time.Hour, again, atTen, false, listedD},
		"F56 no addresses, may join again":    {unknown, reborn - time.Second, gone, never, false, mayJoin},
		"F56 no addresses, is gone":           {unknown, reborn, gone, never, true, left},
		"F20 another machine":                 {joined(), 0, other, never, true, "node w1 is another machine now"},
		"F20 another machine, not removed":    {voters(), time.Hour, other, never, false, listed},
		// F43, F88: a machine took longer to end than its grant lasted, and joined again, F88 under
		// another Node name: it counted.
		"F43 machine ending":                   {voters(), time.Hour, node("u1"), never, false, ending},
		"F43 machine ending, registered again": {voters(), time.Hour, node("u9"), noon, false, ending},
		"F43 machine ending, another machine":  {removed(), time.Hour, other, never, true, left},
		"F51 machine ending, node gone":        {removed(), reborn, gone, never, false, ending},
	} {
		t.Run(name, func(t *testing.T) {
			e := membership.ResolveEvidence{Now: noon.Add(c.after), Opened: noon}
			if strings.Contains(name, "machine ending") {
				e.Ending = ending
			}
			if c.since != never {
				e.ProvenSince = map[v1alpha1.MemberID]time.Time{"a": c.since, "d": c.since}
			}
			g := quorumtest.GrantFor(0)
			g.SystemUUID = "s1"
			if strings.HasPrefix(name, "F56") {
				g.Addresses = nil
			}
			isResolved, why := membership.Resolve(c.cluster.State(0, being(c.node)).View, g, e)
			require.Equal(t, c.isResolved, isResolved, why)
			require.Contains(t, why, c.why)
		})
	}
}

// TestResolveVoidGrant: the Node was written after its deletion was allowed.
func TestResolveVoidGrant(t *testing.T) {
	g := quorumtest.GrantFor(0)
	e := membership.ResolveEvidence{Now: quorumtest.Noon(), Opened: quorumtest.Noon()}
	g.Delete.Version = "9"
	w := quorumtest.Voters(3).State(0, func(n *observation.NodeState) { n.Version = "10" })
	isResolved, why := membership.Resolve(w.View, g, e)
	require.True(t, isResolved)
	require.Equal(t, "node w1 was written after its deletion was allowed, so each DELETE of it is reviewed again", why)
	e.Ending = "Machine default/w1 of node w1 is being deleted"
	isResolved, why = membership.Resolve(w.View, g, e)
	require.False(t, isResolved)
	require.Equal(t, e.Ending, why)
	e.Ending, g.Delete.Version = "", "10"
	isResolved, _ = membership.Resolve(w.View, g, e)
	require.False(t, isResolved)
}

func TestSelfProven(t *testing.T) {
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(quorumtest.Voters(3).View))
	w := quorumtest.Voters(4).Silent(0).InList(1, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = false })
	require.Equal(t, quorumtest.IDs("c", "d"), membership.SelfProven(w.View), "proofs of other agents do not count")
	w.InList(3, 2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} })
	require.Equal(t, quorumtest.IDs("d"), membership.SelfProven(w.View))
	w = quorumtest.Voters(3).WithoutRoles().Silent(0)
	w.InList(2, 1, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} })
	require.Equal(t, quorumtest.IDs("c"), membership.SelfProven(w.View), "F78 one of two observers denies it")
}

// F12: a host that never comes back does not block deletions for good.
func TestResolveByHand(t *testing.T) {
	w := quorumtest.Voters(3).State(0, quorumtest.Gone).Granted(0)
	beside := quorumtest.CopyOf(w.Granted(1).View)
	others, _ := membership.ResolveByHand(beside.Cluster, "u1", beside.Nodes)
	require.Equal(t, beside.Cluster.Spec.Grants[1:], others, "the other grant stays")
	w.Cluster.Spec.Grants = w.Cluster.Spec.Grants[:1]
	quorumtest.RequireRefused(t, w, quorumtest.Deletion(1), "not before 2026-05-01T12:03:00Z, and only if "+
		"etcd1 (a) keeps running, on the same machine or on another one that stays: kubectl holdfast settle w1\n"+
		"    or without the plugin:\n    kubectl annotate --overwrite etcdcluster cdf818194e3a8c32 holdfast.dev/settle=u1")
	grants, bindings := membership.ResolveByHand(w.Cluster, "u1", w.Nodes)
	w.Cluster.Spec.Grants, w.Cluster.Spec.Members = grants, bindings
	require.Empty(t, membership.Tombstones(w.View), "the grant is not written again")
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))

	alive := quorumtest.Voters(3).Granted(0)
	_, bindings = membership.ResolveByHand(alive.Cluster, "u1", alive.Nodes)
	require.Len(t, bindings, 3, "the binding of an existing Node stays")
	alive.State(0, unread)
	_, bindings = membership.ResolveByHand(alive.Cluster, "u1", alive.Nodes)
	require.Len(t, bindings, 3, "the binding of a Node that could not be read stays")
}

func TestTombstones(t *testing.T) {
	gone := func(i int) *quorumtest.Cluster { return quorumtest.Voters(3).State(i, quorumtest.Gone) }
	state := func(n observation.NodeState) *quorumtest.Cluster {
		return quorumtest.Voters(3).State(1, func(old *observation.NodeState) { *old = n })
	}
	grant := func(uid types.UID, node string, members ...v1alpha1.MemberID) v1alpha1.Grant {
		g := v1alpha1.Grant{NodeUID: uid, Node: node, Members: members, Gone: &v1alpha1.Door{}}
		for _, id := range members {
			g.Addresses = append(g.Addresses, map[v1alpha1.MemberID]string{"b": "10.0.0.2", "c": "10.0.0.3"}[id])
		}
		return g
	}
	both := quorumtest.GrantFor(1)
	both.Members, both.Addresses = quorumtest.IDs("b", "c"), []string{"10.0.0.2", "10.0.0.3"}
	drained := *both.DeepCopy()
	drained.Delete, drained.Drain, drained.Gone = nil, both.Delete, &v1alpha1.Door{}
	goneAfterDrain := quorumtest.DrainGrantFor(2)
	goneAfterDrain.Gone = &v1alpha1.Door{}
	removal, goneAfterRemoval := quorumtest.RemovalGrantFor(1), quorumtest.RemovalGrantFor(1)
	goneAfterRemoval.Gone = &v1alpha1.Door{} // the removal of a member allows no deletion of its Node
	granting := func(w *quorumtest.Cluster, g v1alpha1.Grant) *quorumtest.Cluster {
		w.Cluster.Spec.Grants = []v1alpha1.Grant{g}
		return w
	}
	reborn := func(n *observation.NodeState) { n.UID = "u3-again" }
	lost := []v1alpha1.Grant{grant("u2", "w2", "b")}
	unlisted := []v1alpha1.Grant{
		{NodeUID: "u2", Node: "w2", Members: quorumtest.IDs("b"), Gone: &v1alpha1.Door{}},
	}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		want    []v1alpha1.Grant
	}{
		"all there":              {quorumtest.Voters(3), nil},
		"gone":                   {gone(1), lost},
		"registered again":       {state(node("u2-again")), lost},
		"not read":               {quorumtest.Voters(3).State(1, unread), nil},
		"being deleted":          {state(observation.NodeState{Known: true, UID: "u2", Deleting: true}), nil},
		"granted":                {gone(1).Granted(1), nil},
		"beside another grant":   {gone(1).Granted(0), lost},
		"two members":            {gone(1).Rebound(2, 1), []v1alpha1.Grant{grant("u2", "w2", "b", "c")}},
		"granted for one of two": {gone(1).Rebound(2, 1).Granted(1), []v1alpha1.Grant{both}},
		"F37 drained, lacks a member": {
			gone(1).Rebound(2, 1).Drained(1).State(1, quorumtest.Gone), []v1alpha1.Grant{drained},
		},
		"F37 drained, beside one without a grant": {
			gone(1).Drained(2).State(2, quorumtest.Gone), []v1alpha1.Grant{lost[0], goneAfterDrain},
		},
		"F37 drained, registered again": {
			quorumtest.Voters(3).Drained(2).State(2, reborn), []v1alpha1.Grant{goneAfterDrain},
		},
		"F37 drained, there":          {quorumtest.Voters(3).Drained(2), nil},
		"F37 drained, not read":       {quorumtest.Voters(3).Drained(2).State(2, unread), nil},
		"after a removal":             {granting(gone(1), removal), []v1alpha1.Grant{goneAfterRemoval}},
		"after a removal, written":    {granting(gone(1), goneAfterRemoval), nil},
		"removed before":              {gone(1).Removed(1).Silent(1), nil},
		"removed from one list":       {gone(1).RemovedFrom(0, 1), lost},
		"removed in the only answer":  {gone(1).Removed(1).Silent(1, 2), nil},
		"the same, no role":           {gone(1).Removed(1).Silent(1, 2).WithoutRoles(), unlisted},
		"removed in old answers only": {gone(1).Removed(1).Silent(0, 1, 2), unlisted},
		"two nodes": {
			gone(2).State(1, quorumtest.Gone), []v1alpha1.Grant{grant("u2", "w2", "b"), grant("u3", "w3", "c")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.cluster.Cluster.DeepCopy()
			require.Equal(t, c.want, membership.Tombstones(c.cluster.View))
			require.Equal(t, before, c.cluster.Cluster, "the argument must not change")
		})
	}
}

// TestSelfProvenCorrupt: the report of one observer that a member is corrupt is enough, although
// another one has read the alarms without it.
func TestSelfProvenCorrupt(t *testing.T) {
	corrupt := func(m *v1alpha1.MemberStatus) { m.Alarms = []string{quorum.CorruptAlarm} }
	require.Equal(t, quorumtest.IDs("b", "c"), membership.SelfProven(quorumtest.Voters(3).InList(1, 0, corrupt).View))
}
