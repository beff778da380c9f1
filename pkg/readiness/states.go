package readiness

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// unreadable changes nothing: a record that cannot be read may say that the cordon is ours, or that it is not.
func (s situation) unreadable(err error) Decision {
	message := fmt.Sprintf("%v. Nothing is changed until it is gone: `kubectl annotate node %s %s-`", err, s.node.Name, HoldAnnotation)
	if marks := s.perhapsLent(); len(marks) > 0 {
		message += fmt.Sprintf(". A hold sets these annotations too, and nobody else takes them off; of them leave those out that you have set: "+
			"`kubectl annotate node %s %s-`", s.node.Name, strings.Join(marks, "- "))
	}
	free := "kubectl uncordon " + s.node.Name
	if key := s.policy.TaintKey; key != "" && hasTaint(s.node, key) {
		free = fmt.Sprintf("kubectl taint node %s %s:%s-", s.node.Name, key, corev1.TaintEffectNoSchedule)
	}
	return s.decide(corev1.ConditionUnknown, RecordUnreadable, message+fmt.Sprintf(". If the node is to take pods: `%s`", free))
}

// perhapsLent are the marks that stand on the node as a hold would have set them, in order. Without a record only a person
// can say of most of them whose they are.
func (s situation) perhapsLent() []string {
	s.record.Marks = slices.Sorted(maps.Keys(scaleDownMarks()))
	return s.lent()
}

// bootUnknown decides nothing: without the boot ID a reboot cannot be told from a restart of the agent. But what a hold that
// has ended has left is a lie in every boot.
func (s situation) bootUnknown() Decision {
	d := s.decide(corev1.ConditionUnknown, BootUnknown, "this boot's ID (/proc/sys/kernel/random/boot_id) could not be read, so nothing is decided")
	d.Held = s.record.State == Held
	if !s.recorded || d.Held {
		return d
	}
	return s.clear(d)
}

// mayHold says that a hold is called for and that nobody is in its way.
func (s situation) mayHold() bool { return !s.open() && s.mayClose() }

// mayClose says that nobody is in the way of a hold. What somebody else has closed stays theirs.
func (s situation) mayClose() bool {
	return !s.exempt() && !s.closedByOthers() && s.node.DeletionTimestamp == nil
}

// hold closes the node, with the record that says so in the same write.
func (s situation) hold(reason string) Decision {
	s.record = *s.next(Held, reason)
	s.record.Taint = s.policy.TaintKey
	d := s.keep()
	record := s.record
	if d.Record != nil {
		record = *d.Record
	}
	d.Record, d.Annotations = &record, s.guard(&record)
	if key := record.Taint; key != "" {
		d.AddTaints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	} else {
		d.Unschedulable = new(true)
	}
	// What the network plugin said must be written down before it is written over.
	d.StatusFirst = record.fresh() && record.NetworkUp == ""
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	return d
}

// held looks after a hold that stands.
func (s situation) held() Decision {
	switch mark := s.mark(); {
	case !s.shut():
		return s.override()
	case (!s.open() && !s.calledOff || s.goesDown) && !s.exempt():
		return s.keep()
	case s.keepCordoned():
		return s.handOver()
	case mark != "":
		return s.standBack(mark)
	}
	return s.release()
}

// keep leaves the node held. On a fresh node held by cordon NetworkUnavailable is part of the hold, and is set again if a
// CNI has cleared it early: flannel does so once, with gates still closed, and an autoscaler that sees a node Ready and
// cordoned buys another.
func (s situation) keep() Decision {
	reason, message := s.waitingFor(), "waiting for "+s.missing
	if s.goesDown {
		reason, message = GoingDown, "the host is going down; held until the network of its next boot works"
	}
	d := s.decide(corev1.ConditionTrue, reason, message)
	d.Held, d.Record = true, s.noted()
	if !s.record.NetworkBuilt && slices.ContainsFunc(s.gates, func(g Gate) bool { return g.Name == GateNetworkPlugin && g.Open }) {
		s.note(&d).NetworkBuilt = true
	}
	// Of a hold that began with the node the condition tells, and the event of its end: a node's life is to cost the API
	// server little, and most nodes' is this.
	if before := condition(s.node, NetworkHeld); s.record.Reason != NewNode && (before == nil || before.Status != corev1.ConditionTrue) {
		d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	}
	if !s.record.fresh() || s.taintKey() != "" {
		return s.clear(d)
	}
	c := condition(s.node, corev1.NodeNetworkUnavailable)
	if c == nil || (c.Status != corev1.ConditionTrue && !standing(c)) {
		if plugin := s.cleared(); plugin != "" {
			record := s.note(&d)
			record.NetworkUp, record.BootID = plugin, s.facts.BootID
		}
		d.Conditions = append(d.Conditions, corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: HeldByHoldfast,
			Message: "Holdfast holds this node until its network works; see condition NetworkHeld",
		})
	}
	return d
}

// note is the record that the decision writes, which is that of the node if it writes none yet.
func (s situation) note(d *Decision) *Record {
	if d.Record == nil {
		record := s.record
		d.Record = &record
	}
	return d.Record
}

// standBack keeps the cordon for somebody who is deleting, draining or rebooting the node, and the record with it: kured
// and others restore the cordon that they found, which was ours, so that giving it up would leave the node closed for
// ever. When the mark goes the hold is released; if its owner uncordons, that is an override as any other.
// NetworkUnavailable is cleared already, for the network does work, and after a deletion or the end of the agent nobody
// would clear it.
func (s situation) standBack(mark string) Decision {
	d := s.clear(s.decide(corev1.ConditionTrue, WaitingForOthers, "nothing is missing, but the node is not uncordoned as long as this stands: "+mark))
	d.Held = true
	return d
}

