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

// announcedByOther is a change of the request to a Node that no binding names and that announces
// member a.
func announcedByOther(r *quorum.Request) { r.Node, r.UID, r.Addresses = "w9", "u9", nil }

func TestDecide(t *testing.T) {
	a := quorumtest.IDs("a")
	unstarted := func(m *v1alpha1.MemberStatus) { m.Name, m.ClientURLs = "", nil }
	alarm := func(name string) func(*v1alpha1.MemberStatus) {
		return func(m *v1alpha1.MemberStatus) { m.Alarms = []string{name} }
	}
	for name, c := range map[string]decideCase{
		"removed from every list": {
			cluster: quorumtest.Voters(3).Removed(0), reason: quorum.NothingToProtect,
		},
		"removed from one list": {
			cluster: quorumtest.Voters(3).RemovedFrom(0, 0).Unhealthy(2), reason: quorum.QuorumWouldBeLost, members: a,
		},
		"node without members": {
			cluster: quorumtest.Voters(3), reason: quorum.NothingToProtect,
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w9", UID: "u9"} },
		},
		"unstarted voter": {
			cluster: quorumtest.Voters(4).Everywhere(3, unstarted), reason: quorum.QuorumWouldBeLost, members: a,
			text: "https://10.0.0.4:2380 (d) on node w4: not confirmed healthy: it was added, but has never started",
		},
		"corrupt according to one observer": {
			cluster: quorumtest.Voters(3).InList(1, 2, alarm("CORRUPT")), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd3 (c) on node w3: not confirmed healthy: it has the alarm CORRUPT",
		},
		"full database": {
			cluster: quorumtest.Voters(3).Everywhere(2, alarm("NOSPACE")), reason: quorum.QuorumKept, members: a,
		},
		"healthy learner elsewhere": {
			cluster: quorumtest.Voters(4).Learner(3).Unhealthy(2), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd4 (d) on node w4: learner, does not vote",
		},
		"unhealthy learner elsewhere": {
			cluster: quorumtest.Voters(4).Learner(3).Unhealthy(3), reason: quorum.QuorumKept, members: a,
		},
		"learner on the node": {
			cluster: quorumtest.Voters(4).Learner(0), reason: quorum.QuorumKept, members: a,
		},
		"no answer": {
			cluster: quorumtest.Voters(3).Silent(0, 1, 2), reason: quorum.CannotSee, members: a,
			text: "node w2: its agent has not answered",
		},
		"every known node is gone": {
			cluster: quorumtest.Voters(3).Gone(0, 1, 2), reason: quorum.CannotSee,
			text:    "resolve the grant of each of them (kubectl holdfast settle NODE)",
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w9", UID: "u9", Labelled: true} },
		},
		"two known nodes are gone": {
			cluster: quorumtest.Voters(3).Gone(0, 1).Silent(2), reason: quorum.CannotSee,
			text:    "check what the agents report",
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w9", UID: "u9", Labelled: true} },
		},
		"only problems as answers": {
			cluster: quorumtest.Voters(3).WithoutList(0, 1, 2), reason: quorum.CannotSee, members: a,
			text: "node w3: its agent reports: tls: certificate has expired",
		},
		"unconfirmed list": {
			cluster: quorumtest.Voters(1).Unconfirmed(0), reason: quorum.CannotSee, members: a,
			text: "answered without a confirmed member list",
		},
		// F64: no list was confirmed for a while, and no source named the member of a labelled node.
		"F64 no answer, and no source names a member": {
			cluster: quorumtest.Voters(3).Silent(0, 1, 2), reason: quorum.CannotSee,
			text:    "which may have a member on node w9: no agent returned",
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w9", UID: "u9", Labelled: true} },
		},
		"one observer answers": {
			cluster: quorumtest.Voters(3).Silent(0, 1), reason: quorum.QuorumKept, members: a,
		},
		"two members on one node": {
			cluster: quorumtest.Voters(5).Rebound(1, 0), reason: quorum.QuorumKept, members: quorumtest.IDs("a", "b"),
		},
		"two members of three on one node": {
			cluster: quorumtest.Voters(3).Rebound(1, 0), reason: quorum.QuorumWouldBeLost, members: quorumtest.IDs("a", "b"),
		},
		"member listed twice, once unhealthy": {
			cluster: quorumtest.Voters(3).ListedTwice(2, func(m *v1alpha1.MemberStatus) { m.Healthy = false }).Silent(1, 2),
			reason:  quorum.QuorumWouldBeLost, members: a, text: "of 3 voters",
		},
		"member listed twice, once as learner": {
			cluster: quorumtest.Voters(3).ListedTwice(0, func(m *v1alpha1.MemberStatus) { m.Learner = true }).Unhealthy(1),
			reason:  quorum.QuorumWouldBeLost, members: a, text: "of 3 voters",
		},
		"no alarms read": {
			cluster: quorumtest.Voters(3).AlarmsUnknown(0, 1, 2), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd2 (b) on node w2: not confirmed healthy: no agent that answered could read the etcd alarms",
		},
		"alarms read by one": {
			cluster: quorumtest.Voters(3).AlarmsUnknown(0, 1), reason: quorum.QuorumKept, members: a,
		},
		"alarms read for an earlier request": {
			cluster: quorumtest.Voters(3).AlarmsUnknown(0, 1).Silent(2), reason: quorum.QuorumWouldBeLost, members: a,
			text: "could read the etcd alarms",
		},
		"alarms without a list": {
			cluster: quorumtest.Voters(3).AlarmsUnknown(0, 1).WithoutList(2), reason: quorum.QuorumWouldBeLost, members: a,
			text: "could read the etcd alarms",
		},
	} {
		t.Run(name, c.run)
	}
}

