package readiness

import (
	corev1 "k8s.io/api/core/v1"
)

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
	d := s.held()
	if !d.Held {
		return d
	}
	record := s.record
	if d.Record != nil {
		record = *d.Record
	}
	d.Record, d.Annotations = &record, s.guard(&record)
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
