package simulation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// checkRecovery ends all faults. Then it requires that a safe deletion is allowed within
// the time after which grants end. No history may leave a node that can never be deleted.
func (sim *simulation) checkRecovery() {
	sim.log("all faults end")
	sim.profile.faults = false
	sim.advance(10 * time.Second)
	for _, d := range slices.Clone(sim.deletions) {
		switch {
		case d.isHook: // the leader does not give up
		case d.admitted != nil && d.review == nil && sim.choose(2) == 1:
			sim.commit(d)
		default:
			sim.abandon(d, "no further attempt")
		}
	}
	sim.advance(10 * time.Second)
	for _, d := range slices.Clone(sim.deletions) {
		if !d.isHook {
			sim.abandon(d, "no further attempt")
		}
	}
	sim.recordSnapshot()
	sim.repairAll()
	sim.repairMembers()
	sim.recordSnapshot()
	sim.advance(time.Minute) // the leader binds new members, and writes tombstones
	sim.settleGrants()
	sim.recordSnapshot()
	limit := 30 * time.Minute
	if sim.profile.enabled[clockSkews] {
		limit += 40 * time.Minute
	}
	sim.checkLiveness(limit)
}

// repairAll repairs all replicas, agents, machines and members that can be repaired.
func (sim *simulation) repairAll() {
	for _, l := range sim.delayedProbes {
		sim.publish(l)
	}
	for _, c := range sim.lateWrites {
		c.carryOut()
	}
	sim.delayedProbes, sim.lateWrites = nil, nil
	for _, r := range sim.replicas {
		for _, c := range r.caches.all() {
			c.watch().stalled = false
		}
		r.machineWatchStalled = false
	}
	sim.ensureLeader()
	sim.endAttack()
	sim.kured.stop()
	sim.stopDrains()
	sim.stopMachines()
	for _, h := range sim.hosts {
		h.agent.silent, h.agent.blind = false, false
		if n, err := sim.api.node(h.name); err == nil && h.node == n.UID && n.DeletionTimestamp != nil {
			sim.terminate(h)
		}
		h.up = true
		_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
			n.Finalizers, n.Spec.Taints = nil, nil
			delete(n.Annotations, quorum.BreakGlassAnnotation)
		})
		sim.log("Node %s is cleaned up: %s", h.name, errorText(err))
	}
	sim.syncKubelets()
	// Machines of deleted Nodes are terminated, unless an operator guaranteed that they stay.
	for _, d := range sim.pendingLosses() {
		if n, err := sim.api.node(d.node); err == nil && n.UID == d.uid {
			d.over = true
		} else if d.host.node == "" {
			sim.terminate(d.host)
		}
	}
	for _, e := range sim.etcds {
		sim.mendLinks(e)
		for _, m := range e.members {
			m.running, m.corrupt = m.started, false
		}
	}
	for _, h := range sim.hosts {
		if h.node == "" && !h.killed && !h.keptByOperator {
			sim.registerNode(h)
		}
	}
}

// repairMembers promotes learners and removes dead and unfinished members, as an operator
// would.
func (sim *simulation) repairMembers() {
	for _, e := range sim.etcds {
		for _, m := range slices.Clone(e.members) {
			switch {
			case m.isAlive() && m.learner:
				e.promote(m)
			case !m.isAlive():
				if e.remove(m) {
					sim.log("member %s on %s is removed", m.id, m.host.name)
					m.wiped = true
				}
			}
		}
		for _, m := range e.removed {
			m.wiped = true
		}
	}
}

// settleGrants lets an operator name the grants of the machines that stay, and those whose members
// run on other machines: an attacker may have claimed them before their hosts had Nodes.
func (sim *simulation) settleGrants() {
	for _, e := range sim.etcds {
		c, err := sim.api.cluster(string(e.id))
		if err != nil {
			continue
		}
		for _, g := range c.Spec.Grants {
			sim.settleUntilDone(e, g)
		}
	}
}

// settlingTime is how long an operator names a grant again. The leader does not end a grant that it
// has known for less than ResolveByHandAfter, or whose time is at most a minute ahead of its clock
// and not yet that old.
const settlingTime = quorum.ResolveByHandAfter + 2*time.Minute

// settleUntilDone lets an operator name a grant until it ends.
func (sim *simulation) settleUntilDone(e *simulatedEtcd, g v1alpha1.Grant) {
	for begun := time.Now(); time.Since(begun) < settlingTime; sim.advance(20 * time.Second) {
		c, err := sim.api.cluster(string(e.id))
		switch {
		case err != nil || !sim.hasGrant(e.id, g.NodeUID):
			return
		case sim.isKept(g.Node) && sim.canSettle(g.NodeUID):
			sim.settleGrant(c, g.NodeUID)
		case sim.runsElsewhere(e, g):
			sim.forgive(e.id, g.NodeUID) // by the word of the operator
			sim.nameGrant(c, g.NodeUID)
		default:
			return
		}
	}
}

