package readiness

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// holdEvaluation contains the arguments of Decide or CheckHold and what follows directly from them.
// newEvaluation and newLeaderEvaluation make it. The methods have a copy of it: an assignment to
// e.record is a record to decide with, not that of the caller.
type holdEvaluation struct {
	node   *corev1.Node
	facts  Facts
	policy Policy
	now    time.Time
	// record is the zero value if the node has none, or if it could not be parsed: then parseErr is
	// the reason.
	record   Record
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
		e.record, e.parseErr = ParseRecord(value)
	}
	closedForIt := e.record.Reason == GoingDown && e.record.BootID == f.BootID
	e.shutdownCancelled = closedForIt && f.StaysUp && f.SawShutdown
	e.shuttingDown = f.GoingDown || closedForIt && f.AwaitsLogind
	e.gates = e.evaluateGates()
	return e
}

func (e holdEvaluation) closedGates() []Gate {
	return slices.DeleteFunc(slices.Clone(e.gates), func(g Gate) bool { return g.Open })
}

func (e holdEvaluation) allGatesOpen() bool { return len(e.closedGates()) == 0 }

// missing returns what the closed gates wait for, empty if all gates are open.
func (e holdEvaluation) missing() string {
	return printable.Join(e.closedGates(), "; ", func(g Gate) string { return g.Missing })
}

// taintKey returns the key of the taint of a new hold, empty for the cordon. While the taint of an
// ended hold is still on the node (KeepCordonedAnnotation), the new hold takes it over, so that its
// end removes it.
func (e holdEvaluation) taintKey() string {
	if hasTaint(e.node, e.record.Taint) {
		return e.record.Taint
	}
	return e.policy.TaintKey
}

// holdTaints returns the node's taints that belong to Holdfast: the record's taint, and any
// taint with the policy's key, which a kubelet or Karpenter may have set as a startup taint.
func (e holdEvaluation) holdTaints() []corev1.Taint {
	return taintsOf(e.node, e.record.Taint, e.policy.TaintKey)
}

// hasServed reports whether the node has been in service: its first hold has ended, or it was
// Ready before it had a record.
func (e holdEvaluation) hasServed() bool {
	if e.record.State == "" {
		return wasReady(e.node) && len(e.holdTaints()) == 0
	}
	return !e.record.isFirstHold()
}

// isCordonedByOthers reports whether another client has set what a new hold would set. A cordon
// has no owner, so without a hold it counts as another client's. The taint always belongs to
// Holdfast.
func (e holdEvaluation) isCordonedByOthers() bool {
	return e.taintKey() == "" && e.node.Spec.Unschedulable
}

// foreignMark returns why another component needs the cordon of this hold: its mark, or a drain
// that was allowed during the hold. It is empty if there is no reason.
func (e holdEvaluation) foreignMark() string {
	return cmp.Or(markOfOthers(e.node), e.drainMark())
}

// newRecord returns a record of a state that is entered now, in this boot.
func (e holdEvaluation) newRecord(state State, reason RecordReason) *Record {
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
	for _, key := range autoscaler.Keys() {
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

// leftoverTaints returns the taints that the node lifecycle controller derived from the hold
// and would remove only later. Pods are not scheduled before that. A taint is not included if
// another component still has a reason for it.
func (e holdEvaluation) leftoverTaints(uncordoned bool) []corev1.Taint {
	var keys []string
	if uncordoned {
		keys = append(keys, corev1.TaintNodeUnschedulable)
	}
	c := FindCondition(e.node, corev1.NodeNetworkUnavailable)
	if c == nil || c.Status == corev1.ConditionFalse || isUnavailableByHoldfast(e.node) {
		keys = append(keys, corev1.TaintNodeNetworkUnavailable)
	}
	return taintsOf(e.node, keys...)
}
