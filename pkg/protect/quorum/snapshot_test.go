package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// without returns a cluster of voters on Nodes without a role.
func without(n int) *quorumtest.Cluster { return quorumtest.Voters(n).WithoutRoles() }

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

// Changes of a member.
func alarmed(m *v1alpha1.MemberStatus)   { m.Alarms = []string{quorum.CorruptAlarm} }
func unhealthy(m *v1alpha1.MemberStatus) { m.Healthy = false }
func unstarted(m *v1alpha1.MemberStatus) { m.Name, m.ClientURLs, m.Healthy = "", nil, false }

func alarm(name string) func(*v1alpha1.MemberStatus) {
	return func(m *v1alpha1.MemberStatus) { m.Alarms = []string{name} }
}

// In a cluster of three, node w1 may be deleted only if b and c are proven healthy. The word of one
// Node with a role counts, or those of two Nodes.
func TestF21ProofNeedsSecondObserver(t *testing.T) {
	voters := quorumtest.Voters
	allRoleless := voters(3).State(0, roleless).State(1, roleless).State(2, roleless)
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		allowed bool
		text    string
	}{
		"role: one proof":                  {provenBy(voters(3), 1, 0), true, ""},
		"role: its own proof":              {provenBy(voters(3), 1, 1), true, ""},
		"role: one answers":                {voters(3).Silent(0, 1), true, ""},
		"role: proof of a Node without":    {provenBy(voters(3), 1, 1).State(1, roleless), false, "only 1 would remain"},
		"role: no Node has one":            {allRoleless, false, "label"},
		"role: a claim is no observer":     {provenBy(voters(3), 1, 1).Basis(v1alpha1.BasisClaim, 1), false, "lacks a role"},
		"role: disputed observer":          {provenBy(voters(3), 1, 1).Basis(v1alpha1.BasisDisputed, 1), true, ""},
		"role: local only":                 {localOnly(voters(3)), true, ""},
		"role: corrupt":                    {voters(3).InList(0, 1, alarmed), false, "the alarm CORRUPT"},
		"role: corrupt, by a Node without": {voters(3).InList(0, 1, alarmed).State(0, roleless), true, ""},
		"one proof":                        {provenBy(without(3), 1, 0), false, "only node w1 reports that it is healthy"},
		"its own proof":                    {provenBy(without(3), 1, 1), false, "only node w2 reports that it is healthy"},
		"two proofs":                       {provenBy(without(3), 1, 0, 2), true, ""},
		"two answer":                       {without(3).Silent(0), true, ""},
		"one answers":                      {without(3).Silent(0, 1), false, "no two nodes returned the same"},
		"one wrong list":                   {without(3).RemovedFrom(2, 0), true, ""},
		"no same list": {
			without(3).RemovedFrom(2, 0).RemovedFrom(1, 2), false, "its agent lists b, c, and no second node",
		},
		"claimed observer": {
			provenBy(without(3), 1, 0, 1).Basis(v1alpha1.BasisClaim, 1), false, "only that node claims member b",
		},
		"disputed observer": {provenBy(without(3), 1, 0, 1).Basis(v1alpha1.BasisDisputed, 1), true, ""},
		"local only":        {localOnly(without(3)), true, ""},
		"local only, disputed": {
			localOnly(without(3)).Basis(v1alpha1.BasisDisputed, 1), false, "only node w2 reports that it is healthy",
		},
		"local only, by a lie": {provenBy(localOnly(without(3)), 1, 2), false, "only 1 would remain"},
		"local only, by its own word": {
			provenBy(without(3), 2, 2).InList(2, 2, loopback), false, "only node w3 reports",
		},
		"one: corrupt": {without(3).InList(2, 1, alarmed), true, ""},
		"two: corrupt": {without(3).InList(2, 1, alarmed).InList(0, 1, alarmed), false, "CORRUPT"},
		// F78: of two observers one reported CORRUPT and one denied it: the member counted.
		"F78 two answer, one denies corruption": {
			without(3).Silent(0).InList(2, 1, alarmed), false, "reports the alarm CORRUPT",
		},
		"F78 beside one without alarms": {
			without(3).AlarmsUnknown(0).InList(2, 1, alarmed), false, "reports the alarm CORRUPT",
		},
		"one read the alarms":     {without(3).AlarmsUnknown(0, 1), false, "could read the etcd alarms"},
		"one Node":                {without(3).Unbound(1).Unbound(2), true, ""},
		"one Node beside a claim": {without(3).Basis(v1alpha1.BasisClaim, 1).Unbound(2), true, ""},
		"one Node beside one that is gone": {
			without(5).Unbound(1).Unbound(2).Unbound(3).State(4, quorumtest.Gone), true, "",
		},
		"one hides its list": {without(3).WithoutList(2), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := quorum.Decide(c.cluster.View, quorumtest.Deletion(0))
			require.Equal(t, c.allowed, v.Allowed, words.Message(v))
			require.Contains(t, words.Message(v), c.text)
		})
	}
}

