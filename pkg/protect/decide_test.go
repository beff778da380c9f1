package protect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestLossArithmetic(t *testing.T) {
	for _, c := range []struct {
		voters, otherFailures int
		allowed               bool
	}{
		{1, 0, false},
		{2, 0, false},
		{2, 1, false},
		{3, 0, true},
		{3, 1, false},
		{4, 0, true},
		{4, 1, false}, // four voters less one removed would be three with two healthy; but nothing is removed
		{5, 1, true},
		{5, 2, false},
		{6, 1, true},
		{6, 2, false},
		{7, 2, true},
		{7, 3, false},
	} {
		for _, targetSick := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d voters, %d others failed, target sick %v", c.voters, c.otherFailures, targetSick), func(t *testing.T) {
				w := voters(c.voters)
				for i := range c.otherFailures {
					w.sick(i + 1)
				}
				if targetSick {
					w.sick(0)
				}
				v := Decide(w.View, deletion(0))
				require.Equal(t, c.allowed, v.Allowed, v.Message)
				require.Equal(t, c.voters, v.Voters)
				require.Equal(t, c.voters/2+1, v.Quorum)
				require.Equal(t, c.voters-1-c.otherFailures, v.Healthy)
				require.Equal(t, []v1alpha1.MemberID{"a"}, v.Members)
				require.EqualValues(t, clusterX, v.Cluster)
				require.True(t, v.Final)
				if c.allowed {
					require.Equal(t, QuorumKept, v.Reason)
				} else {
					require.Equal(t, QuorumWouldBeLost, v.Reason)
				}
			})
		}
	}
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		world   *world
		request func(*Request)
		allowed bool
		reason  Reason
		members []v1alpha1.MemberID
		says    string
	}{
		"the member left every list: kubespray removes it first": {
			world: voters(3).removed(0), allowed: true, reason: NothingToProtect,
		},
		"the member left one list, and another has it": {
			world: voters(3).removedFrom(0, 0).sick(2), reason: QuorumWouldBeLost, members: ids("a"),
		},
		"a node without members": {
			world: voters(3), request: func(r *Request) { *r = Request{Node: "w9", UID: "u9"} },
			allowed: true, reason: NothingToProtect,
		},
		"another voter was added and never started": {
			world: voters(4).everywhere(3, func(m *v1alpha1.MemberStatus) { m.Name, m.ClientURLs = "", nil }), reason: QuorumWouldBeLost,
			members: ids("a"), says: "https://10.0.0.4:2380 (d) on node w4: not proven healthy: it was added and has never started",
		},
		"a voter is corrupt by the word of one observer": {
			world:   voters(3).inList(1, 2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} }),
			members: ids("a"), reason: QuorumWouldBeLost, says: "etcd3 (c) on node w3: not proven healthy: it has raised the alarm CORRUPT",
		},
		"a full database costs no quorum": {
			world:   voters(3).everywhere(2, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"NOSPACE"} }),
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"a healthy learner elsewhere is no voter": {
			world: voters(4).learner(3).sick(2), members: ids("a"), reason: QuorumWouldBeLost, says: "etcd4 (d) on node w4: learner, has no vote",
		},
		"a sick learner elsewhere does no harm": {
			world: voters(4).learner(3).sick(3), members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"the learner's own node": {
			world: voters(4).learner(0), members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"nobody answers": {
			world: voters(3).silent(0, 1, 2), members: ids("a"), reason: CannotSee, says: "node w2: its agent has not answered",
		},
		"everybody answers that they cannot see": {
			world: voters(3).blind(0, 1, 2), members: ids("a"), reason: CannotSee, says: "node w3: its agent answered: tls: certificate has expired",
		},
		"nobody confirms the list": {
			world: voters(1).everywhere(0, func(*v1alpha1.MemberStatus) {}).unconfirmed(0), members: ids("a"), reason: CannotSee,
			says: "answered without a confirmed member list",
		},
		"nobody answers, and nothing of the cluster is on the node": {
			world: voters(3).silent(0, 1, 2), request: func(r *Request) { *r = Request{Node: "w9", UID: "u9", Labelled: true} },
			allowed: true, reason: NothingToProtect,
		},
		"one observer is enough": {
			world: voters(3).silent(0, 1), members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"bound by UID under another name": {
			world: voters(3), request: func(r *Request) { *r = Request{Node: "renamed", UID: "u1"} },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"bound by name to the Node before": {
			world: voters(3), request: func(r *Request) { *r = Request{Node: "w1", UID: "u1-again"} },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"not bound, announced": {
			world: voters(3).unbound(0), members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"not bound, not announced, found by its address": {
			world: voters(3).unbound(0), request: func(r *Request) { r.Node, r.UID, r.Announced = "w9", "u9", nil },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"found by an IPv4 address written as IPv6": {
			world: voters(3).unbound(0), request: func(r *Request) {
				r.Node, r.UID, r.Announced, r.Addresses = "w9", "u9", nil, []string{"::ffff:10.0.0.1"}
			},
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"found by a host name": {
			world: voters(3).unbound(0).everywhere(0, func(m *v1alpha1.MemberStatus) {
				m.PeerURLs, m.ClientURLs = nil, []string{"https://ETCD-1.example.org:2379"}
			}),
			request: func(r *Request) {
				r.Node, r.UID, r.Announced, r.Addresses = "w9", "u9", nil, []string{"etcd-1.example.org"}
			},
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"an address does not tell on a node without the label": {
			world: voters(3).unbound(0), request: func(r *Request) { r.Node, r.UID, r.Announced, r.Labelled = "w9", "u9", nil, false },
			allowed: true, reason: NothingToProtect,
		},
		"an address of a member that is bound elsewhere does not tell": {
			world: voters(3).unbound(0).sick(2), request: func(r *Request) { r.Node, r.UID, r.Announced, r.Addresses = "w9", "u9", nil, []string{address(1)} },
			allowed: true, reason: NothingToProtect,
		},
		"the host joined again: a new member at its address, the old one bound and gone": {
			world: voters(4).removed(0).unbound(3).sick(1).everywhere(3, func(m *v1alpha1.MemberStatus) {
				m.PeerURLs = []string{"https://10.0.0.1:2380"}
			}),
			reason: QuorumWouldBeLost, members: ids("d"),
		},
		"announced here, but bound to another Node that exists": {
			world:   voters(3),
			request: func(r *Request) { r.Node, r.UID, r.Addresses = "w9", "u9", nil },
			reason:  UnknownMember, members: ids("a"), says: "a is bound to node w1, which exists",
		},
		"announced here, and bound to another Node that is gone": {
			world:   voters(3).state(0, func(n *NodeState) { n.UID = "" }),
			request: func(r *Request) { r.Node, r.UID, r.Addresses = "w9", "u9", nil },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"announced here, and bound to another Node that could not be read": {
			world:   voters(3).state(0, func(n *NodeState) { n.Known = false }),
			request: func(r *Request) { r.Node, r.UID, r.Addresses = "w9", "u9", nil },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"two members on one node": {
			world: voters(5).rebound(1, 0), members: ids("a", "b"), allowed: true, reason: QuorumKept,
		},
		"two members of three on one node": {
			world: voters(3).rebound(1, 0), members: ids("a", "b"), reason: QuorumWouldBeLost,
		},
		"neither bound nor announced any more, but granted before": {
			world: voters(3).granted(0).unbound(0).localMember(0, ""), request: func(r *Request) { r.Announced, r.Addresses = nil, nil },
			members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"announced for another cluster": {
			world: voters(3), request: func(r *Request) { *r = Request{Node: "w9", UID: "u9", Announced: []MemberRef{{"abc", "a"}}} },
			allowed: true, reason: NothingToProtect,
		},
		"127.0.0.1 is everybody's address": {
			world: voters(3).unbound(0).unbound(1).unbound(2).bound(3).urlsOfAll("https://127.0.0.1:2379", "https://[::1]:2379", "https://localhost:2379", "https://0.0.0.0:2379"),
			request: func(r *Request) {
				r.Node, r.UID, r.Announced, r.Addresses = "w9", "u9", nil, []string{"127.0.0.1", "::1", "localhost", "0.0.0.0"}
			},
			allowed: true, reason: NothingToProtect,
		},
		"a list with a member twice takes the worse of both": {
			world:   voters(3).twice(2, func(m *v1alpha1.MemberStatus) { m.Healthy = false }).silent(1, 2),
			members: ids("a"), reason: QuorumWouldBeLost, says: "of 3 voters",
		},
		"a list with a voter that is a learner as well": {
			world:   voters(3).twice(0, func(m *v1alpha1.MemberStatus) { m.Learner = true }).sick(1),
			members: ids("a"), reason: QuorumWouldBeLost, says: "of 3 voters",
		},
		"two members on a node that is granted for one": {
			world: voters(5).rebound(2, 1).sick(3).granted(1), members: ids("a"), reason: QuorumWouldBeLost, says: "etcd3 (c): given up",
		},
		"a granted member that is bound no more": {
			world: voters(3).granted(1).unbound(1), members: ids("a"), reason: QuorumWouldBeLost, says: "etcd2 (b): given up",
		},
		"a granted member that is bound to another Node already": {
			world: voters(4).learner(3).granted(1).rebound(1, 3), members: ids("a"), reason: QuorumWouldBeLost, says: "etcd2 (b): given up",
		},
		"not bound, not announced, but its own agent sees it there": {
			world: voters(3).unbound(0).sick(2), request: func(r *Request) { r.Announced, r.Addresses, r.Labelled = nil, nil, false },
			reason: QuorumWouldBeLost, members: ids("a"),
		},
		"its own agent, not bound, claims what another Node has": {
			world: voters(3).unbound(0).localMember(0, "b"), request: func(r *Request) { r.Announced, r.Addresses = nil, nil },
			allowed: true, reason: NothingToProtect,
		},
		"what its own agent published is of another Node of the name": {
			world: voters(3).unbound(0), request: func(r *Request) { *r = Request{Node: "w1", UID: "u1-again"} },
			allowed: true, reason: NothingToProtect,
		},
		"its own agent, not bound, has it in a list, and those who are bound have not": {
			world: voters(3).unbound(0).removedFrom(1, 0).removedFrom(2, 0).sick(2), reason: QuorumWouldBeLost, members: ids("a"),
			says: "of 3 voters 2 must live",
		},
		"the list of its own agent, not bound, is old": {
			world: voters(3).unbound(0).removedFrom(1, 0).removedFrom(2, 0).sick(2).silent(0), allowed: true, reason: NothingToProtect,
		},
		"a named member, and one more at its address": {
			world:  voters(4).unbound(3).sick(1).everywhere(3, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://10.0.0.1:2390"} }),
			reason: QuorumWouldBeLost, members: ids("a", "d"), says: "of 4 voters 3 must live, and only 1",
		},
		"nobody could read the alarms": {
			world: voters(3).alarmsUnknown(0, 1, 2), members: ids("a"), reason: QuorumWouldBeLost, says: "etcd2 (b) on node w2: not proven healthy: nobody who answered could read etcd's alarms",
		},
		"one who answered has read the alarms": {
			world: voters(3).alarmsUnknown(0, 1), members: ids("a"), allowed: true, reason: QuorumKept,
		},
		"who read the alarms does not answer this question": {
			world: voters(3).alarmsUnknown(0, 1).silent(2), members: ids("a"), reason: QuorumWouldBeLost, says: "could read etcd's alarms",
		},
		"who has no list has read no alarms": {
			world: voters(3).alarmsUnknown(0, 1).blind(2), members: ids("a"), reason: QuorumWouldBeLost, says: "could read etcd's alarms",
		},
		"asked again under its own grant": {
			world: voters(3).granted(0), members: ids("a"), allowed: true, reason: QuorumKept,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := deletion(0)
			if c.request != nil {
				c.request(&r)
			}
			v := Decide(c.world.View, r)
			require.Equal(t, c.reason, v.Reason, v.Message)
			require.Equal(t, c.allowed, v.Allowed, v.Message)
			require.Equal(t, c.members, v.Members)
			require.Contains(t, v.Message, c.says)
			require.NotEmpty(t, v.Message)
		})
	}
}

func ids(members ...v1alpha1.MemberID) []v1alpha1.MemberID { return members }

func TestForceNamesEverythingThatMayBeLost(t *testing.T) {
	r := deletion(0)
	r.Announced = append(r.Announced, MemberRef{clusterX, "f"}) // f has joined since the last answers
	v := Force(voters(3).View, r)
	require.True(t, v.Allowed)
	require.True(t, v.Final)
	require.Equal(t, BreakGlassUsed, v.Reason)
	require.Equal(t, ids("a", "f"), v.Members)
	require.Equal(t, ids("a", "f"), Force(voters(3).removed(0).View, r).Members)
	require.Equal(t, ids("a"), Force(voters(3).blind(0, 1, 2).View, deletion(0)).Members)
}

func TestDecideWithoutACluster(t *testing.T) {
	v := Decide(View{}, deletion(0))
	require.False(t, v.Allowed)
	require.Equal(t, CannotSee, v.Reason)
}

// A learner answers a read of its own data without a quorum. While the members learn of its promotion one after the other,
// one observer may still list it as the healthy learner that it was.
func TestALearnersHealthProvesNothingOfTheVoterThatItIsNow(t *testing.T) {
	w := voters(4).sick(3)
	w.inList(1, 3, func(m *v1alpha1.MemberStatus) { m.Learner, m.Healthy = true, true })
	v := Decide(w.View, deletion(0))
	require.False(t, v.Allowed, v.Message)
	require.Equal(t, QuorumWouldBeLost, v.Reason)
}
