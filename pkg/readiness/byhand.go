package readiness

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// KeepClosedReason returns why a held node has to stay closed when Holdfast is uninstalled,
// empty if the node has to be opened. It must be called only for a node that is held.
func KeepClosedReason(n *corev1.Node, r Record) (stays string) {
	e := holdEvaluation{node: n, record: r, recorded: true}
	if e.hasKeepCordoned() {
		return "annotation " + KeepCordonedAnnotation
	}
	if r.Taint != "" {
		return "" // The taint always belongs to Holdfast.
	}
	if by := CordonOwner(n); by != "" && n.Spec.Unschedulable {
		return "cordoned by " + by
	}
	return e.foreignMark()
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
	unavailable := findCondition(n, corev1.NodeNetworkUnavailable)
	byOthers := unavailable != nil && unavailable.Status == corev1.ConditionTrue && unavailable.Reason != HeldByHoldfast
	partOfHold := err == nil && record.isFirstHold() && record.Taint == "" && !byOthers
	return ManualRelease{
		Taint: record.Taint, NetworkAvailable: partOfHold || (holdEvaluation{node: n}).isUnavailableByHoldfast(),
	}
}

// Condition returns the condition to write if NetworkAvailable is true.
func (r ManualRelease) Condition() corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: ReleasedByHand,
		Message: "released by hand",
	}
}

// Commands returns the kubectl commands of the release.
func (r ManualRelease) Commands(node string) []string {
	if r.TaintGone {
		return []string{"kubectl describe node " + node}
	}
	commands := []string{"kubectl uncordon " + node}
	if r.Taint != "" {
		// The record may contain any text. The key of an existing taint was validated by the API
		// server and is safe in a shell.
		commands[0] = fmt.Sprintf("kubectl taint node %s %s:%s-", node, r.Taint, corev1.TaintEffectNoSchedule)
	}
	if c := r.Condition(); r.NetworkAvailable {
		commands = append(commands, fmt.Sprintf("kubectl patch node %s --subresource=status --type=strategic -p "+
			`'{"status":{"conditions":[{"type":"%s","status":"%s","reason":"%s","message":"%s"}]}}'`,
			node, c.Type, c.Status, c.Reason, c.Message))
	}
	return commands
}

// releaseAdvice returns the sentence about a release by hand, with the plugin of kubectl and
// without.
func releaseAdvice(n *corev1.Node) string {
	return fmt.Sprintf("To release the node by hand: `kubectl holdfast release %s`, or without the plugin: `%s`",
		n.Name, ReleaseCommand(n))
}

// ReleaseCommand returns the command line that releases a held node with kubectl alone.
func ReleaseCommand(n *corev1.Node) string {
	return strings.Join(PlanManualRelease(n).Commands(n.Name), " && ")
}
