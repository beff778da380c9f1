package departure

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Condition is the kind of a mark that is a condition of the Node with the status True. Each of
// these conditions has an owner who sets and clears it, so Holdfast writes none of them.
const Condition Kind = "condition"

// conditionRows returns the conditions by which Kubernetes 1.37 lets people and programs announce
// what happens to a node (core/v1, KEP-5683). Every API server stores conditions of any type, so
// they count on all versions. Drained may stay True until the maintenance is over.
func conditionRows() []markRow {
	row := func(kind corev1.NodeConditionType, says string) markRow {
		return markRow{class: ForAWhile, kind: Condition, key: string(kind), says: says}
	}
	return []markRow{
		row(corev1.NodeMaintenanceInProgress, "is under maintenance"),
		row(corev1.NodeDrainInProgress, "is being drained"),
		row(corev1.NodeDrained, "is drained"),
		row(corev1.NodeGracefulNodeShutdownInProgress, "is shutting down"),
	}
}

// onConditions completes the mark from the conditions with this status.
func (r markRow) onConditions(n *corev1.Node, m Mark, status corev1.ConditionStatus) Mark {
	for _, c := range n.Status.Conditions {
		if string(c.Type) == r.key && c.Status == status {
			m.Key, m.Reason = r.key, c.Reason
			if !c.LastTransitionTime.IsZero() {
				m.Since = c.LastTransitionTime.UTC()
			}
			return m
		}
	}
	return Mark{}
}

// Notice returns what a condition of the Node says without a mark: that it is not known whether the
// machine is away, or that maintenance is planned. Its class is None, so the member on the Node
// counts by its proofs. It is the zero value if there is nothing to say.
func (t Table) Notice(n *corev1.Node) Mark {
	unknown := Mark{Kind: Condition, Says: "may be away, because the status of its condition is Unknown"}
	for _, r := range slices.Concat(conditionRows(), t.added) {
		if m := r.onConditions(n, unknown, corev1.ConditionUnknown); r.kind == Condition && m.Key != "" {
			return m
		}
	}
	planned := markRow{key: string(corev1.NodeMaintenancePlanned)}
	return planned.onConditions(n, Mark{Kind: Condition, Says: "has maintenance planned"}, corev1.ConditionTrue)
}
