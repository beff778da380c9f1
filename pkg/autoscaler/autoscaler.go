// Package autoscaler has the annotations that ask autoscalers to leave a node alone. Holdfast sets
// them on a node that it holds (package readiness) and on a node with etcd (package protect). See
// docs/node-contract.md.
package autoscaler

import (
	"maps"
	"slices"
)

// The keys of the annotations, by autoscaler.
const (
	// ClusterAutoscaler is supported by cluster-autoscaler 0.6.1 and later, and only with the exact
	// value "true" (core/scaledown/eligibility/eligibility.go, HasNoScaleDownAnnotation).
	ClusterAutoscaler = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// Karpenter blocks voluntary disruption by Karpenter 0.32 and later (statenode.go).
	Karpenter = "karpenter.sh/do-not-disrupt"
	// Escalator is for Atlassian Escalator. Every value that is not empty counts, and is the reason.
	Escalator = "atlassian.com/no-delete"
	// CastAI is for CAST AI.
	CastAI = "autoscaling.cast.ai/removal-disabled"
)

// Annotations returns the annotations with their values. The reason is that of Escalator.
func Annotations(reason string) map[string]string {
	return map[string]string{
		ClusterAutoscaler: "true",
		Karpenter:         "true",
		Escalator:         reason,
		CastAI:            "true",
	}
}

// Keys returns the keys of the annotations, sorted.
func Keys() []string { return slices.Sorted(maps.Keys(Annotations(""))) }
