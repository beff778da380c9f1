package readiness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// Decision states what a Node should look like and why. Fields that are not set leave the Node
// unchanged.
type Decision struct {
	// Record is the new value of HoldAnnotation, in the same write as Unschedulable and the
	// taints; nil leaves it.
	Record *Record
	// Annotations are the autoscaler annotations to set, or to remove if the value is nil. They
	// are written together with Record.
	Annotations map[string]*string
	// Unschedulable sets the cordon; nil leaves it.
	Unschedulable *bool
	AddTaints     []corev1.Taint
	// RemoveTaints are matched by key and effect.
	RemoveTaints []corev1.Taint
	// Conditions always contains NetworkHeld. It contains NetworkUnavailable if Holdfast has
	// to set or clear that condition. The writer sets the times.
	Conditions []corev1.NodeCondition
	// StatusFirst is true if the conditions have to be written before the rest: a new node
	// must never be Ready and cordoned, and if another client has ended the hold, the record
	// is written last.
	StatusFirst bool
	// Held is whether Holdfast holds the node once this decision is written.
	Held bool
	// Event is to be recorded once, after the writes have succeeded; nil if there is none.
	Event *Event
	// Reason and Message are those of the condition NetworkHeld.
	Reason  string
	Message string
	// Gates are all gates of the node, open and closed.
	Gates []Gate
	// NeedsProbes is true if the policy has endpoints, and their state can change the decision.
	NeedsProbes bool
	// AwaitsProbe is true if the decision is put off until the first probe of each endpoint has
	// ended. Nothing about the hold has to be written until then.
	AwaitsProbe bool
}

// Event is a Kubernetes event about the Node.
type Event struct {
	// Type is Normal or Warning.
	Type    string
	Reason  string
	Message string
}

// Decide returns what the Node should look like. It depends only on its arguments, and on now
// only for the time in the record.
func Decide(n *corev1.Node, f Facts, p Policy, now time.Time) Decision {
	e := newEvaluation(n, f, p, now)
	d := e.decide()
	d.NeedsProbes = e.dependsOnGates() && len(p.Endpoints()) > 0
	return d.printable()
}

// printable returns the decision with texts that can be shown.
func (d Decision) printable() Decision {
	d.Message, d.Event = printable.Line(d.Message), d.Event.printable()
	for i := range d.Conditions {
		d.Conditions[i].Message = printable.Line(d.Conditions[i].Message)
	}
	for i := range d.Gates {
		d.Gates[i].Missing = printable.Line(d.Gates[i].Missing)
	}
	return d
}

func (e *Event) printable() *Event {
	if e == nil {
		return nil
	}
	return &Event{Type: e.Type, Reason: e.Reason, Message: printable.Line(e.Message)}
}

// dependsOnGates reports whether the state of the gates can change the decision. In the boot of
// its record, a node that is not held is left alone. A node without a record has no such boot.
func (e holdEvaluation) dependsOnGates() bool {
	switch {
	case e.parseErr != nil || e.facts.BootID == "":
		return false
	case e.record.State == Held || e.record.Reason == GatesMismatch:
		return true
	}
	return e.record.BootID != e.facts.BootID
}

func (e holdEvaluation) decide() Decision {
	switch {
	case e.parseErr != nil:
		return e.decideUnreadable()
	case e.facts.BootID == "":
		return e.decideBootUnknown()
	case e.record.State == "":
		return e.decideFirst()
	case e.record.State == Held:
		return e.withStart(e.decideHeld())
	}
	return e.decideNotHeld()
}

// newDecision returns a decision with the condition NetworkHeld, which every decision has.
func (e holdEvaluation) newDecision(status corev1.ConditionStatus, reason, message string) Decision {
	return Decision{
		Conditions: []corev1.NodeCondition{{Type: NetworkHeld, Status: status, Reason: reason, Message: message}},
		Reason:     reason,
		Message:    message,
		Gates:      e.gates,
	}
}

// clearUnavailable adds NetworkUnavailable=False if Holdfast has set the condition to True. In
// every state but held, that value is wrong, no other component corrects it, and it causes a
// NoSchedule taint.
func (e holdEvaluation) clearUnavailable(d Decision) Decision {
	if isUnavailableByHoldfast(e.node) {
		d.Conditions = append(d.Conditions, corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReleasedByHoldfast,
			Message: "Holdfast no longer holds this node; see condition NetworkHeld",
		})
	}
	return d
}

