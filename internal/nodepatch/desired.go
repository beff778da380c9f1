// Package nodepatch turns what a Node should look like into patches, and is the only writer of Nodes.
//
// Plan is pure. It names nothing that Desired does not name, so that keys of others stay exactly as they are.
package nodepatch

import corev1 "k8s.io/api/core/v1"

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
