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

// A leaderProbe is what the leader finds in one probe of a drained node.
type leaderProbe struct {
	after   time.Duration // since the grant
	cluster *quorumtest.Cluster
}

// resolveAfter returns the answer of Resolve at the last of the probes at node w1.
func resolveAfter(g v1alpha1.Grant, probes []leaderProbe) (isResolved bool, why string) {
	var r membership.NodeReturn
	for _, l := range probes {
		now := quorumtest.Noon().Add(l.after)
		r = r.Next(l.cluster.View, g, now)
		isResolved, why = membership.Resolve(l.cluster.View, g, membership.ResolveEvidence{
			Now: now, Opened: quorum.LastOpened(g).Time, Return: r,
		})
	}
	return isResolved, why
}

// every10s returns probes of the same cluster.
func every10s(from time.Duration, n int, cluster *quorumtest.Cluster) []leaderProbe {
	probes := make([]leaderProbe, n)
	for i := range probes {
		probes[i] = leaderProbe{from + time.Duration(i)*10*time.Second, cluster}
	}
	return probes
}

func TestReturnIsUnderWay(t *testing.T) {
	closed := quorumtest.Voters(3).Drained(0)
	open := quorumtest.Voters(3).Drained(0).State(0, func(n *observation.NodeState) { n.Cordoned = false })
	down := quorumtest.Voters(3).Drained(0).State(0, func(n *observation.NodeState) { n.Cordoned = false }).Dead(0)
	var r membership.NodeReturn
	require.False(t, r.IsUnderWay())
	for i, probe := range []struct {
		cluster    *quorumtest.Cluster
		isUnderWay bool
	}{
		{closed, false},
		{down, true},
		{down, false},
		{open, true},
		{down, false},
		{closed, false},
		{open, true},
		{open, true}, // the first proof
		{open, true},
		{open, true},
		{open, false}, // 30 seconds after the first proof
	} {
		now := quorumtest.Noon().Add(time.Duration(i) * 10 * time.Second)
		r = r.Next(probe.cluster.View, probe.cluster.Cluster.Spec.Grants[0], now)
		require.Equal(t, probe.isUnderWay, r.IsUnderWay(), "probe %d", i)
	}
}

