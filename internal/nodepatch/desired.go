// Package nodepatch turns what a Node should look like into patches, and is the only writer of Nodes.
//
// Plan is pure. It names nothing that Desired does not name, so that keys of others stay exactly as they are.
package nodepatch

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Desired is what the agent wants of its Node. Whatever it does not name is left alone.
type Desired struct {
	// Labels and Annotations to set; a nil value removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable sets spec.unschedulable; nil leaves it.
	Unschedulable *bool
	// AddTaints are set, RemoveTaints (matched by key and effect) taken off. The list in the API is atomic
	// (listType=atomic), so that both travel with the taints of others in one write.
	AddTaints    []corev1.Taint
	RemoveTaints []corev1.Taint
	// Conditions to set, matched by type. LastTransitionTime and LastHeartbeatTime are the writer's.
	Conditions []corev1.NodeCondition
	// StatusFirst writes the conditions before the rest (a hold), otherwise after it (a release).
	StatusFirst bool
	// Guarded writes the conditions under the Node's resourceVersion as well if nothing else is written with them. It is for
	// who speaks for somebody that may speak for himself any moment.
	Guarded bool
}

// OfHold is what a decision about a hold asks of the Node, the record in the same write as what it speaks for. It shares
// nothing with the decision, so that its maps may be added to.
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
