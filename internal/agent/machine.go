package agent

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// record adds what follows from the inventory of SPC.
func (o *outcome) record(s situation) error {
	if !s.spc {
		return nil
	}
	match := s.inventory.Find(s.node)
	o.match = &match
	terms := spc.Terms{Now: s.now}
	if s.withholdGroup {
		terms.Withhold, terms.Protected = o.ungrouped()
	}
	report, err := spc.Reported(s.node, match, terms)
	if err != nil {
		return err
	}
	o.report = report
	maps.Copy(o.rest.Annotations, report.Annotations)
	maps.Copy(o.rest.Labels, report.Labels)
	return nil
}

// ungrouped says why the node gets no group, empty if it provably holds no etcd, and whether it provably does.
func (o *outcome) ungrouped() (why string, protected bool) {
	switch p := o.protection; {
	case p == nil, p.Membership == protect.MembershipUnknown:
		return "whether the node holds etcd is not known", false
	case p.Membership == protect.Holds:
		return "the node holds etcd", true
	}
	return "", false
}

// identify adds what the machine is called in the places that Magnum's autoscaler compares, where it runs on OpenStack.
func (o *outcome) identify(n *corev1.Node) error {
	if !openstack.Is(n.Spec.ProviderID) {
		return nil
	}
	identity := openstack.Identify(n.Spec.ProviderID, n.Status.NodeInfo.SystemUUID, n.Status.NodeInfo.MachineID)
	text, err := json.Marshal(identity)
	if err != nil {
		return fmt.Errorf("encoding the identifiers of the machine: %w", err)
	}
	value := string(text)
	o.openstack = identity
	o.rest.Annotations[openstack.Annotation] = &value
	return nil
}

// machineNews returns the events about the machine that follow from what a write changed on the Node.
func (o outcome) machineNews(before, after *corev1.Node) []event {
	var found []event
	changed := func(key string) bool {
		value := after.Annotations[key]
		return value != "" && value != before.Annotations[key]
	}
	if changed(spc.NodeAnnotation) && o.match != nil && o.match.Outcome == spc.Matched {
		found = append(found, event{kind: corev1.EventTypeNormal, reason: "SPCMatched", message: o.match.Message})
	}
	if changed(spc.ProblemAnnotation) && o.report.Problem != "" {
		found = append(found, event{kind: corev1.EventTypeWarning, reason: o.report.Reason, message: o.report.Problem})
	}
	if changed(openstack.Annotation) && !o.openstack.Agree {
		found = append(found, event{kind: corev1.EventTypeWarning, reason: "OpenStackIDsDiffer", message: o.openstack.Message})
	}
	return found
}
