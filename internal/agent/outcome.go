package agent

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// situation is all that one pass of the node loop looks at.
type situation struct {
	node   *corev1.Node
	facts  readiness.Facts
	policy readiness.Policy
	// evidence is nil until the host was looked at: then nothing is said about etcd.
	evidence *protect.HostEvidence
	known    protect.Known
	// spc says that there is an inventory to match against, nil while it has not been read.
	spc       bool
	inventory *spc.Inventory
	now       time.Time
}

// outcome is what follows from a situation, each part with its explanation.
type outcome struct {
	hold       readiness.Decision
	protection *protect.Protection
	match      *spc.Match
	report     spc.Report
	// urgent is the hold alone, all is everything.
	urgent, all nodepatch.Desired
}

// decide puts the decisions together into one description of the Node.
func decide(s situation) (outcome, error) {
	o := outcome{hold: readiness.Decide(s.node, s.facts, s.policy, s.now)}
	o.urgent = held(o.hold)
	o.all = held(o.hold)
	if s.evidence != nil {
		p := protect.Assess(*s.evidence, s.known)
		o.protection = &p
		annotations, labels := protect.Marks(p, s.node.Annotations, s.node.Labels)
		maps.Copy(o.all.Annotations, annotations)
		maps.Copy(o.all.Labels, labels)
		o.all.Conditions = append(o.all.Conditions, member(p))
	}
	if !s.spc {
		return o, nil
	}
	match := spc.Find(s.node, s.inventory)
	o.match = &match
	organization := int64(0)
	if s.inventory != nil {
		organization = s.inventory.Organization
	}
	report, err := spc.Reported(s.node, match, organization)
	if err != nil {
		return o, err
	}
	o.report = report
	maps.Copy(o.all.Annotations, report.Annotations)
	maps.Copy(o.all.Labels, report.Labels)
	return o, nil
}

// held is what a decision about the hold asks of the Node.
func held(d readiness.Decision) nodepatch.Desired {
	desired := nodepatch.Desired{
		Labels: map[string]*string{}, Annotations: map[string]*string{},
		Unschedulable: d.Unschedulable, AddTaints: d.AddTaints, RemoveTaints: d.RemoveTaints,
		Conditions: append([]corev1.NodeCondition(nil), d.Conditions...), StatusFirst: d.StatusFirst,
	}
	if d.Record != nil {
		record := d.Record.Format()
		desired.Annotations[readiness.HoldAnnotation] = &record
	}
	return desired
}

// member is the condition that says whether the node holds a member.
func member(p protect.Protection) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: protect.EtcdMemberCondition, Status: corev1.ConditionUnknown, Reason: p.Reason, Message: p.Message}
	switch p.Membership {
	case protect.Holds:
		c.Status = corev1.ConditionTrue
	case protect.HoldsNot:
		c.Status = corev1.ConditionFalse
	case protect.MembershipUnknown:
	}
	return c
}

// news returns the events that follow once the outcome is written: from the decision, and from what the write changed
// on the Node. It looks at the Node rather than at a memory, so that a new start of the agent repeats nothing.
func (o outcome) news(before, after *corev1.Node) []event {
	var found []event
	if e := o.hold.Event; e != nil {
		found = append(found, event{kind: e.Type, reason: e.Reason, message: e.Message})
	}
	labelled, stays := isMember(before), isMember(after)
	switch p := o.protection; {
	case p == nil || labelled == stays:
	case stays && condition(before, protect.EtcdMemberCondition).Status != corev1.ConditionTrue:
		// Otherwise somebody took the label off, and it was put back.
		found = append(found, event{kind: corev1.EventTypeNormal, reason: "EtcdMemberFound", message: p.Message})
	case labelled:
		found = append(found, event{kind: corev1.EventTypeNormal, reason: "EtcdMemberGone", message: p.Message})
	}
	if value := after.Annotations[spc.NodeAnnotation]; value != before.Annotations[spc.NodeAnnotation] && o.match != nil {
		found = append(found, event{kind: corev1.EventTypeNormal, reason: "SPCMatched", message: o.match.Message})
	}
	return found
}

func isMember(n *corev1.Node) bool {
	return n.Labels[protect.EtcdMemberLabel] == protect.EtcdMemberLabelValue
}

func condition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}
