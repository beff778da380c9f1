package readiness

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestEveryDecision(t *testing.T) {
	count := 0
	for w := range worlds() {
		count++
		d := Decide(w.node, w.facts, w.policy, noon())
		_, after := write(w.node, d, func(*corev1.Node) {})
		if err := oneStep(w, d, after); err != nil {
			require.NoError(t, err, "%s\n%+v", w.name, d)
		}
	}
	t.Logf("%d decisions", count)
	require.Greater(t, count, 40_000, "the enumeration has lost a dimension")
}

// oneStep checks what must hold of every single decision.
func oneStep(w *world, d Decision, after *corev1.Node) error {
	closedBefore, taintedBefore := w.node.Spec.Unschedulable, hasTaint(w.node, holdTaint)
	closedAfter, taintedAfter := after.Spec.Unschedulable, hasTaint(after, holdTaint)
	uncordons, untaints := closedBefore && !closedAfter, taintedBefore && !taintedAfter
	opens := uncordons || untaints
	before, now := condition(w.node, corev1.NodeNetworkUnavailable), condition(after, corev1.NodeNetworkUnavailable)
	raised := now != nil && now.Status == corev1.ConditionTrue && (before == nil || before.Status != corev1.ConditionTrue)
	lowered := before != nil && before.Status == corev1.ConditionTrue && now.Status != corev1.ConditionTrue
	switch {
	case uncordons && !w.mayOpen(), untaints && !w.mayOpen() && !w.opened() && !w.unheld():
		return fmt.Errorf("opens a node that it may not open")
	case uncordons && w.byTaint():
		return fmt.Errorf("takes off a cordon although the hold is by taint")
	case untaints && !w.byTaint() && w.policy.TaintKey == "":
		return fmt.Errorf("takes off a taint that is neither the record's nor the policy's")
	case (w.unreadable || w.facts.BootID == "") && (d.Record != nil || opens || d.Conditions[0].Status != corev1.ConditionUnknown || lowered && !w.unheld() || raised):
		return fmt.Errorf("acts on what it could not read")
	case (!closedBefore && closedAfter || !taintedBefore && taintedAfter) && (w.open || w.exempt || w.misfit() || d.Record == nil || d.Record.State != Held || !d.Held):
		return fmt.Errorf("closes a node without need or without a record")
	case d.Held && d.Record == nil && (w.record == nil || w.record.State != Held):
		return fmt.Errorf("says held without a record")
	case lowered && before.Reason != HeldByHoldfast:
		return fmt.Errorf("clears somebody else's condition")
	case raised && (before != nil && before.Reason == CiliumIsUp || w.open || !d.Held || !after.Spec.Unschedulable || reasonAfter(after) == Rebooted):
		return fmt.Errorf("raises NetworkUnavailable where it is no part of the hold")
	case d.Conditions[0].Type != NetworkHeld || d.Message == "" || d.Reason == "":
		return fmt.Errorf("does not explain itself")
	case !hasTaint(after, "dedicated") || hasTaint(w.node, "medik8s.io/drain") != hasTaint(after, "medik8s.io/drain"):
		return fmt.Errorf("touches somebody else's taint")
	case after.Annotations[clusterAutoscalerAnnotation] != "true":
		return fmt.Errorf("touches somebody else's mark for autoscalers")
	}
	return marksFollow(w, after)
}

// marksFollow checks that the marks for autoscalers that a hold has set, and no others, come and go with it.
func marksFollow(w *world, after *corev1.Node) error {
	r, err := ParseRecord(after.Annotations[HoldAnnotation])
	for key := range scaleDownMarks() {
		_, there := after.Annotations[key]
		_, before := w.node.Annotations[key]
		listed := err == nil && slices.Contains(r.Marks, key)
		switch {
		case there && !before && !listed:
			return fmt.Errorf("sets %s without a record of it", key)
		case listed && (!there || key == clusterAutoscalerAnnotation):
			return fmt.Errorf("lists %s, which it has not set", key)
		case there && key == karpenterAnnotation && err == nil && r.State != Held:
			return fmt.Errorf("%s outlives the hold", key)
		}
	}
	return nil
}

func reasonAfter(n *corev1.Node) string {
	r, err := ParseRecord(n.Annotations[HoldAnnotation])
	if err != nil {
		return ""
	}
	return r.Reason
}

// TestEveryDecisionComesToRest runs each world to its end, also with the lifecycle controller busy between our two writes and
// after them, and also after a crash between them, which may not make a difference.
func TestEveryDecisionComesToRest(t *testing.T) {
	idle := func(*corev1.Node) {}
	for w := range worlds() {
		if w.unknown || w.keep && w.exempt || w.marked && (w.keep || w.exempt) {
			continue // these come to rest as those with a closed gate or with one of both; TestEveryDecision has them too
		}
		end, err := settle(w, w.node, idle)
		if err == nil {
			err = atRest(w, end)
		}
		if err != nil {
			require.NoError(t, err, w.name)
		}
		d := Decide(w.node, w.facts, w.policy, noon())
		if d.Record == nil {
			continue // one write at most
		}
		half, _ := write(w.node, d, idle)
		for how, run := range map[string]func() (*corev1.Node, error){
			"lifecycle controller between the writes": func() (*corev1.Node, error) {
				n, err := settle(w, w.node, lifecycle)
				lifecycle(n)
				return n, err
			},
			"crash between the writes": func() (*corev1.Node, error) { return settle(w, half, idle) },
		} {
			other, err := run()
			if err == nil {
				err = atRest(w, other)
			}
			if err != nil || other.Spec.Unschedulable != end.Spec.Unschedulable || reasonAfter(other) != reasonAfter(end) {
				require.NoError(t, err, "%s %s", w.name, how)
				require.Equal(t, end, other, "%s %s", w.name, how)
			}
		}
	}
}

// atRest checks what must hold when nothing is left to do.
func atRest(w *world, end *corev1.Node) error {
	r, err := ParseRecord(end.Annotations[HoldAnnotation])
	if err != nil {
		return nil
	}
	unavailable := condition(end, corev1.NodeNetworkUnavailable)
	ours := unavailable != nil && unavailable.Status == corev1.ConditionTrue && unavailable.Reason == HeldByHoldfast
	if r.State != Held && ours {
		return fmt.Errorf("our NetworkUnavailable stays behind in state %s", r.State)
	}
	if w.facts.BootID == "" {
		return nil
	}
	if w.held() && !w.open && !w.exempt && (r.State != Held || !w.shut(end)) {
		return fmt.Errorf("released with a closed gate")
	}
	if (w.mayOpen() || w.opened()) && w.policy.TaintKey != "" && hasTaint(end, holdTaint) {
		return fmt.Errorf("the policy's taint stays behind")
	}
	if !w.mayOpen() {
		return nil
	}
	switch {
	case r.State == Held, w.shut(end), ours:
		return fmt.Errorf("stranded in state %s", r.State)
	case !end.Spec.Unschedulable && hasTaint(end, corev1.TaintNodeUnschedulable):
		return fmt.Errorf("the cordon's taint stays behind")
	case (unavailable == nil || unavailable.Status != corev1.ConditionTrue) && hasTaint(end, corev1.TaintNodeNetworkUnavailable):
		return fmt.Errorf("the condition's taint stays behind")
	}
	return nil
}
