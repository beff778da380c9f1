package readiness

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// situation is what a decision is made from: the arguments of Decide and what follows from them at once.
type situation struct {
	node   *corev1.Node
	facts  Facts
	policy Policy
	now    time.Time
	// record is the zero value if there is none, which recorded says, or if it could not be read, for which unread is why.
	record   Record
	recorded bool
	unread   error
	gates    []Gate
	// missing says what the closed gates wait for; empty if all are open.
	missing string
	// calledOff says that the node was closed because its host went down, and that the host is still in the same boot. It
	// had been let go in this boot before, and once is enough. Only who sees the host can say so.
	calledOff bool
	// goesDown says that the host is going down, or had been and may still be: whoever has just come waits for logind's word.
	goesDown bool
}

func newSituation(n *corev1.Node, f Facts, p Policy, now time.Time) situation {
	s := situation{node: n, facts: f, policy: p, now: now}
	if value, found := n.Annotations[HoldAnnotation]; found {
		s.recorded = true
		s.record, s.unread = ParseRecord(value)
	}
	closedForIt := s.record.State == Held && s.record.Reason == GoingDown && s.record.BootID == f.BootID
	s.calledOff = closedForIt && f.StaysUp
	s.goesDown = f.GoingDown || closedForIt && f.AwaitsWord
	s.gates = s.askedGates()
	var missing []string
	for _, g := range s.gates {
		if !g.Open {
			missing = append(missing, g.Missing)
		}
	}
	s.missing = strings.Join(missing, "; ")
	return s
}

func (s situation) open() bool { return s.missing == "" }

// waitingFor is the reason of the first gate that is closed.
func (s situation) waitingFor() string {
	for _, g := range s.gates {
		if !g.Open {
			return g.Reason
		}
	}
	return NotHeld
}

// exempt says that a person wants this node never to be held.
func (s situation) exempt() bool { return s.node.Labels[HoldLabel] == HoldNever }

func (s situation) keepCordoned() bool {
	_, found := s.node.Annotations[KeepCordonedAnnotation]
	return found
}

// taintKey is the key of the taint that this node is held by, or would be; empty for the cordon. Of a hold that stands the
// record knows it, whatever the policy has become since: one that names no taint is a hold by cordon.
func (s situation) taintKey() string {
	if s.record.State == Held {
		return s.record.Taint
	}
	return s.policy.TaintKey
}

// holdTaints are the taints on the node that are ours: that of the record, and any of the policy's key, which a kubelet
// or a startup taint of Karpenter may have put there for us.
func (s situation) holdTaints() []corev1.Taint {
	var taints []corev1.Taint
	for _, t := range s.node.Spec.Taints {
		if t.Key != "" && t.Effect == corev1.TaintEffectNoSchedule && (t.Key == s.record.Taint || t.Key == s.policy.TaintKey) {
			taints = append(taints, corev1.Taint{Key: t.Key, Effect: t.Effect})
		}
	}
	return taints
}

