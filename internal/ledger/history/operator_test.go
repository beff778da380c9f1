package history

import "slices"

// joins adds a member on a machine that has none. A careful operator takes no machine that is to go, adds learners only,
// and starts nothing new before the last one is a voter.
func (w *world) joins() {
	e := w.etcd()
	h, ok := one(w, w.hosts, func(h *host) bool {
		return h.up && !h.killed && e.of(h) == nil && (!w.profile.careful || !w.doomed(h))
	})
	if !ok {
		return
	}
	learner := w.profile.careful || w.choose(3) > 0
	if m, ok := e.join(h, learner); ok {
		w.say("member %s is added on %s, learner %t", m.id, h.name, learner)
		if w.choose(2) == 1 {
			m.started, m.running = true, true
			w.say("member %s starts", m.id)
		}
	}
}

// joiners start.
func (w *world) joiners() {
	e := w.etcd()
	if m, ok := one(w, e.members, func(m *member) bool { return !m.started && m.host.up && !m.host.killed }); ok && e.hasQuorum() {
		m.started, m.running = true, true
		w.say("member %s starts for the first time", m.id)
	}
}

// promotes makes a learner a voter. A careful operator does so when its agent has announced it, and its Node is to stay or
// Holdfast has reckoned with it: deleted through the entry for nodes without etcd, it is on nobody's account.
func (w *world) promotes() {
	e := w.etcd()
	if m, ok := one(w, e.members, func(m *member) bool { return m.learner && (!w.profile.careful || w.accounted(e, m)) }); ok && e.promote(m) {
		w.say("member %s is promoted", m.id)
	}
}

// removes takes a member out, if etcd lets it. A careful operator sees to it that what is left can lose all that is doomed.
func (w *world) removes() {
	e := w.etcd()
	if m, ok := one(w, e.members, func(m *member) bool { return w.mayRemove(e, m) }); ok && e.remove(m) {
		w.say("member %s on %s is removed", m.id, m.host.name)
		if w.choose(2) == 1 {
			m.wiped = true
		}
	}
}

// accounted says that Holdfast knows of the member, and of the deletion of its Node if there was one.
func (w *world) accounted(e *etcd, m *member) bool {
	k := w.known(m.host.name, m.host.node)
	counted := slices.Contains(refsOf(e.id, k.announced, k.bound[m.host.node]), m.id)
	for _, d := range w.active() {
		if d.host == m.host {
			counted = slices.Contains(refsOf(e.id, d.members), m.id) && d.turn[e.id] > 0
		}
	}
	return counted
}

// mayRemove says whether the operator of this history takes the member out. A careful one does not while a deletion is
// being judged: what the agents have just seen is the list with the member.
func (w *world) mayRemove(e *etcd, m *member) bool {
	judging := slices.ContainsFunc(w.deletions, func(d *deletion) bool { return d.review != nil })
	return !w.profile.careful || (!judging && w.spared(e, m))
}

// spared says whether the cluster without m keeps its quorum when everything that is doomed is lost.
func (w *world) spared(e *etcd, m *member) bool {
	voters, left := 0, 0
	for _, o := range e.members {
		doomed := w.doomed(o.host)
		if o == m || (o.learner && !doomed) {
			continue
		}
		voters++
		if o.alive() && !doomed {
			left++
		}
	}
	return left >= quorumOf(voters)
}

// replaced removes a dead member, as an operator does before letting a new one join.
func (w *world) replaced() {
	e := w.etcd()
	if m, ok := one(w, e.members, func(m *member) bool { return !m.alive() && m.started && w.mayRemove(e, m) }); ok && e.remove(m) {
		w.say("member %s on %s, which is dead, is removed", m.id, m.host.name)
		m.wiped = true
	}
}
