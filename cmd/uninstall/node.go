package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// clean returns the writes that take everything off a Node that Holdfast has put there, and open it if Holdfast holds it.
// Stays says why a node that was held is left closed, if it is. What people write for Holdfast (the label by which a node is never held, keep-cordoned, break-glass) is theirs, and stays.
// An unreadable record ends nothing: the error says what to do by hand.
func clean(node *corev1.Node, now time.Time) (patches []nodepatch.Patch, stays string, err error) {
	d := nodepatch.Desired{Labels: map[string]*string{protect.EtcdMemberLabel: nil}, Annotations: map[string]*string{}}
	for _, key := range []string{
		readiness.HoldAnnotation, protect.AnnouncementAnnotation, protect.UnverifiedAnnotation, protect.BecauseAnnotation,
		protect.MarksAnnotation, spc.NodeAnnotation, spc.ProblemAnnotation, openstack.Annotation,
	} {
		d.Annotations[key] = nil
	}
	takeOff(d.Annotations, strings.Split(node.Annotations[protect.MarksAnnotation], ","))
	if stays, err = endHold(node, &d); err != nil {
		return nil, "", err
	}
	if text, found := node.Annotations[spc.NodeAnnotation]; found {
		var written struct {
			Labels []string `json:"labels"`
		}
		if err := json.Unmarshal([]byte(text), &written); err != nil {
			return nil, "", fmt.Errorf("reading annotation %s of node %s, which lists the labels to take off: %w; take off those of stackpoint.io/ that "+
				"are not yours, then: kubectl annotate node %s %s-", spc.NodeAnnotation, node.Name, err, node.Name, spc.NodeAnnotation)
		}
		for _, key := range written.Labels {
			if strings.HasPrefix(key, "stackpoint.io/") {
				d.Labels[key] = nil
			}
		}
	}
	patches, err = nodepatch.Plan(node, d, now)
	if err != nil {
		return nil, "", err
	}
	return append(patches, conditions(node)...), stays, nil
}

// endHold opens a node that Holdfast holds, by the record and by nothing else, unless somebody else wants it closed.
func endHold(node *corev1.Node, d *nodepatch.Desired) (stays string, err error) {
	text, found := node.Annotations[readiness.HoldAnnotation]
	if !found {
		return "", nil
	}
	record, err := readiness.ParseRecord(text)
	if err != nil {
		return "", fmt.Errorf("%w of node %s, so that nobody knows whose its cordon is; if it is to take pods: kubectl uncordon %s; then: "+
			"kubectl annotate node %s %s-", err, node.Name, node.Name, node.Name, readiness.HoldAnnotation)
	}
	takeOff(d.Annotations, record.Marks) // A hold that has ended may have left them.
	if record.State != readiness.Held {
		return "", nil
	}
	stays = readiness.Leave(node, record)
	switch {
	case stays != "":
	case record.Taint != "":
		d.RemoveTaints = []corev1.Taint{{Key: record.Taint, Effect: corev1.TaintEffectNoSchedule}}
	default:
		d.Unschedulable = new(false)
	}
	return stays, nil
}

// takeOff names annotations that are to go, of those that Holdfast may set for autoscalers.
func takeOff(annotations map[string]*string, keys []string) {
	for _, key := range keys {
		if slices.Contains([]string{protect.ClusterAutoscalerAnnotation, protect.KarpenterAnnotation, protect.EscalatorAnnotation, protect.CastAIAnnotation}, key) {
			annotations[key] = nil
		}
	}
}

// conditions returns the write that takes off the conditions of Holdfast, and NetworkUnavailable if the word is Holdfast's.
func conditions(node *corev1.Node) []nodepatch.Patch {
	var ours []map[string]string
	for _, c := range node.Status.Conditions {
		word := c.Type == corev1.NodeNetworkUnavailable && (c.Reason == readiness.HeldByHoldfast || c.Reason == readiness.ReleasedByHoldfast)
		if word || c.Type == readiness.NetworkHeld || c.Type == protect.EtcdMemberCondition {
			ours = append(ours, map[string]string{"type": string(c.Type), "$patch": "delete"})
		}
	}
	if len(ours) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"conditions": ours}})
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return []nodepatch.Patch{{Subresource: "status", Type: types.StrategicMergePatchType, Body: body}}
}