// forgive ends the losses with the Node in one cluster.
func (sim *simulation) forgive(id v1alpha1.ClusterID, uid types.UID) {
	for _, d := range sim.losses {
		if d.uid == uid {
			d.forgiven[id] = true
		}
	}
}

// isKept reports whether an operator has guaranteed that the machine stays.
func (sim *simulation) isKept(node string) bool {
	return slices.ContainsFunc(sim.hosts, func(h *simulatedHost) bool { return h.keptByOperator && h.name == node })
}

// runsElsewhere reports whether the Node of a grant is gone, and the members that the grant names
// run on machines with other names.
func (sim *simulation) runsElsewhere(e *simulatedEtcd, g v1alpha1.Grant) bool {
	named := slices.DeleteFunc(slices.Clone(e.members), func(m *simulatedMember) bool {
		return !slices.Contains(g.Members, m.id)
	})
	n, err := sim.api.node(g.Node)
	return (err != nil || n.UID != g.NodeUID) && len(named) > 0 &&
		!slices.ContainsFunc(named, func(m *simulatedMember) bool { return !m.isAlive() || m.host.name == g.Node })
}

// checkLiveness requires that a safe deletion is allowed.
func (sim *simulation) checkLiveness(limit time.Duration) {
	h, ok := pickMatching(sim, sim.hosts, sim.isExpendable)
	if !ok {
		return
	}
	sim.counts["recovery checks"]++
	if sim.api.pods[guard.Name(h.name)] != nil && sim.isOpen(h.name) && sim.choose(2) == 1 {
		sim.checkDrainLiveness(h, limit)
		return
	}
	for begun := time.Now(); !sim.hasFailed(); sim.advance(25 * time.Second) {
		sim.recordSnapshot()
		d := sim.startDelete(h, false, false)
		for d.review != nil && !sim.hasFailed() {
			sim.advance(time.Second)
		}
		if d.wasAllowed {
			sim.abandon(d, "another plugin refuses")
			return
		}
		if time.Since(begun) > limit {
			sim.fail("Node %s is expendable but still refused after %s: %s", h.name, limit, d.answer)
		}
	}
}

// checkDrainLiveness requires that a safe drain is allowed, and that its grant ends when the
// machine is back.
func (sim *simulation) checkDrainLiveness(h *simulatedHost, limit time.Duration) {
	d := sim.beginDrain(h, rebootsMachine)
	for begun := time.Now(); !d.isDrained && !sim.hasFailed(); sim.advance(25 * time.Second) {
		sim.recordSnapshot()
		sim.evictGuard(d)
		for d.request != nil && d.request.review != nil && !sim.hasFailed() {
			sim.advance(time.Second)
		}
		if d.request != nil && d.request.wasAllowed {
			sim.evict(d.request)
		} else if time.Since(begun) > limit {
			sim.fail("Node %s is expendable but its drain is still refused after %s: %s", h.name, limit, d.request.answer)
		}
	}
	h.up = false
	sim.recordSnapshot()
	sim.advance(time.Minute)
	sim.returnMachine(d)
	sim.setClosed(d, false)
	sim.recordSnapshot()
	within := 3 * time.Minute
	if slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool { return sim.lastsLonger(e.id, d.uid) }) {
		within = limit // the request may be in progress
	}
	for begun := time.Now(); !sim.hasFailed(); sim.advance(10 * time.Second) {
		isGranted := slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool { return sim.hasGrant(e.id, d.uid) })
		isGuarded := sim.api.pods[guard.Name(h.name)] != nil
		if !isGranted && isGuarded {
			return
		}
		if time.Since(begun) > within {
			sim.fail("Node %s has returned from a drain, but after %s it has a grant (%t) or no guard pod (%t)", h.name, within,
				isGranted, !isGuarded)
		}
	}
}

// lastsLonger reports whether the grant of a drained Node lasts five minutes: its deletion was
// allowed as well, or its drain was forced.
func (sim *simulation) lastsLonger(id v1alpha1.ClusterID, uid types.UID) bool {
	c, err := sim.api.cluster(string(id))
	return err == nil && slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool {
		return g.NodeUID == uid && (!quorum.IsDrainOnly(g) || g.Drain.BreakGlass)
	})
}

