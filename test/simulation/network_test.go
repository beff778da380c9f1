package simulation

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// A brokenLink is a connection that does not work, from one machine to a member on another one.
type brokenLink struct{ from, to *simulatedHost }

// isConnected reports whether two members reach each other.
func (e *simulatedEtcd) isConnected(a, b *simulatedMember) bool {
	return !slices.Contains(e.cutPeers, brokenLink{a.host, b.host}) &&
		!slices.Contains(e.cutPeers, brokenLink{b.host, a.host})
}

// reachesMember reports whether the agent reaches the member. It always reaches the one on its own
// machine.
func (a *simulatedAgent) reachesMember(e *simulatedEtcd, m *simulatedMember) bool {
	return !slices.Contains(e.cutAgents, brokenLink{a.host, m.host})
}

// canLead reports whether the member is a voter that reaches a quorum of the voters.
func (e *simulatedEtcd) canLead(m *simulatedMember) bool {
	voters := e.voters()
	if m == nil || !m.isAlive() || !slices.Contains(voters, m) {
		return false
	}
	reached := countOf(voters, func(o *simulatedMember) bool { return o.isAlive() && e.isConnected(m, o) })
	return reached >= quorumOf(len(voters))
}

// leader returns the leader, nil if there is none. It leads as long as it can.
func (e *simulatedEtcd) leader() *simulatedMember {
	if !e.canLead(e.lastLeader) {
		e.lastLeader = nil
		if at := slices.IndexFunc(e.members, e.canLead); at >= 0 {
			e.lastLeader = e.members[at]
		}
	}
	return e.lastLeader
}

// hasQuorum reports whether the cluster accepts writes.
func (e *simulatedEtcd) hasQuorum() bool { return e.leader() != nil }

// serves reports whether the member serves linearizable reads: it asks the leader, and the leader
// a quorum.
func (e *simulatedEtcd) serves(m *simulatedMember) bool {
	leader := e.leader()
	return leader != nil && m.isAlive() && e.isConnected(m, leader)
}

// breakLink breaks one connection: that of an agent to a member, or that between two members. In a
// careful history it breaks only the first kind, because the second one may stop etcd.
func (sim *simulation) breakLink() {
	e := sim.pickEtcd()
	m, ok := pickMatching(sim, e.members, func(m *simulatedMember) bool { return !m.host.killed })
	if !ok {
		return
	}
	isOther := func(h *simulatedHost) bool { return h != m.host && e.memberWithDataOn(h) != nil }
	h, ok := pickMatching(sim, sim.hosts, isOther)
	if !ok {
		return
	}
	l := brokenLink{h, m.host}
	if sim.profile.careful || sim.choose(2) == 0 {
		e.cutAgents = append(e.cutAgents, l)
		sim.log("the agent of %s does not reach member %s", h.name, m.id)
		return
	}
	e.cutPeers = append(e.cutPeers, l)
	sim.log("the members of %s on %s and %s do not reach each other", e.id, h.name, m.host.name)
}

// mendLink repairs one broken connection.
func (sim *simulation) mendLink() {
	e := sim.pickEtcd()
	all := slices.Concat(e.cutAgents, e.cutPeers)
	if l, ok := pickMatching(sim, all, func(brokenLink) bool { return true }); ok {
		isMended := func(o brokenLink) bool { return o == l }
		e.cutAgents, e.cutPeers = slices.DeleteFunc(e.cutAgents, isMended), slices.DeleteFunc(e.cutPeers, isMended)
		sim.log("%s and %s reach each other again in %s", l.from.name, l.to.name, e.id)
	}
}

// mendLinks repairs the connections without which Holdfast cannot know that members are healthy. A
// Node with a role proves its own member healthy, so other agents need not reach it.
func (sim *simulation) mendLinks(e *simulatedEtcd) {
	e.cutPeers = nil
	c := sim.api.clusters.objects[string(e.id)]
	e.cutAgents = slices.DeleteFunc(e.cutAgents, func(l brokenLink) bool {
		return c == nil || l.to.node == "" || !slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
			return b.NodeUID == l.to.node && b.Basis == v1alpha1.BasisRole
		})
	})
}

// electLeader lets etcd elect another leader.
func (sim *simulation) electLeader() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members, e.canLead); ok {
		e.lastLeader = m
		sim.log("member %s is elected in %s", m.id, e.id)
	}
}

// TestPartitions breaks connections between agents and members, and between members.
func TestPartitions(t *testing.T) {
	// One proof suffices, of whatever agent.
	runScenario(t, 3, []int{3}, func(s *scenario) {
		e := s.etcds[0]
		e.cutAgents = []brokenLink{{s.hosts[0], s.hosts[1]}, {s.hosts[0], s.hosts[2]}, {s.hosts[2], s.hosts[1]}}
		s.requireAllowed(s.hosts[0])
	})
	// A member that does not reach the leader is not healthy, although its machine runs.
	runScenario(t, 3, []int{3}, func(s *scenario) {
		e := s.etcds[0]
		e.cutPeers = []brokenLink{{s.hosts[0], s.hosts[1]}}
		require.Equal(t, e.memberOn(s.hosts[0]), e.leader())
		s.requireRefused(s.hosts[2], breaksQuorum)
		s.requireAllowed(s.hosts[1])
	})
	// While both reach the leader, nothing shows that two members do not reach each other: a limit in
	// docs/verdict.md.
	runScenario(t, 3, []int{3}, func(s *scenario) {
		e := s.etcds[0]
		e.cutPeers = []brokenLink{{s.hosts[0], s.hosts[1]}}
		e.lastLeader = e.memberOn(s.hosts[2])
		s.requireAllowed(s.hosts[2])
		s.hosts[2].up = false
		require.False(t, e.hasQuorum())
	})
	// The agent of a member that reaches no other one has the member list from the others.
	runScenario(t, 3, []int{3}, func(s *scenario) {
		e := s.etcds[0]
		e.cutPeers = []brokenLink{{s.hosts[0], s.hosts[2]}, {s.hosts[1], s.hosts[2]}}
		s.hosts[0].agent.silent, s.hosts[1].agent.silent = true, true
		s.advance(time.Second)
		s.requireAllowed(s.hosts[2])
	})
}
