package readiness

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

func TestEveryDecision(t *testing.T) {
	count := 0
	for c := range decisionCases() {
		count++
		d := Decide(c.node, c.facts, c.policy, noon())
		if err := c.checkDecision(d, writeAll(c.node, d)); err != nil {
			require.NoError(t, err, "%s\n%+v", c.name, d)
		}
	}
	t.Logf("%d decisions", count)
	require.Greater(t, count, 40_000, "the enumeration has lost a dimension")
}

// TestNoDecisionUncordonsDrainedNode: neither the agent nor the leader uncordons a held node that
// was drained in this boot, or of which the boot is not known.
func TestNoDecisionUncordonsDrainedNode(t *testing.T) {
	limits, count := releasingLimits(), 0
	for c := range decisionCases() {
		record, err := ParseRecord(c.node.Annotations[HoldAnnotation])
		if err != nil || record.State != Held || record.Taint != "" {
			continue // a drain does not rely on the hold
		}
		count++
		drained := func(boot string) *corev1.Node {
			record.Drained = &Drain{BootID: boot}
			n := clone(c.node)
			n.Annotations[HoldAnnotation] = record.Format()
			return n
		}
		reported := cmp.Or(c.node.Status.NodeInfo.BootID, record.BootID)
		late := HoldHistory{Age: limits.Hold}
		for name, d := range map[string]Decision{
			"agent":                Decide(drained(c.facts.BootID), c.facts, c.policy, noon()),
			"agent, unknown boot":  Decide(drained(""), c.facts, c.policy, noon()),
			"leader":               CheckHold(drained(reported), late, limits, noon()).Decision,
			"leader, unknown boot": CheckHold(drained(""), late, limits, noon()).Decision,
		} {
			if d.Unschedulable != nil && !*d.Unschedulable {
				require.Fail(t, "uncordons a drained node", "%s: %s\n%+v", name, c.name, d)
			}
		}
	}
	require.Greater(t, count, 1000, "the enumeration has lost a dimension")
}

// checkDecision checks the rules for every single decision.
func (c *decisionCase) checkDecision(d Decision, after *corev1.Node) error {
	cordonedBefore, taintedBefore := c.node.Spec.Unschedulable, hasTaint(c.node, holdTaint)
	cordonedAfter, taintedAfter := after.Spec.Unschedulable, hasTaint(after, holdTaint)
	uncordons, untaints := cordonedBefore && !cordonedAfter, taintedBefore && !taintedAfter
	opens, closes := uncordons || untaints, !cordonedBefore && cordonedAfter || !taintedBefore && taintedAfter
	before := FindCondition(c.node, corev1.NodeNetworkUnavailable)
	now := FindCondition(after, corev1.NodeNetworkUnavailable)
	wasTrue := before != nil && before.Status == corev1.ConditionTrue
	raises := now != nil && now.Status == corev1.ConditionTrue && !wasTrue
	lowers := wasTrue && now.Status != corev1.ConditionTrue
	isUndecided := d.Conditions[0].Status == corev1.ConditionUnknown
	acts := d.Record != nil || opens || lowers && !c.hasEnded() || raises || !isUndecided
	canClose := !c.open && !c.exempt && !c.isMismatch() && d.Record != nil && d.Record.State == Held && d.Held
	isRestored := before != nil && before.Reason == CiliumIsUp
	switch {
	case uncordons && !c.canOpen(), untaints && !c.canOpen() && !c.isOverridden() && !c.hasEnded():
		return fmt.Errorf("opens a node that must stay closed")
	case uncordons && c.isByTaint():
		return fmt.Errorf("uncordons a node that is held by taint")
	case untaints && !c.isByTaint() && c.policy.TaintKey == "":
		return fmt.Errorf("removes a taint that is neither the record's nor the policy's")
	case (c.unreadable || c.facts.BootID == "") && acts:
		return fmt.Errorf("acts on unreadable input")
	case closes && !canClose:
		return fmt.Errorf("closes a node without need or without a record")
	case d.Held && d.Record == nil && (c.record == nil || c.record.State != Held):
		return fmt.Errorf("reports a hold without a record")
	case lowers && before.Reason != HeldByHoldfast:
		return fmt.Errorf("clears another component's condition")
	case raises && (isRestored || c.open || !d.Held || !after.Spec.Unschedulable || recordReason(after) == Rebooted):
		return fmt.Errorf("sets NetworkUnavailable although it is not part of the hold")
	case d.Conditions[0].Type != NetworkHeld || d.Message == "" || d.Reason == "":
		return fmt.Errorf("has no explanation")
	case !hasTaint(after, "dedicated") || hasTaint(c.node, "medik8s.io/drain") != hasTaint(after, "medik8s.io/drain"):
		return fmt.Errorf("changes another component's taint")
	case after.Annotations[autoscaler.ClusterAutoscaler] != "true":
		return fmt.Errorf("changes another component's mark")
	}
	return c.checkMarks(after)
}