func TestDecideWithGrants(t *testing.T) {
	a := quorumtest.IDs("a")
	for name, c := range map[string]decideCase{
		"repeated under its own grant": {
			cluster: quorumtest.Voters(3).Granted(0), reason: quorum.QuorumKept, members: a,
		},
		"known from its own grant only": {
			cluster: quorumtest.Voters(3).Granted(0).Unbound(0).LocalMember(0, ""), reason: quorum.QuorumKept, members: a,
			request: func(r *quorum.Request) { r.Announced, r.Addresses = nil, nil },
		},
		"two members on a node with a grant for one": {
			cluster: quorumtest.Voters(5).Rebound(2, 1).Unhealthy(3).Granted(1), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd3 (c): counts as lost",
		},
		"granted member without a binding": {
			cluster: quorumtest.Voters(3).Granted(1).Unbound(1), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd2 (b): counts as lost",
		},
		"granted member bound to another Node": {
			cluster: quorumtest.Voters(4).Learner(3).Granted(1).Rebound(1, 3), reason: quorum.QuorumWouldBeLost, members: a,
			text: "etcd2 (b): counts as lost",
		},
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
	for name, c := range map[string]decideCase{
		"bound by UID": {
			cluster: quorumtest.Voters(3), reason: quorum.QuorumKept, members: a,
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "renamed", UID: "u1"} },
		},
		"bound by name": {
			cluster: quorumtest.Voters(3), reason: quorum.QuorumKept, members: a,
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w1", UID: "u1-again"} },
		},
		"announced only": {
			cluster: quorumtest.Voters(3).Unbound(0), reason: quorum.QuorumKept, members: a,
		},
		"at its address": {
			cluster: quorumtest.Voters(3).Unbound(0), reason: quorum.QuorumKept, members: a,
			request: otherNode(quorumtest.Address(0)),
		},
		"at its IPv4 address written as IPv6": {
			cluster: quorumtest.Voters(3).Unbound(0), reason: quorum.QuorumKept, members: a,
			request: otherNode("::ffff:10.0.0.1"),
		},
		"at its host name": {
			cluster: quorumtest.Voters(3).Unbound(0).Everywhere(0, hostNames), reason: quorum.QuorumKept, members: a,
			request: otherNode("etcd-1.example.org"),
		},
		"at the address of a node without the label": {
			cluster: quorumtest.Voters(3).Unbound(0), reason: quorum.NothingToProtect,
			request: func(r *quorum.Request) { r.Node, r.UID, r.Announced, r.Labelled = "w9", "u9", nil, false },
		},
		"at its address, bound elsewhere": {
			cluster: quorumtest.Voters(3).Unbound(0).Unhealthy(2), reason: quorum.NothingToProtect,
			request: otherNode(quorumtest.Address(1)),
		},
		"loopback addresses": {
			cluster: quorumtest.Voters(3).Unbound(0).Unbound(1).Unbound(2).Bound(3).
				URLsOfAll("https://127.0.0.1:2379", "https://[::1]:2379", "https://localhost:2379", "https://0.0.0.0:2379"),
			request: otherNode("127.0.0.1", "::1", "localhost", "0.0.0.0"), reason: quorum.NothingToProtect,
		},
		"rejoined at the address of the removed member": {
			cluster: quorumtest.Voters(4).Removed(0).Unbound(3).Unhealthy(1).Everywhere(3, peerURL("https://10.0.0.1:2380")),
			reason:  quorum.QuorumWouldBeLost, members: quorumtest.IDs("d"),
		},
		"named member and another at its address": {
			cluster: quorumtest.Voters(4).Unbound(3).Unhealthy(1).Everywhere(3, peerURL("https://10.0.0.1:2390")),
			reason:  quorum.QuorumWouldBeLost, members: quorumtest.IDs("a", "d"),
			text: "3 of 4 voters must be healthy, and only 1",
		},
		"announced, bound to an existing Node": {
			cluster: quorumtest.Voters(3), request: announcedByOther, reason: quorum.UnknownMember, members: a,
			text: "member a is bound to node w1, which exists",
		},
		"announced, bound to a missing Node": {
			cluster: quorumtest.Voters(3).State(0, quorumtest.Gone),
			request: announcedByOther, reason: quorum.QuorumKept, members: a,
		},
		"announced, bound to an unread Node": {
			cluster: quorumtest.Voters(3).State(0, func(n *observation.NodeState) { n.Known = false }),
			request: announcedByOther, reason: quorum.QuorumKept, members: a,
		},
		"announced for another cluster": {
			cluster: quorumtest.Voters(3), reason: quorum.NothingToProtect, request: func(r *quorum.Request) {
				*r = quorum.Request{Node: "w9", UID: "u9", Announced: []evidence.MemberRef{{Cluster: "abc", Member: "a"}}}
			},
		},
		"local member of an unbound agent": {
			cluster: quorumtest.Voters(3).Unbound(0).Unhealthy(2), reason: quorum.QuorumWouldBeLost, members: a,
			request: func(r *quorum.Request) { r.Announced, r.Addresses, r.Labelled = nil, nil, false },
		},
		"local member of an unbound agent, bound elsewhere": {
			cluster: quorumtest.Voters(3).Unbound(0).LocalMember(0, "b"), reason: quorum.NothingToProtect,
			request: func(r *quorum.Request) { r.Announced, r.Addresses = nil, nil },
		},
		"local member of an earlier Node": {
			cluster: quorumtest.Voters(3).Unbound(0), reason: quorum.NothingToProtect,
			request: func(r *quorum.Request) { *r = quorum.Request{Node: "w1", UID: "u1-again"} },
		},
		"listed by its own unbound agent only": {
			cluster: quorumtest.Voters(3).Unbound(0).RemovedFrom(1, 0).RemovedFrom(2, 0).Unhealthy(2),
			reason:  quorum.QuorumWouldBeLost, members: a, text: "2 of 3 voters must be healthy",
		},
		"listed by its own unbound agent earlier": {
			cluster: quorumtest.Voters(3).Unbound(0).RemovedFrom(1, 0).RemovedFrom(2, 0).Unhealthy(2).Silent(0),
			reason:  quorum.NothingToProtect,
		},
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
}