// F34, F37: the grant of a drain ended while its Node existed, by proofs from before the restart,
// or at once when the Node went without a review.
func TestF34DrainedNode(t *testing.T) {
	drained := func() *quorumtest.Cluster { return quorumtest.Voters(3).Drained(0) }
	open := func() *quorumtest.Cluster {
		return drained().State(0, func(n *observation.NodeState) { n.Cordoned = false })
	}
	reboot, departure := open().State(0, quorumtest.Rebooting), open().State(0, quorumtest.Departing)
	deleting := open().State(0, func(n *observation.NodeState) { n.Deleting = true })
	moved := open().Rebound(0, 3).State(3, func(n *observation.NodeState) { *n = node("u4") })
	elsewhere := open().Rebound(0, 3)
	elsewhere.Nodes["w4"] = observation.NodeState{Known: true, UID: "u4", HasRole: true}
	elsewhere.Cluster.Observations[0].Node, elsewhere.Cluster.Observations[0].NodeUID = "w4", "u4"
	down := open().Dead(0)
	silent := open().Silent(0)
	unread := open().State(0, func(n *observation.NodeState) { *n = observation.NodeState{} })
	// then returns probes every ten seconds: some of the first cluster, some of the next one, and so
	// on.
	type part struct {
		cluster *quorumtest.Cluster
		count   int
	}
	then := func(parts ...part) (all []leaderProbe) {
		for _, p := range parts {
			all = append(all, every10s(time.Duration(len(all))*10*time.Second, p.count, p.cluster)...)
		}
		return all
	}
	unhealthy := func(m *v1alpha1.MemberStatus) { m.Healthy = false }
	at := func(c *quorumtest.Cluster, seconds ...time.Duration) (probes []leaderProbe) {
		for _, s := range seconds {
			probes = append(probes, leaderProbe{s * time.Second, c})
		}
		return probes
	}
	const closed, notYet = "node w1 was drained, and is cordoned", "has not yet proven member a healthy twice, 30s apart"
	for name, c := range map[string]struct {
		probes     []leaderProbe
		isResolved bool
		why        string
	}{
		"cordoned and healthy for an hour": {every10s(0, 361, drained()), false, closed},
		"marked":                           {every10s(0, 60, reboot), false, "is being rebooted by kured"},
		"about to be deleted":              {every10s(0, 60, departure), false, "is about to be deleted"},
		"being deleted":                    {every10s(0, 60, deleting), false, "is being deleted"},
		"first probe":                      {every10s(0, 1, open()), false, notYet},
		"open for 30 s":                    {every10s(0, 4, open()), false, notYet},
		"open, proven twice":               {every10s(0, 5, open()), true, "node w1 is open again; member a has been proven"},
		"two probes only":                  {at(open(), 0, 10, 40), true, "open again"},
		"one probe after the others":       {at(open(), 0, 50), false, notYet},
		"leader that did not probe":        {at(open(), 0, 10, 20, 3600), false, notYet},
		"F34 uncordoned before etcd is back": {
			then(part{drained(), 5}, part{down, 6}, part{open(), 3}), false, notYet,
		},
		"silent agent in between":       {then(part{open(), 4}, part{silent, 1}, part{open(), 3}), false, notYet},
		"closed in between":             {then(part{open(), 4}, part{drained(), 1}, part{open(), 4}), false, notYet},
		"unread in between":             {then(part{open(), 4}, part{unread, 1}, part{open(), 4}), false, notYet},
		"proven on another Node before": {then(part{elsewhere, 4}, part{open(), 1}), false, notYet},
		"silent, then proven twice":     {then(part{silent, 5}, part{open(), 5}), true, "open again"},
		"proven by others only":         {every10s(0, 9, open().InList(0, 0, unhealthy)), false, notYet},
		"alarms not read":               {every10s(0, 9, open().AlarmsUnknown()), false, notYet},
		"no list":                       {every10s(0, 9, open().Unconfirmed(0, 1, 2)), false, "no observer has answered"},
		"learner":                       {every10s(0, 9, open().Learner(0)), true, "open again"},
		"left":                          {every10s(0, 1, open().Removed(0)), true, "member a has left the member list"},
		"left, still closed":            {every10s(0, 9, drained().Removed(0)), false, closed},
		"second member":                 {every10s(0, 9, open().Rebound(1, 0).Dead(1)), false, "member b healthy twice"},
		"moved to other node":           {every10s(0, 9, moved), false, "whose agent does not prove"},
	} {
		t.Run(name, func(t *testing.T) {
			for reason, g := range map[string]v1alpha1.Grant{
				"drain": quorumtest.DrainGrantFor(0), "F35 deletion after a drain": oldDeletionAfterDrain(),
			} {
				isResolved, why := resolveAfter(g, c.probes)
				require.Equal(t, c.isResolved, isResolved, "%s: %s", reason, why)
				require.Contains(t, why, c.why)
			}
		})
	}
}

// The proofs of a returned node are why its drain may end, so the time of the reason is theirs. Any
// other reason begins with the probe that finds it.
func TestHeldSince(t *testing.T) {
	noon := quorumtest.Noon()
	for name, c := range map[string]struct {
		grant   v1alpha1.Grant
		cluster *quorumtest.Cluster
		want    time.Duration
	}{
		"returned":              {quorumtest.DrainGrantFor(0), quorumtest.Voters(3), 10 * time.Second},
		"deletion after drain":  {oldDeletionAfterDrain(), quorumtest.Voters(3), 50 * time.Second},
		"deletion":              {quorumtest.GrantFor(0), quorumtest.Voters(3), 50 * time.Second},
		"left":                  {quorumtest.DrainGrantFor(0), quorumtest.Voters(3).Removed(0), 50 * time.Second},
		"one returned, one not": {quorumtest.DrainGrantFor(0), quorumtest.Voters(3).Rebound(1, 0).Dead(1), 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			e := membership.ResolveEvidence{}
			for _, l := range every10s(0, 6, c.cluster) {
				e.Now = noon.Add(l.after)
				e.Return = e.Return.Next(c.cluster.View, c.grant, e.Now)
			}
			require.Equal(t, noon.Add(c.want), membership.HeldSince(c.cluster.View, c.grant, e))
		})
	}
}