// checkMarks checks that exactly the marks that a hold has set are removed at its end.
func (c *decisionCase) checkMarks(after *corev1.Node) error {
	r, err := ParseRecord(after.Annotations[HoldAnnotation])
	for key := range autoscalerAnnotations() {
		_, there := after.Annotations[key]
		_, before := c.node.Annotations[key]
		listed := err == nil && slices.Contains(r.Marks, key)
		switch {
		case there && !before && !listed:
			return fmt.Errorf("sets %s without listing it in the record", key)
		case listed && (!there || key == autoscaler.ClusterAutoscaler):
			return fmt.Errorf("lists %s, which it has not set", key)
		case there && key == autoscaler.Karpenter && err == nil && r.State != Held:
			return fmt.Errorf("keeps %s after the hold", key)
		}
	}
	return nil
}

func recordReason(n *corev1.Node) RecordReason {
	r, err := ParseRecord(n.Annotations[HoldAnnotation])
	if err != nil {
		return ""
	}
	return r.Reason
}

// TestEveryDecisionSettles applies decisions in each case until nothing changes. The result
// must be the same if the node lifecycle controller writes between the two writes, and after a
// crash between them.
func TestEveryDecisionSettles(t *testing.T) {
	for c := range decisionCases() {
		if c.unknown || c.keep && c.exempt || c.marked && (c.keep || c.exempt) {
			continue // these settle like cases that are not skipped; TestEveryDecision has all
		}
		end, err := settle(c.node, c.facts, c.policy, unchanged)
		if err == nil {
			err = c.checkSettled(end)
		}
		if err != nil {
			require.NoError(t, err, c.name)
		}
		d := Decide(c.node, c.facts, c.policy, noon())
		if d.Record == nil {
			continue // at most one write
		}
		half, _ := write(c.node, d, unchanged)
		for how, run := range map[string]func() (*corev1.Node, error){
			"lifecycle controller between the writes": func() (*corev1.Node, error) {
				n, err := settle(c.node, c.facts, c.policy, updateTaints)
				updateTaints(n)
				return n, err
			},
			"crash between the writes": func() (*corev1.Node, error) { return settle(half, c.facts, c.policy, unchanged) },
		} {
			other, err := run()
			if err == nil {
				err = c.checkSettled(other)
			}
			if err != nil || other.Spec.Unschedulable != end.Spec.Unschedulable || recordReason(other) != recordReason(end) {
				require.NoError(t, err, "%s %s", c.name, how)
				require.Equal(t, end, other, "%s %s", c.name, how)
			}
		}
	}
}

// checkSettled checks the rules for a Node that no longer changes.
func (c *decisionCase) checkSettled(end *corev1.Node) error {
	r, err := ParseRecord(end.Annotations[HoldAnnotation])
	if err != nil {
		return nil
	}
	condition := FindCondition(end, corev1.NodeNetworkUnavailable)
	isTrue := condition != nil && condition.Status == corev1.ConditionTrue
	isByHoldfast := isTrue && condition.Reason == HeldByHoldfast
	if r.State != Held && isByHoldfast {
		return fmt.Errorf("leaves NetworkUnavailable in state %s", r.State)
	}
	if c.facts.BootID == "" {
		return nil
	}
	if c.isHeld() && !c.open && !c.exempt && (r.State != Held || !c.isClosed(end)) {
		return fmt.Errorf("releases a node with a closed gate")
	}
	if (c.canOpen() || c.isOverridden()) && c.policy.TaintKey != "" && hasTaint(end, holdTaint) {
		return fmt.Errorf("leaves the policy's taint")
	}
	if !c.canOpen() {
		return nil
	}
	switch {
	case r.State == Held, c.isClosed(end), isByHoldfast:
		return fmt.Errorf("strands the node in state %s", r.State)
	case !end.Spec.Unschedulable && hasTaint(end, corev1.TaintNodeUnschedulable):
		return fmt.Errorf("leaves the cordon's taint")
	case !isTrue && hasTaint(end, corev1.TaintNodeNetworkUnavailable):
		return fmt.Errorf("leaves the condition's taint")
	}
	return nil
}

// TestClockIndependence: the agent and the leader write the time, but do not decide by it.
func TestClockIndependence(t *testing.T) {
	limits := releasingLimits()
	for c := range decisionCases() {
		if c.keep || c.exempt || c.marked {
			continue
		}
		for how, decide := range map[string]func(now time.Time) Decision{
			"agent":  func(now time.Time) Decision { return Decide(c.node, c.facts, c.policy, now) },
			"leader": func(now time.Time) Decision { return CheckHold(c.node, ofAge(limits.Hold), limits, now).Decision },
		} {
			a, b := decide(noon()), decide(noon().AddDate(-50, 0, 0))
			for _, r := range []*Record{a.Record, b.Record} {
				if r != nil {
					r.Since = time.Time{}
				}
			}
			require.Equal(t, a, b, "%s: %s", how, c.name)
		}
	}
}
