package readiness

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Decision is what a Node should look like and why. What it does not name is left alone.
type Decision struct {
	// Record is to be written at HoldAnnotation, in the same write as Unschedulable and the taints; nil leaves it.
	Record *Record
	// Annotations are the marks for autoscalers that come and go with a hold, nil for one that goes. They travel with Record.
	Annotations map[string]*string
	// Unschedulable sets the cordon; nil leaves it.
	Unschedulable *bool
	AddTaints     []corev1.Taint
	// RemoveTaints are matched by key and effect.
	RemoveTaints []corev1.Taint
	// Conditions always has NetworkHeld, and NetworkUnavailable if it is ours to set or to clear. Times are the writer's.
	Conditions []corev1.NodeCondition
	// StatusFirst says that the conditions are written before the rest: a fresh node must not look Ready and cordoned,
	// even for a moment, and where somebody else ended the hold the record that says so is written last.
	StatusFirst bool
	// Held says that the node is held by us, now or as soon as this decision is written.
	Held bool
	// Event is to be told once, after the writes have succeeded; nil if nothing happened.
	Event *Event
	// Reason and Message are those of the condition NetworkHeld.
	Reason  string
	Message string
	// Gates are all gates of the node, open and closed.
	Gates []Gate
}

// Event is a Kubernetes event about the Node.
type Event struct {
	// Type is Normal or Warning.
	Type    string
	Reason  string
	Message string
}

// Decide says what is to become of the node. It reads nothing but its arguments; now is only written down.
func Decide(n *corev1.Node, f Facts, p Policy, now time.Time) Decision {
	s := newSituation(n, f, p, now)
	switch {
	case s.unread != nil:
		return s.unreadable(s.unread)
	case f.BootID == "":
		return s.bootUnknown()
	case !s.recorded:
		return s.first()
	case s.record.State == Held:
		return s.held()
	}
	return s.settled()
}
