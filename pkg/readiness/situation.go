package readiness

import (
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
	record Record
	gates  []Gate
	// missing says what the closed gates wait for; empty if all are open.
	missing string
}

func look(n *corev1.Node, f Facts, p Policy, now time.Time) situation {
	s := situation{node: n, facts: f, policy: p, now: now, gates: Gates(n, f, p)}
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

// shut says whether that by which the node is held, or would be, is in place, whoever put it there.
func (s situation) shut() bool {
	if key := s.taintKey(); key != "" {
		return hasTaint(s.node, key)
	}
	return s.node.Spec.Unschedulable
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
	return &Record{State: state, BootID: s.facts.BootID, Since: s.now.UTC().Truncate(time.Second), Reason: reason}
}

// ours says that NetworkUnavailable stands at True by us.
func (s situation) ours() bool {
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
	if s.ours() {
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
			if unavailable == nil || unavailable.Status == corev1.ConditionFalse || s.ours() {
				taints = append(taints, t)
			}
		}
	}
	return taints
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// hasTaint says whether the node has a NoSchedule taint of this key.
func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Effect == corev1.TaintEffectNoSchedule
	})
}
