package readiness

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// startHold closes the node and writes the record in the same write.
func (e holdEvaluation) startHold(reason RecordReason) Decision {
	key := e.taintKey()
	e.record = *e.newRecord(Held, reason)
	e.record.Taint = key
	d := e.keepHold()
	record := e.recordToWrite(&d)
	d.Annotations = e.setAutoscalerAnnotations(record)
	if key != "" {
		d.AddTaints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	} else {
		d.Unschedulable = new(true)
	}
	// The network plugin's reason has to be recorded before its condition is overwritten.
	d.StatusFirst = record.isFirstHold() && record.NetworkUp == ""
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	return d
}

// decideHeld decides about a node that is held according to its record.
func (e holdEvaluation) decideHeld() Decision {
	mustStay := e.shuttingDown || !e.allGatesOpen() && !e.shutdownCancelled
	switch mark := e.foreignMark(); {
	case !closedBy(e.node, e.record).isInPlace():
		return e.recordOverride()
	case mustStay && !isExempt(e.node):
		return e.keepHold()
	case hasKeepCordoned(e.node):
		return e.yieldToCordon()
	case mark != "":
		return e.waitForOthers(mark)
	}
	return e.release()
}

// keepHold keeps the node held. During a first hold by cordon, NetworkUnavailable is part of
// the hold and is set again if a CNI clears it early. flannel clears it once, even with gates
// still closed, and an autoscaler that observes a Ready and cordoned node buys another one.
func (e holdEvaluation) keepHold() Decision {
	reason, message := NotHeld, "waiting for "+e.missing()
	if closed := e.closedGates(); e.shuttingDown {
		reason, message = GoingDown, "the host is shutting down; the node is held until its network works in the next boot"
	} else if len(closed) > 0 {
		reason = closed[0].Reason
	}
	d := e.newDecision(corev1.ConditionTrue, reason, message)
	d.Held, d.Record = true, e.stampedRecord()
	isBuilt := func(g Gate) bool { return g.Name == GateNetworkPlugin && g.Open }
	if !e.record.NetworkBuilt && slices.ContainsFunc(e.gates, isBuilt) {
		e.recordToWrite(&d).NetworkBuilt = true
	}
	// A hold that began with the node has no event of its own: most holds are of this kind,
	// and the condition and the event of the release are enough. This saves requests.
	before := FindCondition(e.node, NetworkHeld)
	if e.record.Reason != NewNode && (before == nil || before.Status != corev1.ConditionTrue) {
		d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	}
	if !e.record.isFirstHold() || e.record.Taint != "" {
		return e.clearUnavailable(d)
	}
	c := FindCondition(e.node, corev1.NodeNetworkUnavailable)
	if c == nil || (c.Status != corev1.ConditionTrue && !isBootIndependent(c)) {
		if plugin := e.clearedReason(); plugin != "" {
			record := e.recordToWrite(&d)
			record.FirstBootID = cmp.Or(record.FirstBootID, record.BootID)
			record.NetworkUp, record.BootID = plugin, e.facts.BootID
		}
		d.Conditions = append(d.Conditions, corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: HeldByHoldfast,
			Message: "Holdfast holds this node until its network works; see condition NetworkHeld",
		})
	}
	return d
}

// recordToWrite returns the record that the decision writes, which is a copy of the node's
// record if the decision has none yet.
func (e holdEvaluation) recordToWrite(d *Decision) *Record {
	if d.Record == nil {
		record := e.record
		d.Record = &record
	}
	return d.Record
}

// waitForOthers keeps the cordon and the record while another component deletes, drains or
// reboots the node. kured and others restore the cordon that they found. That cordon was
// Holdfast's, so without the record the node would stay closed. When the mark is removed, the
// hold is released; if its owner uncordons the node, that is an override. NetworkUnavailable
// is cleared at once: the network works, and after the deletion of the agent no component
// would clear it.
func (e holdEvaluation) waitForOthers(mark string) Decision {
	over := "the network is ready"
	if !e.allGatesOpen() { // by the label, or because the shutdown was cancelled
		over = "the hold is over"
	}
	d := e.clearUnavailable(e.newDecision(corev1.ConditionTrue, WaitingForOthers,
		over+", but the node is not released yet because of this: "+mark))
	d.Held = true
	return d
}

