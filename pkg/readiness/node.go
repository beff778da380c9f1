package readiness

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// FieldManager is the name under which the agent's writes stand in a Node's managedFields.
const FieldManager = "holdfast-agent"

// cordonedBy names who set the cordon bit by itself, if anybody did: the owner of the field who is neither the agent nor
// wrote the record with it. Under a hold of ours that is somebody who opened the node and closed it again while no agent
// looked. What the born-held policy sets has no owner at all, and a cordon on top of a cordon writes nothing.
func cordonedBy(n *corev1.Node) string {
	type fields map[string]json.RawMessage
	for _, entry := range n.ManagedFields {
		if entry.Manager == FieldManager || entry.Subresource != "" || entry.FieldsV1 == nil ||
			!strings.Contains(entry.FieldsV1.GetRawString(), `"f:unschedulable"`) {
			continue
		}
		var owned struct {
			Spec     fields `json:"f:spec"`
			Metadata struct {
				Annotations fields `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue // the API server's own book-keeping, of a later format: no evidence
		}
		_, bit := owned.Spec["f:unschedulable"]
		if _, record := owned.Metadata.Annotations["f:"+HoldAnnotation]; bit && !record {
			return entry.Manager
		}
	}
	return ""
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// hasTaint says whether the node has a NoSchedule taint of this key.
func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Effect == corev1.TaintEffectNoSchedule
	})
}
