package readiness

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// ByHold is the value of Closed.Cordon for a cordon that a hold has set, and may have left.
	ByHold = "Holdfast"
	// byUnknown is the value for a cordon whose field manager is not known.
	byUnknown = "an unknown client"
	// ReleasedByHand is the reason of NetworkUnavailable=False after a release by hand.
	ReleasedByHand = "ReleasedByHand"
)

// Closed is the state of the cordon and the taint that keep new pods away from a node, with their
// owners as far as the Node shows. All parts of Holdfast ask it, so that they agree.
type Closed struct {
	// Record is the zero value if the node has no record, or one that cannot be parsed.
	Record Record
	// Taint is the key of the record's taint, if it is on the node. A hold that has ended may have
	// left it.
	Taint string
	// Cordon names the client that cordoned the node: ByHold, PluginFieldManager, the field manager of
	// another client, or "an unknown client". It is empty if the node is not cordoned.
	Cordon string
	// Kept is whether KeepCordonedAnnotation asks to keep the node closed.
	Kept bool
	// Mark is why another program needs the node closed: it is deleting, draining or rebooting the
	// node, or its drain was allowed during the hold.
	Mark string

	node *corev1.Node
}

// ClosedBy returns the owners of a node's cordon and taint. If the record cannot be parsed, the
// owner of an anonymous cordon is not known, and the error has the commands that open the node.
func ClosedBy(n *corev1.Node) (Closed, error) {
	text, isRecorded := n.Annotations[HoldAnnotation]
	record, err := ParseRecord(text)
	c := closedBy(n, record)
	c.Mark = newLeaderEvaluation(n, record, time.Time{}).foreignMark()
	if isRecorded && err != nil {
		return c, fmt.Errorf("node %s: %w; it is not known who closed the node. To open it: kubectl uncordon %s; "+
			"then: kubectl annotate node %s %s-", n.Name, err, n.Name, n.Name, HoldAnnotation)
	}
	return c, nil
}

// closedBy returns ClosedBy without the mark. The record may be one that is about to be written.
//
// The cordon of a hold has no owner in managedFields. The record shows whose it is: that of a hold,
// or of its end with reason KeptCordoned.
func closedBy(n *corev1.Node, record Record) Closed {
	c := Closed{Record: record, Kept: hasKeepCordoned(n), node: n}
	if hasTaint(n, record.Taint) {
		c.Taint = record.Taint
	}
	if !n.Spec.Unschedulable {
		return c
	}
	anonymous := byUnknown
	if record.Taint == "" && (record.State == Held || record.Reason == KeptCordoned) {
		anonymous = ByHold
	}
	c.Cordon = cmp.Or(cordonOwner(n), anonymous)
	return c
}

// isInPlace reports whether the cordon or taint of the hold is on the node. A cordon that another
// client has set in its place does not count.
func (c Closed) isInPlace() bool { return c.Taint != "" || c.Cordon == ByHold }

// IsHeld reports whether the node is held according to its record, and closed: by the hold, or by
// another cordon in its place.
func (c Closed) IsHeld() bool {
	return c.Record.State == Held && (c.Taint != "" || c.Record.Taint == "" && c.Cordon != "")
}

// HasForeignCordon reports whether the node has a cordon, and neither a hold nor
// `kubectl holdfast hold` has set it.
func (c Closed) HasForeignCordon() bool {
	return c.Cordon != "" && c.Cordon != ByHold && c.Cordon != PluginFieldManager
}

// StaysBecause returns why a node that is held, or has the taint of a hold, stays closed when
// Holdfast is uninstalled. It is empty if the node is opened.
func (c Closed) StaysBecause() string {
	switch {
	case c.Kept:
		return "annotation " + KeepCordonedAnnotation
	case c.Taint != "":
		return "" // The taint always belongs to Holdfast.
	case c.Cordon != ByHold:
		return "cordoned by " + c.Cordon
	}
	return c.Mark
}

// Open returns what opens the node by hand: the end of what Holdfast and `kubectl holdfast hold`
// have set, and the condition that would still keep pods away. The cordon of another client stays.
// A later agent treats it as an override.
func (c Closed) Open() Decision {
	d := Decision{Annotations: map[string]*string{KeepCordonedAnnotation: nil}}
	if c.Taint != "" {
		d.RemoveTaints = []corev1.Taint{{Key: c.Taint, Effect: corev1.TaintEffectNoSchedule}}
	}
	if c.Cordon != "" && !c.HasForeignCordon() {
		d.Unschedulable = new(false)
	}
	unavailable := FindCondition(c.node, corev1.NodeNetworkUnavailable)
	isTrue := unavailable != nil && unavailable.Status == corev1.ConditionTrue
	partOfHold := c.Cordon == ByHold && c.Record.isFirstHold() && !isTrue
	if partOfHold || isUnavailableByHoldfast(c.node) {
		d.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReleasedByHand,
			Message: "released by hand",
		}}
	}
	return d
}

// Commands returns the kubectl commands that do the same as Open.
func (c Closed) Commands() []string {
	var commands []string
	d, name := c.Open(), c.node.Name
	for _, t := range d.RemoveTaints {
		commands = append(commands, fmt.Sprintf("kubectl taint node %s %s:%s-", name, t.Key, t.Effect))
	}
	if d.Unschedulable != nil {
		commands = append(commands, "kubectl uncordon "+name)
	}
	for _, n := range d.Conditions {
		commands = append(commands, fmt.Sprintf("kubectl patch node %s --subresource=status --type=strategic -p "+
			`'{"status":{"conditions":[{"type":"%s","status":"%s","reason":"%s","message":"%s"}]}}'`,
			name, n.Type, n.Status, n.Reason, n.Message))
	}
	if c.Kept {
		commands = append(commands, fmt.Sprintf("kubectl annotate node %s %s-", name, KeepCordonedAnnotation))
	}
	return commands
}

// ReleaseCommand returns the command line that releases a held node with kubectl alone. It is empty
// if the cordon or taint of the hold is gone: then the hold ends without a person.
func ReleaseCommand(n *corev1.Node) string {
	c, _ := ClosedBy(n) // without a record it is not held
	if c.Record.State != Held || !c.isInPlace() {
		return ""
	}
	return strings.Join(c.Commands(), " && ")
}

// releaseAdvice returns the sentence about a release by hand, with the plugin of kubectl and
// without.
func releaseAdvice(n *corev1.Node) string {
	return fmt.Sprintf("To release the node by hand: `kubectl holdfast release %s`, or without the plugin: `%s`",
		n.Name, ReleaseCommand(n))
}
