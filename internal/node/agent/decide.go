package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// nodeInputs is everything that one decision about the Node depends on.
type nodeInputs struct {
	node   *corev1.Node
	facts  readiness.Facts
	policy readiness.Policy
	// evidence is nil before the first scan of the host. Then the decision does not cover etcd.
	evidence *evidence.Scan
	known    presence.Inputs
	// hasSPC reports whether there is an inventory. The inventory is nil until it is read.
	hasSPC    bool
	inventory *spc.Index
	// withholdGroup keeps the label with the SPC group off a node that holds etcd, or may.
	withholdGroup bool
	now           time.Time
}

// nodeDecision is what follows from nodeInputs. Each part contains its explanation.
type nodeDecision struct {
	hold       readiness.Decision
	protection *presence.Protection
	match      *spc.Match
	report     spc.Report
	openstack  openstack.Identity
	// urgent is the hold, rest is the protection, machine is which machine the node is, and all is the
	// three.
	urgent, rest, machine, all nodepatch.Desired
}

func decide(in nodeInputs) (nodeDecision, error) {
	var d nodeDecision
	if in.evidence != nil {
		p := presence.Assess(*in.evidence, in.known)
		d.protection = &p
	}
	in.facts.Etcd = etcdPresence(d.protection)
	d.hold = readiness.Decide(in.node, in.facts, in.policy, in.now)
	d.urgent = nodepatch.OfHold(d.hold)
	sanitize(&d.urgent)
	d.rest = nodepatch.Desired{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	d.machine = nodepatch.Desired{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	if d.protection != nil {
		d.addProtection(in)
	}
	d.addShutdown(in)
	d.addOpenStackIdentity(in.node)
	err := d.addSPC(in)
	d.all = d.urgent
	d.all.Annotations, d.all.Labels = maps.Clone(d.urgent.Annotations), maps.Clone(d.urgent.Labels)
	for _, part := range []*nodepatch.Desired{&d.rest, &d.machine} {
		sanitize(part)
		maps.Copy(d.all.Annotations, part.Annotations)
		maps.Copy(d.all.Labels, part.Labels)
	}
	d.all.Conditions = slices.Concat(d.urgent.Conditions, d.rest.Conditions)
	return d, err
}

func (d *nodeDecision) addProtection(in nodeInputs) {
	p := *d.protection
	// The annotations after the write of the hold show which autoscaler annotations still belong to
	// the hold.
	left := withChanges(in.node.Annotations, d.urgent.Annotations)
	d.rest.Annotations, d.rest.Labels = presence.Marks(p, left, in.node.Labels, readiness.OwnedAutoscalerAnnotations(left))
	permission, err := quorum.ParseBreakGlass(in.node.Annotations[quorum.BreakGlassAnnotation], in.node.UID, in.now)
	if err == nil && d.rest.Labels[observation.EtcdMemberLabel] != nil {
		// An administrator has removed the label, because the webhook does not answer. Until the
		// permission expires, the agent must not set the label again.
		delete(d.rest.Labels, observation.EtcdMemberLabel)
		p.Message += fmt.Sprintf("; break-glass override in effect until %s: the Node has no label %s (annotation %s: %s)",
			permission.Until.UTC().Format(time.RFC3339), observation.EtcdMemberLabel, quorum.BreakGlassAnnotation,
			permission.Reason)
	}
	d.rest.Conditions = append(d.rest.Conditions, memberCondition(p))
}

// addShutdown announces the shutdown of a host that may hold etcd, so that no other etcd node is
// deleted meanwhile. It removes the announcement when the host is up again or stays up.
func (d *nodeDecision) addShutdown(in nodeInputs) {
	current := in.node.Annotations[departure.ShutdownAnnotation]
	value := departure.AnnounceShutdown(current, departure.Host{
		BootID: in.facts.BootID, GoingDown: in.facts.GoingDown, AwaitsLogind: in.facts.AwaitsLogind,
		HasEtcd: in.facts.Etcd != readiness.Absent,
	}, in.now)
	switch value {
	case current:
	case "":
		d.rest.Annotations[departure.ShutdownAnnotation] = nil
	default:
		d.rest.Annotations[departure.ShutdownAnnotation] = &value
	}
}

func (d *nodeDecision) addSPC(in nodeInputs) error {
	if !in.hasSPC {
		return nil
	}
	_, isReported := in.node.Annotations[spc.NodeAnnotation]
	if isReported && in.withholdGroup && d.protection == nil {
		return nil // what an earlier agent has reported stays until this one has searched for etcd
	}
	match := in.inventory.Find(in.node)
	d.match = &match
	terms := spc.Terms{Now: in.now}
	if in.withholdGroup {
		terms.Withhold, terms.Protected = d.withholdReason()
	}
	report, err := spc.NewReport(in.node, match, terms)
	if err != nil {
		return err
	}
	d.report = report
	maps.Copy(d.machine.Annotations, report.Annotations)
	for key, value := range report.Labels {
		part := &d.machine
		if value == nil {
			part = &d.rest // the removal of the group protects a member
		}
		part.Labels[key] = value
	}
	return nil
}

// withholdReason explains why the node gets no group, and returns whether the node provably
// holds etcd. The explanation is empty if the node provably holds no etcd.
func (d *nodeDecision) withholdReason() (reason string, protected bool) {
	switch p := d.protection; {
	case p == nil, p.Membership == presence.MembershipUnknown:
		return "it is not known whether the node holds etcd", false
	case p.Membership == presence.MemberPresent:
		return "the node holds etcd", true
	}
	return "", false
}

// addOpenStackIdentity adds the identifiers of the machine that Magnum's autoscaler compares.
// They exist only on OpenStack.
func (d *nodeDecision) addOpenStackIdentity(n *corev1.Node) {
	if !openstack.IsProviderID(n.Spec.ProviderID) {
		return
	}
	d.openstack = openstack.Identify(n.Spec.ProviderID, n.Status.NodeInfo.SystemUUID, n.Status.NodeInfo.MachineID)
	text, _ := json.Marshal(d.openstack) // texts can be encoded
	d.machine.Annotations[openstack.Annotation] = new(string(text))
}

// withoutHoldCondition returns the decision without the condition that only explains the hold.
func (d nodeDecision) withoutHoldCondition() nodeDecision {
	explains := func(c corev1.NodeCondition) bool { return c.Type == readiness.NetworkHeld }
	d.urgent.Conditions = slices.DeleteFunc(slices.Clone(d.urgent.Conditions), explains)
	d.all.Conditions = slices.DeleteFunc(slices.Clone(d.all.Conditions), explains)
	return d
}

// etcdPresence returns what the decision about the hold needs to know about etcd. The
// protection is nil if nothing is known yet.
func etcdPresence(p *presence.Protection) readiness.Presence {
	if p == nil {
		return readiness.Unknown
	}
	known := map[presence.Membership]readiness.Presence{
		presence.MemberPresent: readiness.Present, presence.MemberAbsent: readiness.Absent,
	}
	return known[p.Membership]
}

func withChanges(annotations map[string]string, changes map[string]*string) map[string]string {
	after := map[string]string{}
	maps.Copy(after, annotations)
	for key, value := range changes {
		if value == nil {
			delete(after, key)
		} else {
			after[key] = *value
		}
	}
	return after
}

// maxMessageBytes limits the message of a condition. Names of files and texts of servers, which
// have any length, can be part of it.
const maxMessageBytes = 4096

// sanitize replaces what is not printable and shortens long messages, so that the API server stores
// each text unchanged. Otherwise the agent would write the same text in every pass.
func sanitize(d *nodepatch.Desired) {
	for key, value := range d.Annotations {
		if value != nil {
			d.Annotations[key] = new(printable.Text(*value))
		}
	}
	for i := range d.Conditions {
		d.Conditions[i].Message = printable.Clip(d.Conditions[i].Message, maxMessageBytes)
	}
}

func memberCondition(p presence.Protection) corev1.NodeCondition {
	known := map[presence.Membership]corev1.ConditionStatus{
		presence.MemberPresent: corev1.ConditionTrue, presence.MemberAbsent: corev1.ConditionFalse,
	}
	return corev1.NodeCondition{
		Type: observation.EtcdMemberCondition, Status: cmp.Or(known[p.Membership], corev1.ConditionUnknown),
		Reason: p.Reason, Message: p.Message,
	}
}

// events returns the events that follow from the decision, and from what its write changed on
// the Node. It compares two versions of the Node instead of using a memory, so that a restart
// of the agent repeats no event.
func (d nodeDecision) events(before, after *corev1.Node) []readiness.Event {
	var found []readiness.Event
	if e := d.hold.Event; e != nil && d.isHoldWritten(after) {
		found = append(found, *e)
	}
	was, is := observation.IsLabelled(before), observation.IsLabelled(after)
	switch p := d.protection; {
	case p == nil || was == is:
	case is && condition(before, observation.EtcdMemberCondition).Status != corev1.ConditionTrue:
		// If the condition was true, the label was removed by hand, and is only restored here.
		found = append(found, newEvent(corev1.EventTypeNormal, "EtcdMemberFound", p.FoundMessage()))
	case was:
		found = append(found, newEvent(corev1.EventTypeNormal, "EtcdMemberGone", p.Message))
	}
	if p := d.protection; p != nil && p.ProviderIDProblem != "" {
		hasProblem := func(n *corev1.Node) bool {
			return strings.Contains(condition(n, observation.EtcdMemberCondition).Message, p.ProviderIDProblem)
		}
		if hasProblem(after) && !hasProblem(before) {
			found = append(found, newEvent(corev1.EventTypeWarning, "ProviderIDUnusable", p.ProviderIDProblem))
		}
	}
	return append(found, d.spcAndOpenStackEvents(before, after)...)
}

// isHoldWritten reports whether the Node has the record of the decision, or its condition if there
// is no record. A policy or another webhook may have refused it.
func (d nodeDecision) isHoldWritten(n *corev1.Node) bool {
	if record := d.urgent.Annotations[readiness.HoldAnnotation]; record != nil {
		return n.Annotations[readiness.HoldAnnotation] == *record
	}
	return condition(n, readiness.NetworkHeld).Reason == d.hold.Reason
}

func (d nodeDecision) spcAndOpenStackEvents(before, after *corev1.Node) []readiness.Event {
	var found []readiness.Event
	changed := func(key string) bool {
		value := after.Annotations[key]
		return value != "" && value != before.Annotations[key]
	}
	if changed(spc.NodeAnnotation) && d.match != nil && d.match.Outcome == spc.Matched {
		found = append(found, newEvent(corev1.EventTypeNormal, "SPCMatched", d.match.Message))
	}
	if changed(spc.ProblemAnnotation) && d.report.Problem != "" {
		found = append(found, newEvent(corev1.EventTypeWarning, d.report.Reason, d.report.Problem))
	}
	if changed(openstack.Annotation) && !d.openstack.Agree {
		found = append(found, newEvent(corev1.EventTypeWarning, "OpenStackIDsDiffer", d.openstack.Message))
	}
	return found
}

func newEvent(kind, reason, message string) readiness.Event {
	return readiness.Event{Type: kind, Reason: reason, Message: message}
}

// condition returns the condition of this type, or an empty one.
func condition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	if c := readiness.FindCondition(n, of); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}
