package readiness

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// FieldManager is the name of the agent in a Node's managedFields.
const FieldManager = "holdfast-agent"

// holdEvaluation contains the arguments of Decide and what follows directly from them. The methods
// have a copy of it: an assignment to e.record is a record to decide with, not that of the caller.
type holdEvaluation struct {
	node   *corev1.Node
	facts  Facts
	policy Policy
	now    time.Time
	// recorded is whether the node has a record. If the record could not be parsed, parseErr
	// is the reason and record is the zero value.
	record   Record
	recorded bool
	parseErr error
	gates    []Gate
	// shutdownCancelled is true if the node was closed for a shutdown of its host, and the
	// host stays up in the same boot. The node was already released in this boot, and one
	// release per boot is enough. Only the agent can know this.
	shutdownCancelled bool
	// shuttingDown is true if the host is shutting down, or was and logind has not reported
	// yet whether it still is.
	shuttingDown bool
}

func newEvaluation(n *corev1.Node, f Facts, p Policy, now time.Time) holdEvaluation {
	e := holdEvaluation{node: n, facts: f, policy: p, now: now}
	if value, found := n.Annotations[HoldAnnotation]; found {
		e.recorded = true
		e.record, e.parseErr = ParseRecord(value)
	}
	closedForIt := e.record.State == Held && e.record.Reason == GoingDown && e.record.BootID == f.BootID
	e.shutdownCancelled = closedForIt && f.StaysUp && f.SawShutdown
	e.shuttingDown = f.GoingDown || closedForIt && f.AwaitsLogind
	e.gates = e.evaluateGates()
	return e
}

func (e holdEvaluation) allGatesOpen() bool {
	return !slices.ContainsFunc(e.gates, func(g Gate) bool { return !g.Open })
}

// missing returns what the closed gates wait for, empty if all gates are open.
func (e holdEvaluation) missing() string {
	var missing []string
	for _, g := range e.gates {
		if !g.Open {
			missing = append(missing, g.Missing)
		}
	}
	return strings.Join(missing, "; ")
}

// waitReason returns the reason of the first closed gate.
func (e holdEvaluation) waitReason() string {
	for _, g := range e.gates {
		if !g.Open {
			return g.Reason
		}
	}
	return NotHeld
}

func (e holdEvaluation) isExempt() bool { return e.node.Labels[HoldLabel] == HoldNever }

func (e holdEvaluation) hasKeepCordoned() bool {
	_, found := e.node.Annotations[KeepCordonedAnnotation]
	return found
}

// taintKey returns the key of the taint that holds this node or would hold it, empty for the
// cordon. For an existing hold the record decides, even if the policy has changed: a record
// without a taint is a hold by cordon. The record also decides while the taint of an ended hold
// is still on the node (KeepCordonedAnnotation): the next hold takes it over, so that its end
// removes it.
func (e holdEvaluation) taintKey() string {
	if e.record.State == Held || hasTaint(e.node, e.record.Taint) {
		return e.record.Taint
	}
	return e.policy.TaintKey
}

// holdTaints returns the node's taints that belong to Holdfast: the record's taint, and any
// taint with the policy's key, which a kubelet or Karpenter may have set as a startup taint.
func (e holdEvaluation) holdTaints() []corev1.Taint {
	var taints []corev1.Taint
	for _, t := range e.node.Spec.Taints {
		owned := t.Key == e.record.Taint || t.Key == e.policy.TaintKey
		if t.Key != "" && t.Effect == corev1.TaintEffectNoSchedule && owned {
			taints = append(taints, corev1.Taint{Key: t.Key, Effect: t.Effect})
		}
	}
	return taints
}

// hasServed reports whether the node has been in service: its first hold has ended, or it was
// Ready before it had a record.
func (e holdEvaluation) hasServed() bool {
	if e.recorded {
		return !e.record.isFirstHold()
	}
	return wasReady(e.node) && len(e.holdTaints()) == 0
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
	latest := time.Time{}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		pressure := FindCondition(n, kind)
		if pressure == nil {
			return false
		}
		if at := pressure.LastTransitionTime.Time; at.After(latest) {
			latest = at
		}
	}
	return ready.LastTransitionTime.Sub(latest) > maxConditionSpread
}

// isCordonedByOthers reports whether another client has set what a new hold would set. A cordon
// has no owner, so without a hold it counts as another client's. The taint always belongs to
// Holdfast.
func (e holdEvaluation) isCordonedByOthers() bool {
	return e.taintKey() == "" && e.node.Spec.Unschedulable
}

// isHoldInPlace reports whether the cordon or taint that holds the node, or would hold it, is in
// place. During a hold, a cordon that another client has set does not count.
func (e holdEvaluation) isHoldInPlace() bool {
	if key := e.taintKey(); key != "" {
		return hasTaint(e.node, key)
	}
	return e.node.Spec.Unschedulable && (e.record.State != Held || CordonOwner(e.node) == "")
}

// foreignMark returns the mark of another component that is deleting, draining or rebooting
// the node, empty if there is none.
func (e holdEvaluation) foreignMark() string {
	if e.node.DeletionTimestamp != nil {
		return "the Node is being deleted"
	}
	if m := departure.OfOthers(e.node); m.Class != departure.None {
		return m.String()
	}
	return e.drainMark()
}

