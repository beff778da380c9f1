package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// joined returns a cluster of voters of which some joined after the bootstrap.
func joined(n int, members ...int) *quorumtest.Cluster {
	return quorumtest.Voters(n).Basis(v1alpha1.BasisJoined, members...)
}

// provenBy makes only these observers prove member i healthy.
func provenBy(c *quorumtest.Cluster, i int, observers ...int) *quorumtest.Cluster {
	c.Unhealthy(i)
	for _, o := range observers {
		c.InList(o, i, func(m *v1alpha1.MemberStatus) { m.Healthy = true })
	}
	return c
}

// localOnly makes three members advertise client URLs that no other host can reach, as k0s does.
func localOnly(c *quorumtest.Cluster) *quorumtest.Cluster {
	for i := range 3 {
		c.Everywhere(i, loopback)
		provenBy(c, i, i)
	}
	return c
}

func loopback(m *v1alpha1.MemberStatus) { m.ClientURLs = []string{"https://127.0.0.1:2379"} }

func alarmed(m *v1alpha1.MemberStatus) { m.Alarms = []string{quorum.CorruptAlarm} }

// In a cluster of three, node w1 may be deleted only if b and c are proven healthy.
func TestF21ProofNeedsSecondObserver(t *testing.T) {
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		allowed bool
		text    string
	}{
		"founder alone":              {provenBy(joined(3, 2), 1, 0), true, ""},
		"member's own founder":       {provenBy(joined(3, 2), 1, 1), true, ""},
		"late observer alone":        {provenBy(joined(3, 2), 1, 2), false, "only node w3, whose member joined later"},
		"late observer about itself": {provenBy(joined(3, 2), 2, 2), false, "only node w3, whose member joined later"},
		"two late observers":         {provenBy(joined(3, 1, 2), 1, 1, 2), true, ""},
		"all late":                   {joined(3, 0, 1, 2), true, ""},
		"all late, one answers":      {joined(3, 0, 1, 2).Silent(0, 1), false, "no two agents returned the same"},
		"all late, one wrong list":   {joined(3, 0, 1, 2).RemovedFrom(2, 0), true, ""},
		"all late, no same list": {
			joined(3, 0, 1, 2).RemovedFrom(2, 0).RemovedFrom(1, 2), false, "its agent lists b, c, and no second observer",
		},
		"founder silent, two late agree": {joined(3, 1, 2).Silent(0), true, ""},
		"claimed observers": {
			provenBy(joined(3), 1, 1).Basis(v1alpha1.BasisClaimed, 1), false, "only that node claims member b",
		},
		"disputed observers": {
			provenBy(joined(3), 1, 1).Basis(v1alpha1.BasisDisputed, 1), false, "another node announces member b too",
		},
		"local only, founders":   {localOnly(joined(3)), true, ""},
		"local only, one late":   {localOnly(joined(3, 2)), true, ""},
		"local only, all late":   {localOnly(joined(3, 0, 1, 2)), true, ""},
		"local only, by a lie":   {provenBy(localOnly(joined(3, 2)), 1, 2), false, "only 1 would remain"},
		"late observer: corrupt": {joined(3, 2).InList(2, 1, alarmed), true, ""},
		"founder: corrupt":       {joined(3, 2).InList(0, 1, alarmed), false, "the alarm CORRUPT"},
		"two late: corrupt":      {joined(3, 0, 1, 2).InList(2, 1, alarmed).InList(0, 1, alarmed), false, "CORRUPT"},
		"F78 two late, one denies corruption": {
			joined(3, 1, 2).Silent(0).InList(2, 1, alarmed), false, "reports the alarm CORRUPT",
		},
		"F78 beside a founder without alarms": {
			joined(3, 1, 2).AlarmsUnknown(0).InList(2, 1, alarmed), false, "reports the alarm CORRUPT",
		},
		"F78 three late, two deny corruption": {joined(3, 0, 1, 2).InList(2, 1, alarmed), true, ""},
		"only late: alarms read":              {joined(3, 2).AlarmsUnknown(0, 1), false, "could read the etcd alarms"},
		"only one Node, late":                 {joined(3, 0).Unbound(1).Unbound(2), true, ""},
		"late observer hides list":            {joined(3, 2).WithoutList(2), true, ""},
		"local only, by its own word": {
			provenBy(joined(3, 2), 2, 2).InList(2, 2, loopback), false, "only node w3, whose member joined later",
		},
		"only one Node, late, beside a claim": {joined(3, 0).Basis(v1alpha1.BasisClaimed, 1).Unbound(2), true, ""},
		"only one Node, late, beside one that is gone": {
			joined(5, 0, 4).Unbound(1).Unbound(2).Unbound(3).State(4, quorumtest.Gone), true, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := quorum.Decide(c.cluster.View, quorumtest.Deletion(0))
			require.Equal(t, c.allowed, v.Allowed, v.Message)
			require.Contains(t, v.Message, c.text)
		})
	}
}