// decideUnreadable changes nothing: an unreadable record may or may not claim the cordon.
func (e holdEvaluation) decideUnreadable() Decision {
	message := fmt.Sprintf("%v. Holdfast does not change this node until the record is removed: "+
		"`kubectl annotate node %s %s-`", e.parseErr, e.node.Name, HoldAnnotation)
	if keys := e.possibleAutoscalerAnnotations(); len(keys) > 0 {
		message += fmt.Sprintf(". A hold also sets these annotations, and no other component removes them; "+
			"leave out those that you set: `kubectl annotate node %s %s-`", e.node.Name, strings.Join(keys, "- "))
	}
	free := "kubectl uncordon " + e.node.Name
	if key := e.policy.TaintKey; hasTaint(e.node, key) {
		free = fmt.Sprintf("kubectl taint node %s %s:%s-", e.node.Name, key, corev1.TaintEffectNoSchedule)
	}
	return e.newDecision(corev1.ConditionUnknown, RecordUnreadable,
		message+fmt.Sprintf(". To let the node accept pods: `%s`", free))
}

// possibleAutoscalerAnnotations returns those on the node with the values that a hold sets, sorted.
// Without a record, only a person can tell who set them.
func (e holdEvaluation) possibleAutoscalerAnnotations() []string {
	e.record.Marks = autoscaler.Keys()
	return e.ownedAutoscalerAnnotations()
}

// decideBootUnknown decides nothing: without the boot ID, a reboot looks like a restart of the
// agent. But a condition that an ended hold has left is wrong in every boot.
func (e holdEvaluation) decideBootUnknown() Decision {
	d := e.newDecision(corev1.ConditionUnknown, BootUnknown,
		"the boot ID (/proc/sys/kernel/random/boot_id) could not be read, so no decision was made")
	d.Held = e.record.State == Held
	if e.record.State == "" || d.Held {
		return d
	}
	return e.clearUnavailable(d)
}

// decideFirst decides about a node without a record. A node with the taint of the policy's key
// is already held. Any other node is older than Holdfast, or no policy holds nodes at birth.
// Such a node is held only if the policy asks for that, and the node is not Ready and not known to
// have been Ready, because then it runs nothing that a hold could disturb.
func (e holdEvaluation) decideFirst() Decision {
	ready := FindCondition(e.node, corev1.NodeReady)
	inService := ready != nil && ready.Status == corev1.ConditionTrue
	switch {
	case hasTaint(e.node, e.policy.TaintKey):
		return e.adoptTaint()
	case e.policy.HoldUnrecorded && !wasReady(e.node) && e.needsHold():
		return e.startHold(NotReadyYet)
	case isExempt(e.node):
		return e.recordNotHeld(Released, Exempt)
	case !inService || e.allGatesOpen():
		return e.recordNotHeld(Released, FirstSeen)
	case e.hasUnprobedEndpoint():
		return e.decideAfterProbe()
	}
	return e.recordGatesMismatch()
}

// decideAfterProbe puts off the decision about a node that was Ready before Holdfast: before the
// first probe it is unknown whether the gates describe the node.
func (e holdEvaluation) decideAfterProbe() Decision {
	d := e.newDecision(corev1.ConditionUnknown, WaitingForProbe,
		"not held: the gates are being probed for the first time; missing: "+e.missing())
	d.AwaitsProbe = true
	return d
}

// adoptTaint takes over a hold that began with the Node: its kubelet registered it with the
// taint of the policy's key, or Karpenter set the taint. No other component removes that
// taint.
func (e holdEvaluation) adoptTaint() Decision {
	e.record = *e.newRecord(Held, NewNode)
	e.record.Taint = e.policy.TaintKey
	d := e.decideHeld()
	if d.Held {
		d.Annotations = e.setAutoscalerAnnotations(e.recordToWrite(&d))
	}
	return d
}

// recordGatesMismatch records that the node is Ready although gates are closed. The node works
// without what the gates require. They are wrong for this node or inspect the wrong places,
// and a hold after a reboot would never end.
func (e holdEvaluation) recordGatesMismatch() Decision {
	d := e.gatesMismatch()
	d.Record = e.newRecord(Released, GatesMismatch)
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventGatesMismatch, Message: d.Message}
	return d
}

