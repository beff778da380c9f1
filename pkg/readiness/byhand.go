package readiness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// KeepClosedReason returns why a held node has to stay closed when Holdfast is uninstalled,
// empty if the node has to be opened. It must be called only for a node that is held.
func KeepClosedReason(n *corev1.Node, r Record) (stays string) {
	if hasKeepCordoned(n) {
		return "annotation " + KeepCordonedAnnotation
	}
	if r.Taint != "" {
		return "" // The taint always belongs to Holdfast.
	}
	if by := CordonOwner(n); by != "" && n.Spec.Unschedulable {
		return "cordoned by " + by
	}
	return newLeaderEvaluation(n, r, time.Time{}).foreignMark()
}

// ReleasedByHand is the reason of NetworkUnavailable=False after a release by hand.
const ReleasedByHand = "ReleasedByHand"

// A ManualRelease is what opens a held node by hand: first the cordon or the taint is removed, and
// then the condition that would still keep pods away is written. A later agent treats it as an
// override.
type ManualRelease struct {
	// Taint is the key of the NoSchedule taint to remove. If it is empty, the node is uncordoned.
	Taint string
	// TaintGone is true if the taint of the hold is not on the node, so there is none to remove.
	TaintGone bool
	// NetworkAvailable is true if NetworkUnavailable=False has to be written.
	NetworkAvailable bool
}

// PlanManualRelease returns what opens a node that Holdfast holds. If the record cannot be parsed,
// the node counts as held by the cordon.
func PlanManualRelease(n *corev1.Node) ManualRelease {
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	if err == nil && record.Taint != "" && !hasTaint(n, record.Taint) {
		return ManualRelease{TaintGone: true}
	}
	unavailable := FindCondition(n, corev1.NodeNetworkUnavailable)
	byOthers := unavailable != nil && unavailable.Status == corev1.ConditionTrue && unavailable.Reason != HeldByHoldfast
	partOfHold := err == nil && record.isFirstHold() && record.Taint == "" && !byOthers
	return ManualRelease{Taint: record.Taint, NetworkAvailable: partOfHold || isUnavailableByHoldfast(n)}
}

// Condition returns the condition to write if NetworkAvailable is true.
func (r ManualRelease) Condition() corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReleasedByHand,
		Message: "released by hand",
	}
}

// OpenCommand returns the kubectl command that removes the taint or the cordon, empty if the taint
// is gone.
func (r ManualRelease) OpenCommand(node string) string {
	switch {
	case r.TaintGone:
		return ""
	case r.Taint == "":
		return "kubectl uncordon " + node
	}
	// The record may contain any text. The key of an existing taint was validated by the API
	// server and is safe in a shell.
	return fmt.Sprintf("kubectl taint node %s %s:%s-", node, r.Taint, corev1.TaintEffectNoSchedule)
}

// ConditionCommand returns the kubectl command that writes the condition, empty if none has to be
// written.
func (r ManualRelease) ConditionCommand(node string) string {
	if !r.NetworkAvailable {
		return ""
	}
	c := r.Condition()
	return fmt.Sprintf("kubectl patch node %s --subresource=status --type=strategic -p "+
		`'{"status":{"conditions":[{"type":"%s","status":"%s","reason":"%s","message":"%s"}]}}'`,
		node, c.Type, c.Status, c.Reason, c.Message)
}

// releaseAdvice returns the sentence about a release by hand, with the plugin of kubectl and
// without.
func releaseAdvice(n *corev1.Node) string {
	command := ReleaseCommand(n)
	if command == "" {
		return "The taint of the hold is not on the node, so there is nothing to release by hand"
	}
	return fmt.Sprintf("To release the node by hand: `kubectl holdfast release %s`, or without the plugin: `%s`",
		n.Name, command)
}

// ReleaseCommand returns the command line that releases a held node with kubectl alone. It is
// empty if the taint of the hold is not on the node: then the hold ends without a person.
func ReleaseCommand(n *corev1.Node) string {
	release := PlanManualRelease(n)
	commands := []string{release.OpenCommand(n.Name), release.ConditionCommand(n.Name)}
	return strings.Join(slices.DeleteFunc(commands, func(c string) bool { return c == "" }), " && ")
}