// One of two late observers reports the alarm CORRUPT of member b. Founder w1 has not answered, and
// may deny it. So a late observer cannot end a review by a lie.
func TestF78DeniedCorruptionIsNotFinal(t *testing.T) {
	v := quorum.Decide(joined(3, 1, 2).Silent(0).InList(2, 1, alarmed).View, quorumtest.Deletion(0))
	require.False(t, v.Final, v.Message)
	v = quorum.Decide(joined(3, 1, 2).InList(2, 1, alarmed).View, quorumtest.Deletion(0))
	require.True(t, v.Allowed, v.Message)
}

// Two late observers agree on a list that a founder does not have, and one alone does.
func TestF21ListsBesideFounder(t *testing.T) {
	added := func() *quorumtest.Cluster {
		w := joined(4, 1, 2).Unbound(3).Unhealthy(3)
		w.Cluster.Observations = w.Cluster.Observations[:3]
		return w.RemovedFrom(0, 3)
	}
	quorumtest.RequireRefused(t, added(), quorumtest.Deletion(0), "3 of 4 voters must be healthy, and only 2")
	quorumtest.RequireAllowed(t, added().RemovedFrom(1, 3), quorumtest.Deletion(0))
}

// The Node of an observer has another UID now. The observation counts only against a deletion,
// and only if it is from a founder.
func TestF28StatementOfOtherNode(t *testing.T) {
	replaced := func(c *quorumtest.Cluster) *quorumtest.Cluster {
		return c.State(4, func(n *observation.NodeState) { n.UID = "u5-again" })
	}
	ghosts := func(c *quorumtest.Cluster) *quorumtest.Cluster {
		members := &c.Cluster.Observations[4].Members
		*members = append(*members, quorumtest.Member(5), quorumtest.Member(6))
		return c
	}
	corrupt := func(c *quorumtest.Cluster) *quorumtest.Cluster { return c.InList(4, 1, alarmed) }
	quorumtest.RequireAllowed(t, replaced(ghosts(joined(5, 4))), quorumtest.Deletion(0))
	quorumtest.RequireAllowed(t, replaced(corrupt(joined(5, 4))), quorumtest.Deletion(0))
	quorumtest.RequireRefused(t, replaced(ghosts(joined(5))), quorumtest.Deletion(0), "4 of 7 voters must be healthy")
	quorumtest.RequireRefused(t, replaced(corrupt(joined(5))), quorumtest.Deletion(0), "the alarm CORRUPT")
}

// The agent on the member's Node shows that the member moved there. The proof needs a second
// observer.
func TestF21SelfProof(t *testing.T) {
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(joined(3, 2), 2, 2).View))
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(provenBy(joined(3, 2), 2, 0, 2).View))
	claimed := func() *quorumtest.Cluster { return quorumtest.Voters(3).Basis(v1alpha1.BasisClaimed, 2) }
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(claimed().View))
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(claimed(), 2, 2).View))
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(claimed(), 2, 0, 1).View))
}