func (e holdEvaluation) gatesMismatch() Decision {
	return e.clearUnavailable(e.newDecision(corev1.ConditionFalse, GatesMismatch,
		"not held: the node was Ready when first observed, although gates were closed. It is not held after a "+
			"reboot until all gates have been open once. Compare the agent's --gates, --cni-conf-dir, "+
			"--cni-bin-dir and --flannel-subnet-file with the node; missing: "+e.missing()))
}

// decideNotHeld decides about a node that is not held. If the node has a taint with the
// policy's key, another component has restored it as a part of the Node: Karpenter does that
// when it registers a node that was already released (karpenter#1772). It stays while
// KeepCordonedAnnotation asks for that.
func (e holdEvaluation) decideNotHeld() Decision {
	d := e.decideForBoot()
	if !d.Held {
		e.handleKeptTaint(&d)
	}
	if d.Record != nil {
		return d
	}
	d.Record = e.stampedRecord()
	// The end of the hold has left its annotations if the scan for etcd had not finished.
	if gone, left := e.clearAutoscalerAnnotations(); !slices.Equal(left, e.record.Marks) {
		e.recordToWrite(&d).Marks, d.Annotations = left, gone
	}
	return d
}

// handleKeptTaint removes the taints of a hold from a node that is not held. With
// KeepCordonedAnnotation they stay, and the record keeps the key: without the annotation they are
// removed, also under another policy.
func (e holdEvaluation) handleKeptTaint(d *Decision) {
	key := e.record.Taint
	if !hasKeepCordoned(e.node) {
		key, d.RemoveTaints = "", e.holdTaints()
	}
	if d.Record != nil || key != e.record.Taint {
		e.recordToWrite(d).Taint = key
	}
}

// decideForBoot decides whether a node that is not held has to be held.
//
// In the boot of its record it is left alone until the host shuts down: after a reboot, its
// kubelet is Ready before any pod of a DaemonSet runs. In another boot it is held if its
// network is not ready, but only by cordon, because an old node that is not Ready alarms
// autoscalers. After a mismatch of gates it is not held until all gates have been open once,
// which proves that they are right for the node.
func (e holdEvaluation) decideForBoot() Decision {
	switch {
	case e.record.Reason == GatesMismatch && e.allGatesOpen():
		return e.recordNotHeld(Released, NetworkReady)
	case e.record.Reason == GatesMismatch:
		return e.gatesMismatch()
	case e.record.BootID == e.facts.BootID && e.facts.GoingDown && e.mayHold():
		return e.startHold(GoingDown)
	case e.record.BootID == e.facts.BootID:
		return e.leaveAlone(e.record.Reason)
	case e.allGatesOpen():
		return e.recordNotHeld(Released, e.reasonInNextBoot(NetworkReady))
	case isExempt(e.node):
		return e.recordNotHeld(Released, e.reasonInNextBoot(Exempt))
	case e.record.BootID == "":
		return e.recordNotHeld(Released, FirstSeen)
	case e.needsHold():
		return e.startHold(Rebooted)
	case e.node.DeletionTimestamp != nil:
		return e.leaveAlone("")
	}
	return e.clearUnavailable(e.newDecision(corev1.ConditionFalse, CordonedByOthers,
		"not held: the node was already cordoned when it came up from a reboot. When it is uncordoned, it is "+
			"held if this is still missing: "+e.missing()))
}

// reasonInNextBoot returns the reason for the record of a node that is not held in a later boot.
// While the cordon of a hold stays, only the reason KeptCordoned shows that it is not that of
// another client.
func (e holdEvaluation) reasonInNextBoot(reason RecordReason) RecordReason {
	if closedBy(e.node, e.record).Cordon == ByHold {
		return KeptCordoned
	}
	return reason
}

func (e holdEvaluation) needsHold() bool { return !e.allGatesOpen() && e.mayHold() }

// mayHold reports whether a hold is allowed. A node that another client has closed is left to
// that client.
func (e holdEvaluation) mayHold() bool {
	return !isExempt(e.node) && !e.isCordonedByOthers() && e.node.DeletionTimestamp == nil
}