// drainMark returns the drain that relies on the cordon of the hold, or why it is not known whether
// there is one. It is empty if there is none.
func (e holdEvaluation) drainMark() string {
	switch {
	case e.record.State != Held || e.record.Taint != "":
	case e.facts.AwaitsGrants:
		return "the EtcdClusters, which name drained nodes, have not been read"
	case e.isDrained():
		return fmt.Sprintf("a drain of the node was allowed at %s; when it is over, or was given up: `kubectl uncordon %s`",
			e.facts.Drained.UTC().Format(time.RFC3339), e.node.Name)
	}
	return ""
}

// isDrained reports whether the node was drained during this hold and has not restarted since.
// `kubectl drain` writes nothing to a node that is cordoned already, so the drain relies on the
// cordon of the hold. Without it, the node would look as if the drain were over, and its member
// would count again although its machine is about to restart.
func (e holdEvaluation) isDrained() bool {
	d := e.facts.Drained
	return !d.IsZero() && !d.Before(e.record.Since) && !d.Before(e.facts.BootTime)
}

// newRecord returns a record of a state that is entered now, in this boot.
func (e holdEvaluation) newRecord(state State, reason string) *Record {
	return &Record{
		State: state, BootID: e.facts.BootID, Since: e.now.UTC().Truncate(time.Second), Reason: reason,
		Stamps: e.currentStamps(), Marks: e.ownedAutoscalerAnnotations(),
	}
}

// setAutoscalerAnnotations returns the autoscaler annotations that are not set yet. It lists them
// in the record, so that exactly these are removed at the end of the hold.
func (e holdEvaluation) setAutoscalerAnnotations(r *Record) map[string]*string {
	values, owned := autoscalerAnnotations(), r.Marks
	set := map[string]*string{}
	r.Marks = nil
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, exists := e.node.Annotations[key]
		if !exists {
			set[key] = new(values[key])
		}
		if !exists || slices.Contains(owned, key) {
			r.Marks = append(r.Marks, key)
		}
	}
	return set
}

// ownedAutoscalerAnnotations returns those that belong only to the hold. Those that protect an etcd
// member are not among them.
func (e holdEvaluation) ownedAutoscalerAnnotations() []string {
	ofMember := strings.Split(e.node.Annotations[etcdMarksAnnotation], ",")
	return slices.DeleteFunc(e.record.ownedAutoscalerAnnotations(e.node.Annotations), func(key string) bool {
		return slices.Contains(ofMember, key)
	})
}

// clearAutoscalerAnnotations returns those to remove and those that stay in the record. Unless etcd
// is known to be absent, all stay, until that is known or until they protect a member.
func (e holdEvaluation) clearAutoscalerAnnotations() (gone map[string]*string, left []string) {
	gone = map[string]*string{}
	if e.facts.Etcd != Absent {
		return gone, e.ownedAutoscalerAnnotations()
	}
	for _, key := range e.ownedAutoscalerAnnotations() {
		gone[key] = nil
	}
	return gone, nil
}

// isUnavailableByHoldfast reports whether Holdfast has set NetworkUnavailable to True.
func (e holdEvaluation) isUnavailableByHoldfast() bool {
	c := FindCondition(e.node, corev1.NodeNetworkUnavailable)
	return c != nil && c.Status == corev1.ConditionTrue && c.Reason == HeldByHoldfast
}

// leftoverTaints returns the taints that the node lifecycle controller derived from the hold
// and would remove only later. Pods are not scheduled before that. A taint is not included if
// another component still has a reason for it.
func (e holdEvaluation) leftoverTaints(uncordoned bool) []corev1.Taint {
	var taints []corev1.Taint
	unavailable := FindCondition(e.node, corev1.NodeNetworkUnavailable)
	for _, t := range e.node.Spec.Taints {
		if t.Effect != corev1.TaintEffectNoSchedule {
			continue
		}
		switch t.Key {
		case corev1.TaintNodeUnschedulable:
			if uncordoned {
				taints = append(taints, t)
			}
		case corev1.TaintNodeNetworkUnavailable:
			if unavailable == nil || unavailable.Status == corev1.ConditionFalse || e.isUnavailableByHoldfast() {
				taints = append(taints, t)
			}
		}
	}
	return taints
}

// mergedManagers is the manager to which the API server assigns the oldest entries of an object
// that has more than ten (capManagersManager of k8s.io/apimachinery/pkg/util/managedfields).
const mergedManagers = "ancient-changes"

// CordonOwner returns the field manager that set the cordon without the record, or "" if none is
// known. It never returns the agent. There is none if the born-held policy set the cordon, if the
// client cordoned a cordoned node (which writes nothing), or if the API server merged its entry.
// During a hold, an owner means that this client uncordoned the node and cordoned it again between
// two passes of the agent.
func CordonOwner(n *corev1.Node) string {
	type fields map[string]json.RawMessage
	for _, entry := range n.ManagedFields {
		if entry.Manager == FieldManager || entry.Manager == mergedManagers || entry.Subresource != "" ||
			entry.FieldsV1 == nil || !strings.Contains(entry.FieldsV1.GetRawString(), `"f:unschedulable"`) {
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
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	e := holdEvaluation{node: n, record: record, recorded: true}
	return err == nil && record.State == Held && record.Taint == "" && e.isHoldInPlace() && !e.hasKeepCordoned()
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

// hasTaint reports whether the node has a NoSchedule taint with this key.
func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == key && t.Effect == corev1.TaintEffectNoSchedule
	})
}
