package readiness

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// unreadable changes nothing: a record that cannot be read may say that the cordon is ours, or that it is not.
func (s situation) unreadable(err error) Decision {
	return s.decide(corev1.ConditionUnknown, RecordUnreadable, fmt.Sprintf(
		"%v. Nothing is changed until it is gone: `kubectl annotate node %s %s-`, and `kubectl uncordon %s` if the node is to take pods",
		err, s.node.Name, HoldAnnotation, s.node.Name))
}

// bootUnknown changes nothing: without the boot ID a reboot cannot be told from a restart of the agent.
func (s situation) bootUnknown() Decision {
	d := s.decide(corev1.ConditionUnknown, BootUnknown, "this boot's ID (/proc/sys/kernel/random/boot_id) could not be read, so nothing is changed")
	d.Held = s.record.State == Held
	return d
}

// first meets a node without a record. One that has the taint of the policy's key is held already. Any other was there
// before Holdfast, or nothing holds nodes at birth; only if the policy asks for it, and the node is not Ready, is it held:
// then nothing runs there that a hold could disturb.
func (s situation) first() Decision {
	ready := condition(s.node, corev1.NodeReady)
	inService := ready != nil && ready.Status == corev1.ConditionTrue
	switch {
	case s.policy.TaintKey != "" && hasTaint(s.node, s.policy.TaintKey):
		return s.adopt()
	case s.policy.HoldUnrecorded && !inService && s.mayHold():
		return s.hold(NotReadyYet)
	case s.exempt():
		return s.end(Released, Exempt)
	case inService && !s.open():
		return s.misfit()
	}
	return s.end(Released, FirstSeen)
}

// adopt takes over a hold that began with the Node: its kubelet registered it with the taint of the policy's key, or
// Karpenter did. Nobody else will ever take that off.
func (s situation) adopt() Decision {
	s.record = *s.next(Held, NewNode)
	s.record.Taint = s.policy.TaintKey
	record := s.record
	d := s.held()
	if d.Record == nil {
		d.Record = &record
	}
	return d
}

// misfit records that the node is Ready while gates are closed: it works without what they wait for. They ask for the
// wrong things there, or look in the wrong places, and a hold by them after a reboot would never end.
func (s situation) misfit() Decision {
	d := s.unfit()
	d.Record = s.next(Released, GatesDoNotFit)
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventGatesDoNotFit, Message: d.Message}
	return d
}

func (s situation) unfit() Decision {
	return s.clear(s.decide(corev1.ConditionFalse, GatesDoNotFit,
		"not held, nor after a reboot until the gates have been open once: when first seen the node was Ready without what they wait for. "+
			"Compare the agent's --gates, --cni-conf-dir, --cni-bin-dir and --flannel-subnet-file with the node; missing: "+s.missing))
}

// mayHold says that a hold is called for and that nobody is in its way. What somebody else has closed stays theirs.
func (s situation) mayHold() bool {
	return !s.open() && !s.exempt() && !s.shut() && s.node.DeletionTimestamp == nil
}

// hold closes the node, with the record that says so in the same write.
func (s situation) hold(reason string) Decision {
	s.record = *s.next(Held, reason)
	s.record.Taint = s.policy.TaintKey
	d := s.keep()
	record := s.record
	d.Record = &record
	if key := record.Taint; key != "" {
		d.AddTaints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	} else {
		d.Unschedulable = new(true)
	}
	d.StatusFirst = record.fresh()
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	return d
}

// held looks after a hold that stands.
func (s situation) held() Decision {
	switch mark := s.mark(); {
	case !s.shut():
		return s.override()
	case !s.open() && !s.exempt():
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
	d := s.decide(corev1.ConditionTrue, s.waitingFor(), "waiting for "+s.missing)
	d.Held = true
	if before := condition(s.node, NetworkHeld); before == nil || before.Status != corev1.ConditionTrue {
		d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventHeld, Message: d.Message}
	}
	if !s.record.fresh() || s.taintKey() != "" {
		return s.clear(d)
	}
	c := condition(s.node, corev1.NodeNetworkUnavailable)
	if c == nil || (c.Status != corev1.ConditionTrue && c.Reason != CiliumIsUp) {
		d.Conditions = append(d.Conditions, corev1.NodeCondition{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: HeldByHoldfast,
			Message: "Holdfast holds this node until its network works; see condition NetworkHeld",
		})
	}
	return d
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
	d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventOverridden, Message: s.withMissing(d.Message)}
	return d
}

// release opens the node. The cordon goes first and the condition after it, for the other order would show the node Ready
// and cordoned; in between the record says releasing, so that whoever comes after a crash knows what is left to do.
func (s situation) release() Decision {
	d := s.end(Released, NetworkReady)
	d.Event = &Event{Type: corev1.EventTypeNormal, Reason: EventReleased, Message: d.Message}
	if !s.open() {
		d = s.end(Overridden, EndedByLabel)
		d.Event = &Event{Type: corev1.EventTypeWarning, Reason: EventOverridden, Message: s.withMissing(d.Message)}
	}
	if s.ours() {
		d.Record.State = Releasing
	}
	byCordon := s.record.Taint == ""
	if byCordon {
		d.Unschedulable = new(false)
	}
	d.RemoveTaints = append(s.holdTaints(), s.leftovers(byCordon)...)
	return d
}

// finish ends a release, by this agent or by one that crashed. The cordon is off since the record says releasing: a bit that
// is set again is somebody else's. It needs nothing from the host, and leaves the record its boot.
func (s situation) finish() Decision {
	state := Released
	if s.record.Reason == EndedByLabel {
		state = Overridden
	}
	d := s.end(state, s.record.Reason)
	d.Record.BootID = s.record.BootID
	d.StatusFirst = true
	d.RemoveTaints = s.leftovers(!s.node.Spec.Unschedulable)
	return d
}

// end is the part that all ends of a hold have in common: nothing on the node is ours any more, and the record says why.
func (s situation) end(state State, reason string) Decision {
	d := s.rest(reason)
	d.Record = s.next(state, reason)
	return d
}

// rest leaves the node alone, but for a condition of ours that has stayed behind.
func (s situation) rest(reason string) Decision {
	return s.clear(s.decide(corev1.ConditionFalse, NotHeld, restMessage(reason)))
}

// restMessage depends on nothing but the record, so that the condition is not written again once all is done.
func restMessage(reason string) string {
	switch reason {
	case NetworkReady:
		return "not held: the network of this boot is ready"
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
	}
	return "not held in this boot"
}

func (s situation) withMissing(message string) string {
	if s.open() {
		return message
	}
	return message + "; it had still been waiting for " + s.missing
}

// settled looks after a node on which nothing is held: in the boot of the record it is left alone, whatever happens; in
// another it is held if its network is not there yet, by cordon alone, since an old node that looks unready alarms
// autoscalers. Where the gates do not fit, it is not held until they have been open once, which proves that they do.
func (s situation) settled() Decision {
	switch {
	case s.record.Reason == GatesDoNotFit && s.open():
		return s.end(Released, NetworkReady)
	case s.record.Reason == GatesDoNotFit:
		return s.unfit()
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