// isExpendable reports whether the machine has a member, and every cluster with a member on
// it can lose that member.
func (sim *simulation) isExpendable(h *simulatedHost) bool {
	holds := false
	for _, e := range sim.etcds {
		m := e.memberOn(h)
		if m == nil && slices.ContainsFunc(e.removed, func(l *simulatedMember) bool { return l.host == h }) &&
			!sim.isObservable(e) {
			return false // no confirmed list shows that the member has left
		}
		if m == nil {
			continue
		}
		holds = true
		others := countOf(e.voters(), func(o *simulatedMember) bool { return o != m && o.isAlive() })
		if m.learner || !e.hasQuorum() || others < quorumOf(len(e.voters())) || !sim.isObservable(e) {
			return false
		}
	}
	return holds && h.node != "" && !h.killed
}

// isObservable reports whether enough Nodes can publish a confirmed member list: one with a role,
// or two, or the only Node that announces the cluster or is an observer.
func (sim *simulation) isObservable(e *simulatedEtcd) bool {
	if !e.hasQuorum() {
		return false
	}
	c := sim.api.clusters.objects[string(e.id)]
	voices, publishing := 0, 0
	for _, n := range sim.api.nodes.objects {
		refs, _ := observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
		isVoice := slices.ContainsFunc(refs, func(r evidence.MemberRef) bool { return r.Cluster == e.id }) ||
			(c != nil && slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
				return b.NodeUID == n.UID && observation.IsObserver(b)
			}))
		if !isVoice || (!sim.profile.noRoles && !observation.HasRole(n)) {
			continue
		}
		voices++
		if slices.ContainsFunc(e.members, func(m *simulatedMember) bool {
			return m.isAlive() && !m.learner && m.host.node == n.UID
		}) {
			publishing++
		}
	}
	return publishing > 1 || (publishing == 1 && (voices == 1 || !sim.profile.noRoles))
}

// sleep lets time pass. Timers fire, and the calls that follow wait at the gate.
func (sim *simulation) sleep(d time.Duration) {
	until := time.Now().Add(d)
	for sim.settle(); time.Now().Before(until); sim.settle() {
		sim.waitUntil(until)
	}
}

// waitUntil waits until a goroutine comes to the gate, at most until the time.
func (sim *simulation) waitUntil(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-sim.gate.wake:
	case <-timer.C:
	}
}

// advance lets time pass while all parties do their work immediately: calls are answered,
// caches are up to date, agents probe.
func (sim *simulation) advance(d time.Duration) {
	until := time.Now().Add(d)
	for !sim.hasFailed() {
		sim.settle()
		sim.collectAnswers()
		if sim.doAllWork() {
			continue
		}
		if !time.Now().Before(until) {
			return
		}
		sim.waitUntil(until)
	}
}

// doAllWork does available work, and reports whether there was any. It answers one call at a time,
// so that the order in which the callers continue does not depend on the scheduler.
func (sim *simulation) doAllWork() bool {
	waiting, abandoned := sim.gate.waiting()
	for _, c := range abandoned {
		if c.write && !c.done && sim.profile.faults {
			sim.lateWrites = append(sim.lateWrites, c)
		}
	}
	for _, c := range waiting {
		if sim.isBlocked != nil && sim.isBlocked(c) {
			continue
		}
		if !c.done {
			c.carryOut()
			sim.logCall(c, "")
		}
		sim.gate.answer(c)
		return true
	}
	worked := false
	for _, r := range sim.replicas {
		if r.isCrashed() {
			continue
		}
		for _, c := range r.caches.all() {
			if c.watch().stalled {
				continue
			}
			c.bookmark()
			unreceived, unnotified := c.pending()
			c.receive(unreceived)
			c.notify(unreceived + unnotified)
			worked = worked || unreceived+unnotified > 0
		}
		if n := r.pendingMachineVersions(); n > 0 {
			r.machineWatch.deliver(n)
			worked = true
		}
	}
	if worked {
		return true
	}
	for _, h := range sim.hosts {
		if h.agent.isWorking() {
			worked = sim.syncAgent(h.agent) || worked
		}
	}
	return worked || sim.doGuardWork()
}

// syncAgent does all due work of an agent: it probes every cluster with a new key, and
// writes its Node.
func (sim *simulation) syncAgent(a *simulatedAgent) bool {
	a.catchUp()
	worked := a.writeNode(sim)
	for _, e := range sim.etcds {
		if q, due := a.dueProbe(e); due {
			l := a.beginProbe(e, q)
			l.complete()
			if l.finish() {
				sim.publish(l)
			}
			worked = true
		}
	}
	return worked
}
