// Package nodepatch turns the desired state of a Node into patches, and writes them. It is the
// writer of Nodes for the agent, the hold watcher, and the commands `release`, `hold` and
// `uninstall`.
//
// Plan is pure. Its patches name nothing that Desired does not name, so that the keys of other
// writers stay exactly as they are.
package nodepatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Patch is one write to a Node.
type Patch struct {
	// Subresource is "status" or empty.
	Subresource string
	Type        types.PatchType
	Body        []byte
}

// Plan returns the writes that make the Node as desired, in their order. It returns nil if the
// Node is already as desired. It returns an error if it needs a patch of metadata or spec and the
// Node has no resourceVersion.
//
// Metadata and spec go into a JSON merge patch with the Node's resourceVersion: the cordon and
// the record that owns it belong together, and the list of taints is written whole. Conditions
// go into a strategic merge patch, which changes only the conditions that it names. Usually it has
// no resourceVersion, because the kubelet writes its own conditions every few seconds. It has one
// if Desired is Guarded, and if it sets NetworkUnavailable to True: some network plugins clear that
// condition once for each start, and a hold must not overwrite what it has not read. A condition
// with the same status, reason and message is not written again only for its heartbeat.
func Plan(node *corev1.Node, d Desired, now time.Time) ([]Patch, error) {
	object, err := objectPatch(node, d)
	if err != nil {
		return nil, fmt.Errorf("planning the patch of node %q: %w", node.Name, err)
	}
	status, err := statusPatch(node, d, now, len(object) == 0 || d.StatusFirst)
	if err != nil {
		return nil, fmt.Errorf("planning the status patch of node %q: %w", node.Name, err)
	}
	if d.StatusFirst {
		return append(status, object...), nil
	}
	return append(object, status...), nil
}

// objectPatch returns the write of everything except the conditions, or nil.
func objectPatch(node *corev1.Node, d Desired) ([]Patch, error) {
	metadata, spec := map[string]any{}, map[string]any{}
	if labels := changedKeys(node.Labels, d.Labels); len(labels) > 0 {
		metadata["labels"] = labels
	}
	if annotations := changedKeys(node.Annotations, d.Annotations); len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if d.Unschedulable != nil && *d.Unschedulable != node.Spec.Unschedulable {
		spec["unschedulable"] = *d.Unschedulable
	}
	taints := mergeTaints(node.Spec.Taints, d.AddTaints, d.RemoveTaints)
	isSame := func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }
	if !slices.EqualFunc(taints, node.Spec.Taints, isSame) {
		spec["taints"] = taints
	}
	if len(metadata) == 0 && len(spec) == 0 {
		return nil, nil
	}
	if node.ResourceVersion == "" {
		return nil, errors.New("the Node has no resourceVersion; it was not read from the API server")
	}
	metadata["resourceVersion"] = node.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return encode(Patch{Type: types.MergePatchType}, patch)
}

// statusPatch returns the write of the conditions that differ, or nil. It contains the Node's
// UID, so that it cannot change another Node of the same name. isFirst is set if nothing else is
// written before.
func statusPatch(node *corev1.Node, d Desired, now time.Time, isFirst bool) ([]Patch, error) {
	var conditions []any
	isGuarded := d.Guarded
	for _, c := range d.Conditions {
		before := readiness.FindCondition(node, c.Type)
		if before != nil && before.Status == c.Status && before.Reason == c.Reason && before.Message == c.Message {
			continue
		}
		c.LastHeartbeatTime = metav1.NewTime(now)
		c.LastTransitionTime = metav1.NewTime(now)
		if before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		conditions = append(conditions, c)
		isGuarded = isGuarded || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue
	}
	for _, kind := range d.RemoveConditions {
		if readiness.FindCondition(node, kind) != nil {
			conditions = append(conditions, map[string]any{"type": kind, "$patch": "delete"})
		}
	}
	if len(conditions) == 0 {
		return nil, nil
	}
	metadata := metav1.ObjectMeta{UID: node.UID}
	if isFirst && isGuarded {
		metadata.ResourceVersion = node.ResourceVersion
	}
	return encode(Patch{Subresource: "status", Type: types.StrategicMergePatchType}, map[string]any{
		"metadata": metadata, "status": map[string]any{"conditions": conditions},
	})
}

func encode(p Patch, content map[string]any) (patches []Patch, err error) {
	p.Body, err = json.Marshal(content)
	return []Patch{p}, err
}

// changedKeys returns the keys of wanted that differ from have. A nil value removes the key.
func changedKeys(have map[string]string, wanted map[string]*string) map[string]*string {
	changed := map[string]*string{}
	for key, value := range wanted {
		before, found := have[key]
		if (value == nil && found) || (value != nil && (!found || before != *value)) {
			changed[key] = value
		}
	}
	return changed
}

// mergeTaints sets the taints of add and removes those of remove. All others keep their value
// and their place. A taint that is both added and removed is added.
func mergeTaints(have, add, remove []corev1.Taint) []corev1.Taint {
	result := []corev1.Taint{}
	for _, t := range have {
		wanted := taintIndex(add, t)
		switch {
		case wanted >= 0 && add[wanted].Value != t.Value:
			result = append(result, add[wanted])
		case wanted >= 0 || taintIndex(remove, t) < 0:
			result = append(result, t)
		}
	}
	for _, t := range add {
		if taintIndex(result, t) < 0 {
			result = append(result, t)
		}
	}
	return result
}

// taintIndex finds a taint by key and effect, which together identify a taint.
func taintIndex(taints []corev1.Taint, t corev1.Taint) int {
	return slices.IndexFunc(taints, func(other corev1.Taint) bool { return t.MatchTaint(&other) })
}

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
	// Conditions are set, and RemoveConditions are removed, matched by type. The Writer sets
	// LastTransitionTime and LastHeartbeatTime.
	Conditions       []corev1.NodeCondition
	RemoveConditions []corev1.NodeConditionType
	// StatusFirst writes the conditions before the rest, as a hold needs. Otherwise they are
	// written after the rest, as a release needs.
	StatusFirst bool
	// Guarded adds the Node's resourceVersion to the write of the conditions if nothing else is
	// written before. The leader needs it: it writes on behalf of an agent that may write at any
	// moment.
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
