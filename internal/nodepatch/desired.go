// Package nodepatch turns the desired state of a Node into patches, and writes them. It is the
// only writer of Nodes.
//
// Plan is pure. Its patches name nothing that Desired does not name, so that the keys of other
// writers stay exactly as they are.
package nodepatch

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Desired describes a Node. Everything that it does not name stays unchanged.
type Desired struct {
	// Labels and Annotations are set. A nil value removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable sets spec.unschedulable. If it is nil, the field stays unchanged.
	Unschedulable *bool
	// AddTaints are set, and RemoveTaints are removed. Taints match by key and effect. The list in
	// the API is atomic (listType=atomic), so that a write contains the taints of others too.
	AddTaints    []corev1.Taint
	RemoveTaints []corev1.Taint
	// Conditions are set, matched by type. The Writer sets LastTransitionTime and
	// LastHeartbeatTime.
	Conditions []corev1.NodeCondition
	// StatusFirst writes the conditions before the rest, as a hold needs. Otherwise they are
	// written after the rest, as a release needs.
	StatusFirst bool
	// Guarded adds the Node's resourceVersion to the write of the conditions if nothing else is
	// written. The leader needs it: it writes on behalf of an agent that may write at any moment.
	Guarded bool
}

// OfHold returns the Node that a decision about a hold describes. The record of the hold is part
// of the same write as the state that it records. The result shares no memory with the decision,
// so that the caller can add to its maps.
func OfHold(d readiness.Decision) Desired {
	wanted := Desired{
		Labels: map[string]*string{}, Annotations: map[string]*string{},
		Unschedulable: d.Unschedulable, AddTaints: slices.Clone(d.AddTaints), RemoveTaints: slices.Clone(d.RemoveTaints),
		Conditions: slices.Clone(d.Conditions), StatusFirst: d.StatusFirst,
	}
	maps.Copy(wanted.Annotations, d.Annotations)
	if d.Record != nil {
		record := d.Record.Format()
		wanted.Annotations[readiness.HoldAnnotation] = &record
	}
	return wanted
}
