package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A decideCase is a deletion of node w1, unless request changes it, and the expected verdict.
type decideCase struct {
	cluster *quorumtest.Cluster
	request func(*quorum.Request)
	reason  quorum.Reason
	members []v1alpha1.MemberID
	text    string
}

func (c decideCase) run(t *testing.T) {
	r := quorumtest.Deletion(0)
	if c.request != nil {
		c.request(&r)
	}
	v := quorum.Decide(c.cluster.View, r)
	require.Equal(t, c.reason, v.Reason, words.Message(v))
	require.Equal(t, c.reason == quorum.QuorumKept || c.reason == quorum.NothingToProtect, v.Allowed, words.Message(v))
	require.Equal(t, c.members, v.Members)
	require.Contains(t, words.Message(v), c.text)
	require.NotEmpty(t, words.Message(v))
}

// otherNode returns a change of the request to a Node that no binding names, with these addresses.
func otherNode(addresses ...string) func(*quorum.Request) {
	n := &corev1.Node{}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: a})
	}
	return func(r *quorum.Request) {
		r.Node, r.UID, r.Announced, r.Addresses = "w9", "u9", nil, observation.AddressesOf(n)
	}
}

func TestDecide(t *testing.T) {
	a, voters, learner := quorumtest.IDs("a"), quorumtest.Voters, func(m *v1alpha1.MemberStatus) { m.Learner = true }
	unnamed := func(r *quorum.Request) { *r = quorum.Request{Node: "w9", UID: "u9", Labelled: true} }
	const nothing, lost = quorum.NothingToProtect, quorum.QuorumWouldBeLost
	const kept, blind = quorum.QuorumKept, quorum.CannotSee
	const noVote = "etcd4 (d) on node w4: learner, does not vote"
	const differ = "no two nodes returned the same confirmed member list"
	const neverStarted = "https://10.0.0.4:2380 (d) on node w4: not confirmed healthy: it was added, but has never started"
	for name, c := range map[string]decideCase{
		"removed from every list":   {voters(3).Removed(0), nil, nothing, nil, ""},
		"unstarted voter":           {voters(4).Everywhere(3, unstarted), nil, lost, a, neverStarted},
		"full database":             {voters(3).Everywhere(2, alarm("NOSPACE")), nil, kept, a, ""},
		"healthy learner elsewhere": {voters(4).Learner(3).Unhealthy(2), nil, lost, a, noVote},
		// F64: no list was confirmed for a while, and no source named the member of a labelled node.
		"F64 no answer, and no source names a member": {
			voters(3).Silent(0, 1, 2), unnamed, blind, nil, "which may have a member on node w9: no agent returned",
		},
		"lists with another learner, no role":          {without(3).Silent(2).InList(0, 2, learner), nil, blind, a, differ},
		"lists with another unstarted member, no role": {without(3).Silent(2).InList(0, 2, unstarted), nil, blind, a, differ},
	} {
		t.Run(name, c.run)
	}
}

// TestClaimedMemberAtAddress: a worker claims the member at the address of the node. The claim
// alone does not show that the member is not on the node.
func TestClaimedMemberAtAddress(t *testing.T) {
	w := quorumtest.Voters(4).URLs(3, "https://"+quorumtest.Address(0)+":2380")
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
	quorumtest.RequireRefused(t, w.Basis(v1alpha1.BasisClaim, 3), quorumtest.Deletion(0), "etcd4 (d): on this node")
}