func roleless(n *observation.NodeState) { n.HasRole = false }

// The only observer, without a role, may have claimed a member of a foreign cluster. Its word does
// not count alone about a Node that announces a member too.
func TestFirstUseAboutOtherNode(t *testing.T) {
	w := without(3).Unbound(0).Unbound(2)
	v := quorum.Decide(w.Silent(0, 2).View, quorumtest.Deletion(0))
	require.Equal(t, quorum.CannotSee, v.Reason, words.Message(v))
	require.True(t, quorum.Decide(w.View, quorumtest.Deletion(1)).Allowed)
}

// One of two observers reports the alarm CORRUPT of member b. Node w1 has not answered, and may
// deny it. So one observer cannot end a review by a lie.
func TestF78DeniedCorruptionIsNotFinal(t *testing.T) {
	v := quorum.Decide(without(3).Silent(0).InList(2, 1, alarmed).View, quorumtest.Deletion(0))
	require.False(t, v.Final, words.Message(v))
	v = quorum.Decide(without(3).InList(2, 1, alarmed).View, quorumtest.Deletion(0))
	require.True(t, v.Allowed, words.Message(v))
}

// The agent on the member's Node shows that the member moved there. Without a role, the proof
// needs a second observer.
func TestF21SelfProof(t *testing.T) {
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(provenBy(quorumtest.Voters(3), 2, 2).View))
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(without(3), 2, 2).View))
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(provenBy(without(3), 2, 0, 2).View))
	claimed := func() *quorumtest.Cluster { return quorumtest.Voters(3).Basis(v1alpha1.BasisClaim, 2) }
	require.Equal(t, quorumtest.IDs("a", "b", "c"), membership.SelfProven(claimed().View))
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(claimed(), 2, 2).View))
	require.Equal(t, quorumtest.IDs("a", "b"), membership.SelfProven(provenBy(claimed(), 2, 0, 1).View))
}

// Without a role, a list that one Node alone returns ends nothing, and does not hide a member.
func TestF21ListOfOneObserver(t *testing.T) {
	lying := func() *quorumtest.Cluster { return without(4).RemovedFrom(3, 0).Granted(0).Gone(0) }
	claimed := quorumtest.Voters(4).Basis(v1alpha1.BasisClaim, 3).Silent(3)
	require.Empty(t, quorum.NewSnapshot(claimed.View).Pending(), "a Node that is no observer is not awaited")
	roleless := quorumtest.Voters(4).Silent(3).State(3, roleless)
	require.Empty(t, quorum.NewSnapshot(roleless.View).Pending(), "a Node that has lost its role is not awaited")
	for _, w := range []*quorumtest.Cluster{lying(), lying().Silent(0, 1, 2)} {
		evidence := membership.ResolveEvidence{Now: quorumtest.Noon().Add(quorum.ResolveMovedAfter)}
		isResolved, _ := membership.Resolve(w.View, w.Cluster.Spec.Grants[0], evidence)
		require.False(t, isResolved)
	}
	alone := without(4).RemovedFrom(3, 0).Silent(0, 1, 2)
	require.False(t, quorum.Decide(alone.View, quorumtest.Deletion(0)).Allowed)
	require.False(t, quorum.Decide(alone.View, quorumtest.Deletion(0)).Final, "another observer may still answer")
}

// Without a role, one observer alone neither places an unbound member at a Node nor keeps a member
// in the list.
func TestF21PlaceByOneList(t *testing.T) {
	worker := observation.AnnouncingNode{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}}
	for name, c := range map[string]struct {
		cluster  *quorumtest.Cluster
		isPlaced bool
	}{
		"role": {quorumtest.Voters(4), true}, "no role": {without(4), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.cluster.Unbound(3)
			w.Cluster.Observations = w.Cluster.Observations[:3]
			w.InList(2, 3, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://10.0.0.99:2380"} })
			places := quorum.PossibleNodes(w.Cluster, []observation.AnnouncingNode{worker})
			require.Equal(t, c.isPlaced, len(places) > 0)
			w.RemovedFrom(0, 3).RemovedFrom(1, 3)
			require.Equal(t, !c.isPlaced, observation.HasLeft(w.Cluster, "d"))
		})
	}
}
