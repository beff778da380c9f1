package simulation

import "slices"

// Distributions such as k3s and RKE2 manage the member of a machine by themselves. When its Node is
// deleted, they remove its member, wipe its data, and let the machine join again: under a new
// member ID, and with a Node of the same name and another UID. The steps happen in any order.

// removeOrphanedMember removes the member of a machine whose Node is gone or being deleted, once
// for each Node: k3s removes it in a finalizer of the Node. A member that joined after that stays.
func (sim *simulation) removeOrphanedMember() {
	e := sim.pickEtcd()
	m, ok := pickMatching(sim, e.members, func(m *simulatedMember) bool {
		return m.started && sim.hasLostNode(m.host) && !m.lostNode.Equal(m.host.registered) &&
			!m.host.keptByOperator && !sim.mustNotInterfere()
	})
	if ok && e.remove(m) {
		m.wiped = true
		sim.log("the distribution removes member %s on %s", m.id, m.host.name)
	}
}

// joinAgain lets the machine of a removed member join again. Its member starts at once. In a
// careful history it joins only if the cluster survives all pending losses with one more voter: no
// verdict can prevent a member from joining. It does not join if the deletion of its Node was
// allowed without a grant, because no member was there: that is a limit in docs/verdict.md.
func (sim *simulation) joinAgain() {
	e := sim.pickEtcd()
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		return h.up && !h.killed && sim.hasRejoined(e, h)
	})
	if !ok || sim.mustNotInterfere() || sim.profile.careful && sim.isLostWithoutGrant(e, h) {
		return
	}
	if voters, left := sim.countAfterLosses(e, nil); sim.profile.careful && left < quorumOf(voters+1) {
		return
	}
	if m, ok := e.join(h, sim.choose(2) == 0); ok {
		m.started, m.running, m.rejoined = true, true, true
		sim.giveRole(h)
		if sim.hasLostNode(h) {
			m.lostNode = h.registered
		}
		sim.log("machine %s joins again as member %s, learner %t", h.name, m.id, m.learner)
	}
}

// isLostWithoutGrant reports whether a pending loss of the machine has no grant of its own in the
// cluster.
func (sim *simulation) isLostWithoutGrant(e *simulatedEtcd, h *simulatedHost) bool {
	return slices.ContainsFunc(sim.pendingLosses(), func(d *pendingLoss) bool {
		return d.host == h && (d.order[e.id] == 0 || d.inherited[e.id]) && !sim.api.tombstones[d.uid][e.id]
	})
}

// hasRejoined reports whether the machine had a member that the distribution removed, and none now.
func (sim *simulation) hasRejoined(e *simulatedEtcd, h *simulatedHost) bool {
	return e.memberOn(h) == nil && slices.ContainsFunc(e.removed, func(m *simulatedMember) bool {
		return m.host == h && m.wiped
	})
}

// promoteRejoined makes a learner that joined again a voter.
func (sim *simulation) promoteRejoined() {
	e := sim.pickEtcd()
	m, ok := pickMatching(sim, e.members, func(m *simulatedMember) bool { return m.rejoined && m.learner })
	if ok && !sim.mustNotInterfere() && e.promote(m) {
		sim.log("the distribution promotes member %s", m.id)
	}
}

// hasLostNode reports whether the Node of a running machine is gone or being deleted.
func (sim *simulation) hasLostNode(h *simulatedHost) bool {
	n, err := sim.api.node(h.name)
	return h.up && !h.killed && (err != nil || n.UID != h.node || n.DeletionTimestamp != nil)
}

// mustNotInterfere reports whether the history is careful and a review is in progress: the review
// may rest on a member list that it has read already.
func (sim *simulation) mustNotInterfere() bool {
	return sim.profile.careful &&
		slices.ContainsFunc(sim.deletions, func(d *simulatedDeletion) bool { return d.review != nil })
}