// A list that a late observer alone returns ends nothing, and does not hide a member.
func TestF21ListOfLateObserver(t *testing.T) {
	lying := func() *quorumtest.Cluster { return joined(4, 3).RemovedFrom(3, 0).Granted(0) }
	require.False(t, quorum.NewSnapshot(lying().Silent(0, 1, 2).View).IsConclusive())
	oneFounder := joined(4, 3).Silent(1, 2, 3).State(1, quorumtest.Gone).State(2, quorumtest.Gone)
	require.True(t, quorum.NewSnapshot(oneFounder.View).IsConclusive(), "a late observer cannot contradict a founder")
	claimed := quorumtest.Voters(4).Basis(v1alpha1.BasisClaimed, 3).Silent(3)
	require.Empty(t, quorum.NewSnapshot(claimed.View).Pending(), "a Node that is no observer is not awaited")
	for _, w := range []*quorumtest.Cluster{lying(), lying().Silent(0, 1, 2)} {
		evidence := membership.ResolveEvidence{Now: quorumtest.Noon().Add(quorum.ResolveMovedAfter)}
		isResolved, _ := membership.Resolve(w.View, w.Cluster.Spec.Grants[0], evidence)
		require.False(t, isResolved)
	}
	alone := joined(4, 3).RemovedFrom(3, 0).Silent(0, 1, 2)
	require.False(t, quorum.Decide(alone.View, quorumtest.Deletion(0)).Allowed)
	require.False(t, quorum.Decide(alone.View, quorumtest.Deletion(0)).Final, "a founder may still answer")
}

// A refusal names the lists if they differ, and tells to remove no member that one of them lacks.
func TestF21DifferingLists(t *testing.T) {
	ghost := quorumtest.Voters(4).Unbound(3)
	ghost.Cluster.Observations = ghost.Cluster.Observations[:3]
	ghost.RemovedFrom(0, 3).RemovedFrom(1, 3).Unhealthy(3)
	lacking := quorumtest.Voters(4).Dead(1).RemovedFrom(0, 1)
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		texts   []string
		member  string
	}{
		"a member that one list has": {
			ghost.Unhealthy(1),
			[]string{
				"this is by the list of node w3; node w1 lists a, b, c; node w2 lists a, b, c",
				"whether the cluster has etcd4 (d)",
			},
			"d",
		},
		"a member that one list lacks": {lacking, []string{"this is by the list of node w3; node w1 lists a, c, d"}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			text := quorum.Decide(c.cluster.View, quorumtest.Deletion(0)).Message
			for _, words := range c.texts {
				require.Contains(t, text, words)
			}
			require.NotContains(t, text, "etcdctl member remove "+c.member)
		})
	}
}

// A late observer alone neither places an unbound member at a Node nor keeps a member in the list.
func TestF21ListsOfFoundersTakePrecedence(t *testing.T) {
	w := joined(4, 2).Unbound(3)
	w.Cluster.Observations = w.Cluster.Observations[:3]
	w.InList(2, 3, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://10.0.0.99:2380"} })
	worker := observation.AnnouncingNode{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}}
	require.Empty(t, quorum.PossibleNodes(w.Cluster, []observation.AnnouncingNode{worker}))
	w.RemovedFrom(0, 3).RemovedFrom(1, 3)
	require.True(t, observation.HasLeft(w.Cluster, "d"))
}

// The limit about forged addresses in docs/verdict.md: a worker forges the address of a member
// whose host is no Node, and marks itself as away. The refusal names the worker and its mark.
func TestForgedAddressOfAwayNode(t *testing.T) {
	w := quorumtest.Voters(3).Unbound(2)
	w.Cluster.Observations = w.Cluster.Observations[:2]
	worker := v1alpha1.Binding{MemberID: "c", Node: "worker", NodeUID: "uw"}
	w.PossibleNodes = []v1alpha1.Binding{worker}
	away := observation.NodeState{Known: true, UID: "uw"}
	w.Nodes["worker"] = away
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
	quorumtest.ShuttingDown(&away)
	w.Nodes["worker"] = away
	quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "its node worker is shutting down or rebooting "+
		"(annotation holdfast.dev/shutdown")
}