// TestDecideTarget shows which members Decide finds on the node.
func TestDecideTarget(t *testing.T) {
	a := quorumtest.IDs("a")
	hostNames := func(m *v1alpha1.MemberStatus) {
		m.PeerURLs, m.ClientURLs = nil, []string{"https://ETCD-1.example.org:2379"}
	}
	peerURL := func(url string) func(*v1alpha1.MemberStatus) {
		return func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{url} }
	}
	moved := func(at func(*observation.NodeState)) *quorumtest.Cluster {
		return quorumtest.Voters(3).Rebound(0, 3).State(3, func(n *observation.NodeState) {
			*n = observation.NodeState{Known: true, UID: "u4"}
			at(n)
		})
	}
	unchanged := func(*observation.NodeState) {}
	ref := func(cluster v1alpha1.ClusterID, i int) evidence.MemberRef {
		return evidence.MemberRef{Cluster: cluster, Member: quorumtest.ID(i)}
	}
	voters := quorumtest.Voters
	unconfirmed := voters(3).Unbound(0).Unconfirmed(0)
	unconfirmed.Observer(0).Members = append(unconfirmed.Observer(0).Members, quorumtest.Member(4), quorumtest.Member(5))
	bare := func(r *quorum.Request) { r.Announced, r.Addresses, r.Labelled = nil, nil, false }
	younger := func(r *quorum.Request) { bare(r); r.UID = "u1-before" }
	announcingB := func(r *quorum.Request) { r.Announced = append(r.Announced, ref(quorumtest.ClusterID, 1)) }
	otherB := func(r *quorum.Request) { otherNode()(r); announcingB(r) }
	otherCluster := func(r *quorum.Request) { otherNode()(r); r.Announced = append(r.Announced, ref("abc", 0)) }
	atAddress, atB := otherNode(quorumtest.Address(0)), otherNode(quorumtest.Address(1))
	local, byName := otherNode("127.0.0.1", "::1", "localhost", "0.0.0.0"), otherNode("etcd-1.example.org")
	byUID := func(r *quorum.Request) { *r = quorum.Request{Node: "renamed", UID: "u1"} }
	worker := func(r *quorum.Request) { r.Node, r.UID, r.Announced, r.Labelled = "w9", "u9", nil, false }
	unboundA := func() *quorumtest.Cluster { return voters(3).Unbound(0) }
	rejoined := voters(4).Removed(0).Unbound(3).Unhealthy(1).Everywhere(3, peerURL("https://10.0.0.1:2380"))
	onLoopback := unboundA().Unbound(1).Unbound(2).Bound(3)
	for i := range 3 {
		onLoopback.URLs(i, "https://127.0.0.1:2379", "https://[::1]:2379", "https://localhost:2379", "https://0.0.0.0:2379")
	}
	claimed := moved(unchanged).Basis(v1alpha1.BasisClaim, 0).Unhealthy(2)
	onlyItsOwn := unboundA().RemovedFrom(1, 0).RemovedFrom(2, 0).Unhealthy(2)
	const nothing, lost, kept = quorum.NothingToProtect, quorum.QuorumWouldBeLost, quorum.QuorumKept
	for name, c := range map[string]decideCase{
		"own report, claimed by another Node":     {claimed, bare, lost, a, ""},
		"announced, bound to a gone Node":         {moved(quorumtest.Gone), nil, kept, a, ""},
		"at its address, bound to a gone Node":    {moved(quorumtest.Gone), atAddress, kept, a, ""},
		"granted, and moved":                      {moved(unchanged).Granted(0), bare, nothing, nil, ""},
		"bound to a younger Node of the name":     {voters(3).Unhealthy(2), younger, lost, a, ""},
		"another's member beside its own":         {voters(3).Unhealthy(2), announcingB, lost, quorumtest.IDs("a", "b"), ""},
		"another's member, which has left":        {voters(3).Removed(1), otherB, nothing, nil, ""},
		"member of another cluster, one observer": {without(3).Unbound(1).Unbound(2), otherCluster, nothing, nil, ""},
		"unconfirmed list of its unbound agent":   {unconfirmed, nil, kept, a, ""},
		"rejoined at the old address":             {rejoined, nil, lost, quorumtest.IDs("d"), ""},
		"loopback addresses":                      {onLoopback, local, nothing, nil, ""},
		"bound by UID":                            {voters(3), byUID, kept, a, ""},
		"at its IPv4 address written as IPv6":     {unboundA(), otherNode("::ffff:10.0.0.1"), kept, a, ""},
		"at its host name":                        {unboundA().Everywhere(0, hostNames), byName, kept, a, ""},
		"at its address, no label":                {unboundA().Unhealthy(2), worker, lost, a, ""},
		"at its address, bound elsewhere":         {unboundA().Unhealthy(2), atB, nothing, nil, ""},
		"local member of an unbound agent":        {unboundA().Unhealthy(2), bare, lost, a, ""},
		"listed by its own unbound agent only":    {onlyItsOwn, nil, lost, a, "2 of 3 voters must be healthy"},
	} {
		t.Run(name, c.run)
	}
}

func TestForce(t *testing.T) {
	r := quorumtest.Deletion(0)
	// Member f has joined since the last answers.
	r.Announced = append(r.Announced, evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: "f"})
	v := quorum.Force(quorumtest.Voters(3).View, r)
	require.True(t, v.Allowed)
	require.True(t, v.Final)
	require.Equal(t, quorum.BreakGlassUsed, v.Reason)
	require.Equal(t, quorumtest.IDs("a", "f"), v.Members)
	require.Equal(t, quorumtest.IDs("a", "f"), quorum.Force(quorumtest.Voters(3).Removed(0).View, r).Members)
	withoutList := quorumtest.Voters(3).WithoutList(0, 1, 2).View
	require.Equal(t, quorumtest.IDs("a"), quorum.Force(withoutList, quorumtest.Deletion(0)).Members)
	others := quorumtest.Deletion(0)
	others.Announced = append(others.Announced, quorumtest.Deletion(1).Announced...)
	require.Equal(t, quorumtest.IDs("a", "b"), quorum.Force(withoutList, others).Members, "one of two Nodes is wrong")
	at := quorumtest.Deletion(0)
	otherNode(quorumtest.Address(0))(&at)
	old := quorumtest.Voters(3).Unbound(0).Silent(0, 1, 2)
	require.Equal(t, quorumtest.IDs("a"), quorum.Force(old.View, at).Members, "by old lists")
}

// TestCombine: one refusal refuses, and only an allowed loss of members needs a grant.
func TestCombine(t *testing.T) {
	nothing := quorum.Verdict{Allowed: true, Reason: quorum.NothingToProtect}
	kept := quorum.Verdict{Allowed: true, Reason: quorum.QuorumKept, Members: quorumtest.IDs("a")}
	lost := quorum.Verdict{Reason: quorum.QuorumWouldBeLost, Members: quorumtest.IDs("b")}
	for name, c := range map[string]struct {
		verdicts   []quorum.Verdict
		isAllowed  bool
		reason     quorum.Reason
		needsGrant bool
	}{
		"none":                {},
		"nothing to protect":  {[]quorum.Verdict{nothing}, true, quorum.NothingToProtect, false},
		"kept":                {[]quorum.Verdict{nothing, kept}, true, quorum.NothingToProtect, true},
		"a refusal at last":   {[]quorum.Verdict{kept, lost}, false, quorum.QuorumWouldBeLost, false},
		"a refusal at first":  {[]quorum.Verdict{lost, kept}, false, quorum.QuorumWouldBeLost, false},
		"a refusal beside no": {[]quorum.Verdict{nothing, lost}, false, quorum.QuorumWouldBeLost, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := quorum.Combine(c.verdicts)
			require.Equal(t, c.isAllowed, d.Allowed)
			require.Equal(t, c.reason, d.Reason)
			require.Equal(t, c.needsGrant, d.NeedsGrant())
		})
	}
}