// yieldToCordon ends a hold and leaves the cordon or taint, as KeepCordonedAnnotation asks.
func (e holdEvaluation) yieldToCordon() Decision {
	d := e.endHold(Released, KeptCordoned)
	d.Record.Taint = e.record.Taint
	d.StatusFirst = true
	return d
}

// recordOverride records that another client ended the hold. It also clears Holdfast's
// condition: otherwise the node would look open but receive no pods.
func (e holdEvaluation) recordOverride() Decision {
	d := e.endHold(Overridden, EndedByHand)
	d.StatusFirst = true
	d.RemoveTaints = e.holdTaints()
	if by := closedBy(e.node, e.record).Cordon; by != "" {
		d.Event.Message += "; the remaining cordon was set by " + by + ", not by Holdfast"
	}
	return d
}

// release opens the node in two writes. The first removes the cordon and updates the record,
// the second writes the conditions; in the other order, the node would be Ready and cordoned
// for a moment. If a crash separates the two, the conditions still report a hold while the
// record does not. The next decision detects that and clears them (decideNotHeld,
// decideBootUnknown, CheckHold).
func (e holdEvaluation) release() Decision {
	state, reason := Released, NetworkReady
	switch {
	case e.shutdownCancelled:
		reason = ShutdownCancelled
	case !e.allGatesOpen():
		state, reason = Overridden, EndedByLabel
	}
	d := e.endHold(state, reason)
	byCordon := e.record.Taint == ""
	if byCordon {
		d.Unschedulable = new(false)
	}
	d.RemoveTaints = append(e.holdTaints(), e.leftoverTaints(byCordon)...)
	return d
}

// endHold records the end of a hold, with an event. That of an override names what is missing.
func (e holdEvaluation) endHold(state State, reason RecordReason) Decision {
	d := e.recordNotHeld(state, reason)
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventReleased, Message: d.Message}
	if state == Overridden {
		d.Event.Type, d.Event.Reason = corev1.EventTypeWarning, EventOverridden
		if !e.allGatesOpen() {
			d.Event.Message += "; the node was still waiting for " + e.missing()
		}
	}
	return d
}

// recordNotHeld returns the decision for a node that is not held: it writes the record, and removes
// the autoscaler annotations and the condition that a hold may have left.
func (e holdEvaluation) recordNotHeld(state State, reason RecordReason) Decision {
	d := e.leaveAlone(reason)
	d.Record = e.newRecord(state, reason)
	d.Annotations, d.Record.Marks = e.clearAutoscalerAnnotations()
	return d
}

// leaveAlone changes nothing but a condition that a hold has left. The reason is the record's, or
// empty if the record is from another boot.
func (e holdEvaluation) leaveAlone(reason RecordReason) Decision {
	return e.clearUnavailable(e.newDecision(corev1.ConditionFalse, NotHeld, notHeldMessage(reason)))
}

// notHeldMessage returns the message for the reason of a record, which is empty if the record is
// from another boot. It depends on nothing else: so the condition is not written again in a steady
// state, and has the same message after a crash.
func notHeldMessage(reason RecordReason) string {
	known := map[RecordReason]string{
		NetworkReady:      "not held: the network became ready in this boot",
		ShutdownCancelled: "not held: the shutdown of the host was cancelled",
		KeptCordoned:      "not held; the cordon or taint stays because of annotation " + KeepCordonedAnnotation,
		FirstSeen:         "not held: the node was Ready when first observed, or no hold was needed",
		Exempt:            fmt.Sprintf("not held: label %s=%s exempts the node", HoldLabel, HoldNever),
		EndedByLabel:      fmt.Sprintf("not held: label %s=%s ended the hold", HoldLabel, HoldNever),
		EndedByHand:       "not held: another client removed the cordon or taint while the node was held",
		Overdue: "not held: the hold exceeded its time limit, so the webhook's leader ended it " +
			"(--on-stuck-hold=release)",
	}
	return cmp.Or(known[reason], "not held in this boot")
}