// served says that the node has been in service, as far as it can be told: a hold that began with the Node has ended, or
// it was Ready before Holdfast knew it.
func (s situation) served() bool {
	if s.recorded {
		return !s.record.fresh()
	}
	ready := condition(s.node, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue && len(s.holdTaints()) == 0
}

// closedByOthers says that the node is closed by that by which it would be held, and not by us: of the cordon nobody can
// tell whose it is, and so it is somebody's. The taint is nobody's but ours.
func (s situation) closedByOthers() bool { return s.taintKey() == "" && s.node.Spec.Unschedulable }

// shut says whether that by which the node is held, or would be, is in place. A cordon under a hold of ours may have become
// somebody else's all the same.
func (s situation) shut() bool {
	if key := s.taintKey(); key != "" {
		return hasTaint(s.node, key)
	}
	return s.node.Spec.Unschedulable && (s.record.State != Held || cordonedBy(s.node) == "")
}

// mark names the mark of somebody who is deleting, draining or rebooting the node; empty if there is none.
func (s situation) mark() string {
	if s.node.DeletionTimestamp != nil {
		return "the Node is being deleted"
	}
	for _, t := range s.node.Spec.Taints {
		if slices.Contains(foreignTaints(), t.Key) {
			return "taint " + t.Key
		}
	}
	if _, found := s.node.Annotations[kuredAnnotation]; found {
		return "annotation " + kuredAnnotation
	}
	return ""
}

// next is a record of this boot, entered now.
func (s situation) next(state State, reason string) *Record {
	return &Record{
		State: state, BootID: s.facts.BootID, Since: s.now.UTC().Truncate(time.Second), Reason: reason, Stamps: s.stamps(), Marks: s.lent(),
	}
}

// guard asks autoscalers to leave the node alone while it is held: it returns the annotations that nobody has set, and
// enters them in the record, so that they go with the hold and no other does.
func (s situation) guard(r *Record) map[string]*string {
	marks, lent := scaleDownMarks(), r.Marks
	set := map[string]*string{}
	r.Marks = nil
	for _, key := range slices.Sorted(maps.Keys(marks)) {
		_, there := s.node.Annotations[key]
		if !there {
			set[key] = new(marks[key])
		}
		if !there || slices.Contains(lent, key) {
			r.Marks = append(r.Marks, key)
		}
	}
	return set
}

// lent are the marks of the record that are the hold's and nobody else's: those that guard a member of etcd by now are not.
func (s situation) lent() []string {
	guarding := strings.Split(s.node.Annotations[etcdMarksAnnotation], ",")
	return slices.DeleteFunc(s.record.lent(s.node.Annotations), func(key string) bool { return slices.Contains(guarding, key) })
}

// unguard takes off what the hold has set. Where nobody can say that there is no etcd it takes off nothing: the marks are
// left, in the record too, until it can be said or until they guard the member.
func (s situation) unguard() (gone map[string]*string, left []string) {
	gone = map[string]*string{}
	if s.facts.Etcd != Absent {
		return gone, s.lent()
	}
	for _, key := range s.lent() {
		gone[key] = nil
	}
	return gone, nil
}

// unavailableByUs says that NetworkUnavailable stands at True by us.
func (s situation) unavailableByUs() bool {
	c := condition(s.node, corev1.NodeNetworkUnavailable)
	return c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
}

// decide starts a decision with the condition that every decision has.
func (s situation) decide(status corev1.ConditionStatus, reason, message string) Decision {
	return Decision{
		Conditions: []corev1.NodeCondition{{Type: NetworkHeld, Status: status, Reason: reason, Message: message}},
		Reason:     reason,
		Message:    message,
		Gates:      s.gates,
	}
}

// clear sets NetworkUnavailable to False if it stands at True by us. In every state but held it is a lie that nobody
// else would ever correct, and a NoSchedule taint with it.
func (s situation) clear(d Decision) Decision {
	if s.unavailableByUs() {
		d.Conditions = append(d.Conditions, corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReleasedByHoldfast,
			Message: "Holdfast holds this node no more; see condition NetworkHeld",
		})
	}
	return d
}

// leftovers are the taints that the node lifecycle controller made from our hold and would take off some time later. The
// scheduler turns pods away until they are gone. A taint that somebody else still has a reason for is not among them.
func (s situation) leftovers(uncordoned bool) []corev1.Taint {
	var taints []corev1.Taint
	unavailable := condition(s.node, corev1.NodeNetworkUnavailable)
	for _, t := range s.node.Spec.Taints {
		if t.Effect != corev1.TaintEffectNoSchedule {
			continue
		}
		switch t.Key {
		case corev1.TaintNodeUnschedulable:
			if uncordoned {
				taints = append(taints, t)
			}
		case corev1.TaintNodeNetworkUnavailable:
			if unavailable == nil || unavailable.Status == corev1.ConditionFalse || s.unavailableByUs() {
				taints = append(taints, t)
			}
		}
	}
	return taints
}
