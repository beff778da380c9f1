package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
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
	// blind says why the evidence is out of date, empty if it is not.
	blind string
	known protect.Known
	// spc says that there is an inventory to match against, nil while it has not been read.
	spc       bool
	inventory *spc.Index
	// withholdGroup says that a node which holds etcd, or may, is not labelled with its SPC group.
	withholdGroup bool
	now           time.Time
}

// outcome is what follows from a situation, each part with its explanation.
type outcome struct {
	hold       readiness.Decision
	protection *protect.Protection
	match      *spc.Match
	report     spc.Report
	openstack  openstack.Identity
	// urgent is the hold alone, rest is everything but the hold, all is both.
	urgent, rest, all nodepatch.Desired
}

// decide puts the decisions together into one description of the Node.
func decide(s situation) (outcome, error) {
	var o outcome
	switch {
	case s.blind != "":
		p := protect.Unseen(s.known, s.blind)
		o.protection = &p
	case s.evidence != nil:
		p := protect.Assess(*s.evidence, s.known)
		o.protection = &p
	}
	s.facts.Etcd = etcd(o.protection)
	o.hold = readiness.Decide(s.node, s.facts, s.policy, s.now)
	o.urgent = legible(nodepatch.OfHold(o.hold))
	o.rest = nodepatch.Desired{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	if o.protection != nil {
		p := *o.protection
		// From the annotations as the hold leaves them, which say which marks for autoscalers are still the hold's.
		left := changed(s.node.Annotations, o.urgent.Annotations)
		o.rest.Annotations, o.rest.Labels = protect.Marks(p, left, s.node.Labels, readiness.Lent(left))
		if glass, err := protect.ParseBreakGlass(s.node.Annotations[protect.BreakGlassAnnotation], s.node.UID, s.now); err == nil && o.rest.Labels[protect.EtcdMemberLabel] != nil {
			// Who may break the glass has taken the label off, since the webhook does not answer. Until that has run out,
			// the label would only undo it.
			delete(o.rest.Labels, protect.EtcdMemberLabel)
			p.Message += fmt.Sprintf("; label %s is left off until %s, by annotation %s: %s",
				protect.EtcdMemberLabel, glass.Until.UTC().Format(time.RFC3339), protect.BreakGlassAnnotation, glass.Reason)
		}
		o.rest.Conditions = append(o.rest.Conditions, member(p))
	}
	err := errors.Join(o.record(s), o.identify(s.node))
	o.rest = legible(o.rest)
	o.all = o.urgent
	o.all.Annotations, o.all.Labels = maps.Clone(o.urgent.Annotations), maps.Clone(o.urgent.Labels)
	maps.Copy(o.all.Annotations, o.rest.Annotations)
	maps.Copy(o.all.Labels, o.rest.Labels)
	o.all.Conditions = slices.Concat(o.urgent.Conditions, o.rest.Conditions)
	return o, err
}

// unexplained is the outcome without the condition that only tells of the hold; what follows from it stays.
func (o outcome) unexplained() outcome {
	tells := func(c corev1.NodeCondition) bool { return c.Type == readiness.NetworkHeld }
	o.urgent.Conditions = slices.DeleteFunc(slices.Clone(o.urgent.Conditions), tells)
	o.all.Conditions = slices.DeleteFunc(slices.Clone(o.all.Conditions), tells)
	return o
}

// etcd is what the hold has to know of a protection, nil if nothing is known yet.
func etcd(p *protect.Protection) readiness.Presence {
	if p == nil {
		return readiness.Unknown
	}
	switch p.Membership {
	case protect.Holds:
		return readiness.Present
	case protect.HoldsNot:
		return readiness.Absent
	case protect.MembershipUnknown:
	}
	return readiness.Unknown
}

// changed returns annotations as they are once the changes are written.
func changed(annotations map[string]string, changes map[string]*string) map[string]string {
	after := maps.Clone(annotations)
	for key, value := range changes {
		switch {
		case value == nil:
			delete(after, key)
		case after == nil:
			after = map[string]string{key: *value}
		default:
			after[key] = *value
		}
	}
	return after
}

// longestMessage is the most, in bytes, that is said in a condition: a file or a server names things as it likes.
const longestMessage = 4096

// legible makes texts such that the API server stores them as they are: it replaces what is no UTF-8, and a text that
// comes back other than it was written would be written for ever.
func legible(d nodepatch.Desired) nodepatch.Desired {
	for key, value := range d.Annotations {
		if value != nil {
			valid := strings.ToValidUTF8(*value, "\uFFFD")
			d.Annotations[key] = &valid
		}
	}
	for i := range d.Conditions {
		message := strings.ToValidUTF8(d.Conditions[i].Message, "\uFFFD")
		if len(message) > longestMessage {
			message = strings.ToValidUTF8(message[:longestMessage], "") + "…"
		}
		d.Conditions[i].Message = message
	}
	return d
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
	return append(found, o.machineNews(before, after)...)
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