// TestF47ForcedDrainOfOpenNode: an override may allow the drain of a node that is open. That it is
// open and healthy shows no end of the drain, whose eviction may not have been carried out.
// F47, F86: the grant of a forced drain ended after 30 seconds, because its node was open (F86
// after another drain).
func TestF47ForcedDrainOfOpenNode(t *testing.T) {
	g := quorumtest.DrainGrantFor(0)
	g.Drain.BreakGlass = true
	open := quorumtest.Voters(3)
	isResolved, why := resolveAfter(g, every10s(0, 30, open))
	require.False(t, isResolved)
	require.Contains(t, why, "was forced less than 5m0s ago, and may not have begun")
	isResolved, why = resolveAfter(g, every10s(0, 31, open))
	require.True(t, isResolved, why)
}

// deletionAfterDrain returns the grant for the deletion of a node that was drained before.
func deletionAfterDrain() v1alpha1.Grant {
	g := quorumtest.DrainGrantFor(0)
	g.Delete = g.Drain.DeepCopy()
	g.Drain.Time.Time = g.Drain.Time.Add(-time.Hour)
	return g
}

// oldDeletionAfterDrain returns such a grant for a deletion that is over.
func oldDeletionAfterDrain() v1alpha1.Grant {
	g := deletionAfterDrain()
	g.Delete.Time.Time = g.Delete.Time.Add(-quorum.ResolvePresentAfter)
	return g
}

// A renewed grant needs new proofs.
func TestDrainedAgain(t *testing.T) {
	cluster := quorumtest.Voters(3)
	g := quorumtest.DrainGrantFor(0)
	var r membership.NodeReturn
	for i := range 5 {
		r = r.Next(cluster.View, g, quorumtest.Noon().Add(time.Duration(i)*10*time.Second))
	}
	g.Drain.Time.Time = quorumtest.Noon().Add(45 * time.Second)
	now := quorumtest.Noon().Add(50 * time.Second)
	e := membership.ResolveEvidence{
		Now: now, Opened: g.Drain.Time.Time, Return: r.Next(cluster.View, g, now),
	}
	isResolved, why := membership.Resolve(cluster.View, g, e)
	require.False(t, isResolved, why)

	e.Return = r
	e.Opened = quorumtest.Noon()
	isResolved, why = membership.Resolve(cluster.View, g, e)
	require.True(t, isResolved, why)
	isResolved, _ = membership.Resolve(cluster.Unhealthy(0).View, g, e)
	require.False(t, isResolved, "the last answers are newer than the proofs")
}

// If the Node of a drain is gone, the rules of a deletion apply, from the time at which the leader
// finds that out. TestTombstones has the grant that it writes then.
func TestF37DrainedNodeGone(t *testing.T) {
	const reborn = quorum.ResolveMovedAfter
	removed := quorumtest.Voters(3).Removed(0).State(0, quorumtest.Gone)
	for after, want := range map[time.Duration]bool{reborn - time.Second: false, reborn: true} {
		e := membership.ResolveEvidence{Now: quorumtest.Noon().Add(after), Opened: quorumtest.Noon()}
		isResolved, why := membership.Resolve(removed.View, deletionAfterDrain(), e)
		require.Equal(t, want, isResolved, why)
	}
}
