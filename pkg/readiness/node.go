package readiness

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// Names in a Node's managedFields.
const (
	// FieldManager is the name of the agent.
	FieldManager = "holdfast-agent"
	// PluginFieldManager is the name of the commands of `kubectl holdfast`, by which `release` knows
	// the cordon of `hold`.
	PluginFieldManager = "kubectl-holdfast"
)

func isExempt(n *corev1.Node) bool { return n.Labels[HoldLabel] == HoldNever }

func hasKeepCordoned(n *corev1.Node) bool {
	_, found := n.Annotations[KeepCordonedAnnotation]
	return found
}

// markOfOthers returns the mark of another component that is deleting, draining or rebooting the
// node, empty if there is none.
func markOfOthers(n *corev1.Node) string {
	if n.DeletionTimestamp != nil {
		return "the Node is being deleted"
	}
	if m := departure.OfOthers(n); m.Class != departure.None {
		return m.String()
	}
	return ""
}

// IsByHoldfast reports whether Holdfast has written a condition NetworkUnavailable.
func IsByHoldfast(c *corev1.NodeCondition) bool {
	return c.Type == corev1.NodeNetworkUnavailable &&
		(c.Reason == HeldByHoldfast || c.Reason == ReleasedByHoldfast || c.Reason == ReleasedByHand)
}

// isUnavailableByHoldfast reports whether Holdfast has set NetworkUnavailable to True. Only then
// does it write this reason.
func isUnavailableByHoldfast(n *corev1.Node) bool {
	c := FindCondition(n, corev1.NodeNetworkUnavailable)
	return c != nil && c.Reason == HeldByHoldfast
}

// hasUnfinishedRelease reports whether a condition still reports a hold. If the hold has ended by
// the record, the second write of the release is missing.
func hasUnfinishedRelease(n *corev1.Node) bool {
	c := FindCondition(n, NetworkHeld)
	return isUnavailableByHoldfast(n) || c != nil && c.Status == corev1.ConditionTrue
}

// isUnreachable reports whether the kubelet has stopped reporting (node lifecycle controller,
// NodeStatusUnknown).
func isUnreachable(n *corev1.Node) bool {
	ready := FindCondition(n, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionUnknown
}

// maxConditionSpread is far more than the time in which a kubelet evaluates all conditions of its
// node (pkg/kubelet/nodestatus of Kubernetes).
const maxConditionSpread = 10 * time.Second

// wasReady reports whether the node is Ready, or provably was. A kubelet that registers its node,
// or comes back after the node lifecycle controller set all conditions to Unknown, sets Ready
// together with the others. If Ready became False later than all of them, it was True before.
func wasReady(n *corev1.Node) bool {
	ready := FindCondition(n, corev1.NodeReady)
	if ready == nil || ready.Status != corev1.ConditionFalse {
		return ready != nil && ready.Status == corev1.ConditionTrue
	}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		pressure := FindCondition(n, kind)
		if pressure == nil || ready.LastTransitionTime.Sub(pressure.LastTransitionTime.Time) <= maxConditionSpread {
			return false
		}
	}
	return true
}

// mergedManagers is the manager to which the API server assigns the oldest entries of an object
// that has more than ten (capManagersManager of k8s.io/apimachinery/pkg/util/managedfields).
const mergedManagers = "ancient-changes"

// cordonOwner returns the field manager that set the cordon without the record, or "" if none is
// known. It never returns the agent. There is none if the born-held policy set the cordon, if the
// client cordoned a cordoned node (which writes nothing), or if the API server merged its entry.
// During a hold, an owner means that this client uncordoned the node and cordoned it again between
// two passes of the agent.
func cordonOwner(n *corev1.Node) string {
	type fields map[string]json.RawMessage
	for _, entry := range n.ManagedFields {
		if entry.Manager == FieldManager || entry.Manager == mergedManagers || entry.Subresource != "" ||
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
			continue // a later format of managedFields proves nothing
		}
		_, bit := owned.Spec["f:unschedulable"]
		if _, record := owned.Metadata.Annotations["f:"+HoldAnnotation]; bit && !record {
			return entry.Manager
		}
	}
	return ""
}

// IsCordonOfHold reports whether only a hold of Holdfast cordons the node.
func IsCordonOfHold(n *corev1.Node) bool {
	c, _ := ClosedBy(n) // without a record it is not held
	return c.Record.State == Held && c.Cordon == ByHold && !c.Kept
}

// FindCondition returns the condition of this type, or nil.
func FindCondition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// taintsOf returns the node's NoSchedule taints with these keys. It has none with the empty key,
// because the API server admits none.
func taintsOf(n *corev1.Node, keys ...string) []corev1.Taint {
	var found []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule && slices.Contains(keys, t.Key) {
			found = append(found, corev1.Taint{Key: t.Key, Effect: t.Effect})
		}
	}
	return found
}

func hasTaint(n *corev1.Node, key string) bool { return len(taintsOf(n, key)) > 0 }