// handOver ends a hold and leaves what closes the node to whoever asked for it.
func (s situation) handOver() Decision {
	d := s.end(Released, KeptCordoned)
	d.StatusFirst = true
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventReleased, Message: d.Message}
	return d
}

// override records that somebody else ended the hold, and takes our condition away, without which the node would look
// free and take no pod.
func (s situation) override() Decision {
	d := s.end(Overridden, EndedByHand)
	d.StatusFirst = true
	d.RemoveTaints = s.holdTaints()
	message := s.withMissing(d.Message)
	if by := cordonedBy(s.node); by != "" && s.node.Spec.Unschedulable {
		message += "; the cordon that stands is not Holdfast's, " + by + " set it"
	}
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventOverridden, Message: message}
	return d
}

// release opens the node in two writes. The cordon goes first, with the record that says that it has gone, and the conditions
// after it, for the other order would show the node Ready and cordoned. What a crash in between leaves is told by the
// conditions: in no state but held do they stand for anything, and so whoever comes next clears them (settled, bootUnknown,
// Attend).
func (s situation) release() Decision {
	reason := NetworkReady
	if s.calledOff {
		reason = CalledOff
	}
	d := s.end(Released, reason)
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventReleased, Message: d.Message}
	if !s.open() && !s.calledOff {
		d = s.end(Overridden, EndedByLabel)
		d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventOverridden, Message: s.withMissing(d.Message)}
	}
	byCordon := s.record.Taint == ""
	if byCordon {
		d.Unschedulable = new(false)
	}
	d.RemoveTaints = append(s.holdTaints(), s.leftovers(byCordon)...)
	return d
}

// end is the part that all ends of a hold have in common: nothing on the node is ours any more, and the record says why.
func (s situation) end(state State, reason string) Decision {
	d := s.rest(reason)
	d.Record = s.next(state, reason)
	d.Annotations, d.Record.Marks = s.unguard()
	return d
}

// rest leaves the node alone, but for a condition of ours that has stayed behind.
func (s situation) rest(reason string) Decision {
	return s.clear(s.decide(corev1.ConditionFalse, NotHeld, restMessage(reason)))
}

// restMessage depends on nothing but the record, so that the condition is not written again once all is done, and reads the
// same whoever writes it after a crash.
func restMessage(reason string) string {
	switch reason {
	case NetworkReady:
		return "not held: the network of this boot is ready"
	case CalledOff:
		return "not held: the host was going down and has not"
	case KeptCordoned:
		return "not held; what closes the node was left because of annotation " + KeepCordonedAnnotation
	case FirstSeen:
		return "not held: the node was Ready when first seen, or nothing called for a hold"
	case Exempt:
		return fmt.Sprintf("not held, as label %s=%s asks", HoldLabel, HoldNever)
	case EndedByLabel:
		return fmt.Sprintf("not held: label %s=%s ended the hold", HoldLabel, HoldNever)
	case EndedByHand:
		return "not held: somebody opened the node while it was held"
	case Overdue:
		return "not held: the hold had lasted too long, so the webhook's leader ended it (--on-stuck-hold=release)"
	}
	return "not held in this boot"
}

func (s situation) withMissing(message string) string {
	if s.open() {
		return message
	}
	return message + "; it had still been waiting for " + s.missing
}

// settled looks after a node on which nothing is held. A taint of the policy's key there was put back by somebody who takes
// it for a part of the Node: Karpenter does that when it registers a node that was released before (karpenter#1772).
func (s situation) settled() Decision {
	d := s.unheld()
	if !d.Held {
		d.RemoveTaints = s.holdTaints()
	}
	if d.Record != nil {
		return d
	}
	d.Record = s.noted()
	// The end of the hold has left its marks, since nobody had looked for etcd.
	if gone, left := s.unguard(); !slices.Equal(left, s.record.Marks) {
		s.note(&d).Marks, d.Annotations = left, gone
	}
	return d
}

// unheld decides about a node on which nothing is held. In the boot of the record it is left alone, whatever happens, until
// the host goes down: after a reboot its kubelet is Ready before any pod of a DaemonSet runs there. In another boot it is
// held if its network is not there yet, by cordon alone, since an old node that looks unready alarms autoscalers. Where the
// gates do not fit, it is not held until they have been open once, which proves that they do.
func (s situation) unheld() Decision {
	switch {
	case s.record.Reason == GatesDoNotFit && s.open():
		return s.end(Released, NetworkReady)
	case s.record.Reason == GatesDoNotFit:
		return s.unfit()
	case s.record.BootID == s.facts.BootID && s.facts.GoingDown && s.mayClose():
		return s.hold(GoingDown)
	case s.record.BootID == s.facts.BootID:
		return s.rest(s.record.Reason)
	case s.open():
		return s.end(Released, NetworkReady)
	case s.exempt():
		return s.end(Released, Exempt)
	case s.record.BootID == "":
		return s.end(Released, FirstSeen)
	case s.mayHold():
		return s.hold(Rebooted)
	case s.node.DeletionTimestamp != nil:
		return s.rest("")
	}
	return s.clear(s.decide(corev1.ConditionFalse, CordonedByOthers,
		"not held: the node came up from a reboot closed by somebody else. Once opened it is held if this is missing still: "+s.missing))
}
