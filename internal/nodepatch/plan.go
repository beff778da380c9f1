package nodepatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// statusSubresource is where conditions are written.
const statusSubresource = "status"

// Patch is one write to a Node.
type Patch struct {
	// Subresource is "status" or empty.
	Subresource string
	Type        types.PatchType
	Body        []byte
}

// Plan returns the writes that make the Node as desired, in their order; nil if it is so already.
//
// Metadata and spec go in a JSON merge patch that carries the Node's resourceVersion: the cordon and the record that owns
// it belong together, and the list of taints is written whole. Conditions go in a strategic merge patch that carries none
// unless it is asked to, for it touches nothing but the conditions that it names, and the kubelet writes its own every few
// seconds. A condition whose status, reason and message stand already is not written again for its heartbeat.
func Plan(node *corev1.Node, d Desired, now time.Time) ([]Patch, error) {
	main, err := mainPatch(node, d)
	if err != nil {
		return nil, fmt.Errorf("planning patch of node %q: %w", node.Name, err)
	}
	status, err := statusPatch(node, d.Conditions, d.Guarded && len(main) == 0, now)
	if err != nil {
		return nil, fmt.Errorf("planning status patch of node %q: %w", node.Name, err)
	}
	if d.StatusFirst {
		return append(status, main...), nil
	}
	return append(main, status...), nil
}

// mainPatch returns the write of everything but the conditions, or nothing.
func mainPatch(node *corev1.Node, d Desired) ([]Patch, error) {
	metadata, spec := map[string]any{}, map[string]any{}
	if labels := changes(node.Labels, d.Labels); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if annotations := changes(node.Annotations, d.Annotations); len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if d.Unschedulable != nil && *d.Unschedulable != node.Spec.Unschedulable {
		spec["unschedulable"] = *d.Unschedulable
	}
	if taints := merged(node.Spec.Taints, d.AddTaints, d.RemoveTaints); !slices.EqualFunc(taints, node.Spec.Taints, equal) {
		spec["taints"] = taints
	}
	if len(metadata) == 0 && len(spec) == 0 {
		return nil, nil
	}
	if node.ResourceVersion == "" {
		return nil, errors.New("it has no resourceVersion, and so was not read from the API server")
	}
	metadata["resourceVersion"] = node.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return []Patch{{Type: types.MergePatchType, Body: body}}, nil
}

// statusPatch returns the write of the conditions that differ, or nothing. It carries the Node's UID, so that it cannot
// land on another Node of the same name.
func statusPatch(node *corev1.Node, wanted []corev1.NodeCondition, guarded bool, now time.Time) ([]Patch, error) {
	var changed []corev1.NodeCondition
	for _, c := range wanted {
		before := condition(node, c.Type)
		if before != nil && before.Status == c.Status && before.Reason == c.Reason && before.Message == c.Message {
			continue
		}
		c.LastHeartbeatTime = metav1.NewTime(now)
		c.LastTransitionTime = metav1.NewTime(now)
		if before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		changed = append(changed, c)
	}
	if len(changed) == 0 {
		return nil, nil
	}
	patch := map[string]any{"status": map[string]any{"conditions": changed}}
	metadata := map[string]any{}
	if node.UID != "" {
		metadata["uid"] = node.UID
	}
	if guarded {
		metadata["resourceVersion"] = node.ResourceVersion
	}
	if len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return []Patch{{Subresource: statusSubresource, Type: types.StrategicMergePatchType, Body: body}}, nil
}

// changes returns the keys of wanted that differ from have, nil for a key that is to go.
func changes(have map[string]string, wanted map[string]*string) map[string]*string {
	changed := map[string]*string{}
	for key, value := range wanted {
		before, found := have[key]
		if (value == nil && found) || (value != nil && (!found || before != *value)) {
			changed[key] = value
		}
	}
	return changed
}

// merged returns the taints with those of add set and those of remove taken off. All others stay as they are and where
// they are; a taint that is both added and removed is added.
func merged(have, add, remove []corev1.Taint) []corev1.Taint {
	result := []corev1.Taint{}
	for _, t := range have {
		wanted := indexOf(add, t)
		switch {
		case wanted >= 0 && add[wanted].Value != t.Value:
			result = append(result, add[wanted])
		case wanted >= 0 || indexOf(remove, t) < 0:
			result = append(result, t)
		}
	}
	for _, t := range add {
		if indexOf(result, t) < 0 {
			result = append(result, t)
		}
	}
	return result
}

// indexOf finds a taint by key and effect, which together are a taint's name.
func indexOf(taints []corev1.Taint, t corev1.Taint) int {
	return slices.IndexFunc(taints, func(other corev1.Taint) bool { return t.MatchTaint(&other) })
}

func equal(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}
