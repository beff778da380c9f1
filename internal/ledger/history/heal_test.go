package history

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// heals ends all trouble, and expects that a deletion which is safe then is allowed within the time that grants take to
// settle. Whatever a history did must not leave a node that can never be deleted.
func (w *world) heals() {
	w.say("all trouble ends")
	w.profile.faults = false
	w.calm(10 * time.Second)
	for _, d := range slices.Clone(w.deletions) {
		if d.admitted != nil && d.review == nil && w.choose(2) == 1 {
			w.commit(d)
		} else {
			w.finish(d, "its time is up")
		}
	}
	w.calm(10 * time.Second)
	for _, d := range slices.Clone(w.deletions) {
		w.finish(d, "its time is up")
	}
	w.note()
	w.mends()
	w.operates()
	w.note()
	limit := 30 * time.Minute
	if w.profile.has[skews] {
		limit += 40 * time.Minute
	}
	w.calm(time.Minute) // what is new is bound
	w.live(limit)
}

// mends makes everything work that still can: replicas, agents, machines, members.
func (w *world) mends() {
	for _, l := range w.held {
		w.publish(l)
	}
	for _, c := range w.late {
		c.carryOut()
	}
	w.held, w.late = nil, nil
	for _, r := range w.replicas {
		r.deafToNodes, r.deafToClusters = false, false
	}
	w.leads()
	for _, h := range w.hosts {
		h.agent.silent, h.agent.blind = false, false
		if n, err := w.api.node(h.name); err == nil && h.node == n.UID && n.DeletionTimestamp != nil {
			w.kill(h)
		}
		h.up = true
		_, err := w.api.editNode(h.name, func(n *corev1.Node) {
			n.Finalizers, n.Spec.Taints = nil, nil
			n.Annotations = maps.Clone(n.Annotations)
			delete(n.Annotations, protect.BreakGlassAnnotation)
		})
		w.say("Node %s is tidied up: %s", h.name, outcome(err))
	}
	w.kubelets()
	for _, d := range w.active() { // what was deleted dies, or an operator sees to it that it stays
		if n, err := w.api.node(d.node); err == nil && n.UID == d.uid {
			d.over = true
		} else if d.host.node == "" {
			w.kill(d.host)
		}
	}
	for _, e := range w.etcds {
		for _, m := range e.members {
			m.running = m.started
		}
	}
	for _, h := range w.hosts {
		if h.node == "" && !h.killed && !h.kept {
			w.register(h)
		}
	}
}

// operates does what an operator does with dead members, and with those that were never finished.
func (w *world) operates() {
	for _, e := range w.etcds {
		for _, m := range slices.Clone(e.members) {
			switch {
			case m.alive() && m.learner:
				e.promote(m)
			case !m.alive():
				if e.remove(m) {
					w.say("member %s on %s is removed", m.id, m.host.name)
					m.wiped = true
				}
			}
		}
		for _, m := range e.left {
			m.wiped = true
		}
		c, err := w.api.cluster(string(e.id))
		if err != nil {
			continue
		}
		for _, g := range c.Spec.Grants {
			w.insists(c.Name, g)
		}
	}
}

// insists has an operator name the grant of a machine that stays until it has ended: one that is too young is left.
func (w *world) insists(cluster string, g v1alpha1.Grant) {
	for range 8 {
		c, err := w.api.cluster(cluster)
		if err != nil || !slices.ContainsFunc(c.Spec.Grants, func(o v1alpha1.Grant) bool { return o.NodeUID == g.NodeUID }) ||
			!slices.ContainsFunc(w.hosts, func(h *host) bool { return h.kept && h.name == g.Node }) || !w.maySettle(g.NodeUID) {
			return
		}
		w.settle(c, g.NodeUID)
		w.calm(20 * time.Second)
	}
}

// live expects a safe deletion to be allowed.
func (w *world) live(limit time.Duration) {
	h, ok := one(w, w.hosts, w.expendable)
	if !ok {
		return
	}
	w.tally.healed++
	for begun := time.Now(); !w.failed(); w.calm(25 * time.Second) {
		w.note()
		d := w.delete(h, false, false)
		for d.review != nil && !w.failed() {
			w.calm(time.Second)
		}
		if d.passed {
			w.finish(d, "another plugin refuses")
			return
		}
		if time.Since(begun) > limit {
			w.fail("Node %s could go, and is still refused after %s: %s", h.name, limit, d.answer)
		}
	}
}

// expendable says that every cluster with a member on the machine can lose it, and that there is one.
func (w *world) expendable(h *host) bool {
	holds := false
	for _, e := range w.etcds {
		m := e.of(h)
		if m == nil && slices.ContainsFunc(e.left, func(l *member) bool { return l.host == h }) && !w.seen(e) {
			return false // nobody can say that it has left
		}
		if m == nil {
			continue
		}
		holds = true
		others := countOf(e.voters(), func(o *member) bool { return o != m && o.alive() })
		if m.learner || !e.hasQuorum() || others < quorumOf(len(e.voters())) || !w.seen(e) {
			return false
		}
	}
	return holds && h.node != "" && !h.killed
}

// seen says that somebody can be asked: one of those who are heard is still a member, or nobody is heard yet. Where every
// member was replaced before any of the old ones had published a list with a new one, an operator must help.
func (w *world) seen(e *etcd) bool {
	c := w.api.clusters.objects[string(e.id)]
	if !e.hasQuorum() {
		return false
	}
	if c == nil || len(c.Spec.Members) == 0 {
		return slices.ContainsFunc(e.members, func(m *member) bool { return m.host.node != "" && m.alive() })
	}
	return slices.ContainsFunc(e.members, func(m *member) bool {
		return m.alive() && m.host.node != "" && slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
			return b.MemberID == m.id && b.NodeUID == m.host.node
		})
	})
}
