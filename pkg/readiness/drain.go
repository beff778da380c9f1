package readiness

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Drain is a drain that was allowed while the cordon of a hold kept the node closed. `kubectl
// drain` writes nothing to a node that is cordoned already, so the drain relies on that cordon.
// Without it, the node would look as if the drain were over, and its members would count again
// although its machine is about to restart. The drain ends with a restart, or when a person
// uncordons the node.
type Drain struct {
	// At is when it was allowed, in RFC 3339, for people. No decision depends on it.
	At string `json:"at"`
	// BootID is the boot that the kubelet reported then.
	BootID string `json:"bootID,omitempty"`
	// Start is Facts.Start in that boot, 0 until the agent has written it. A host that is a container,
	// as in kind, restarts without a new boot of the kernel.
	Start uint64 `json:"start,omitempty"`
}

// IsHeldByCordon reports whether a drain of the node relies on the cordon of a hold.
func IsHeldByCordon(n *corev1.Node) bool {
	c, _ := ClosedBy(n) // without a record it is not held
	return c.IsHeld() && c.Taint == ""
}

// WithDrain returns the value of HoldAnnotation for a Node that IsHeldByCordon and whose drain is
// allowed now.
func WithDrain(n *corev1.Node, now time.Time) (string, error) {
	record, err := ParseRecord(n.Annotations[HoldAnnotation])
	if err != nil {
		return "", err
	}
	record.Drained = &Drain{At: now.UTC().Format(time.RFC3339), BootID: n.Status.NodeInfo.BootID}
	return record.Format(), nil
}

// drainMark returns the drain that relies on the cordon of the hold, empty if there is none.
func (e holdEvaluation) drainMark() string {
	d := e.record.Drained
	if d == nil || e.hasRestartedSince(*d) {
		return ""
	}
	return fmt.Sprintf("a drain of the node was allowed at %s; when it is over, or was given up: `kubectl uncordon %s`",
		d.At, e.node.Name)
}

// hasRestartedSince reports whether the machine has provably restarted since the drain. The leader
// knows only the boot that the kubelet reports.
func (e holdEvaluation) hasRestartedSince(d Drain) bool {
	if d.BootID != "" && e.facts.BootID != "" && d.BootID != e.facts.BootID {
		return true
	}
	return d.Start != 0 && e.facts.Start != 0 && d.Start != e.facts.Start
}

// withStart adds the start of the host to the record of a drain in this boot.
func (e holdEvaluation) withStart(d Decision) Decision {
	drain := e.record.Drained
	if drain == nil || !d.Held || e.hasRestartedSince(*drain) {
		return d
	}
	known := Drain{
		At: drain.At, BootID: cmp.Or(drain.BootID, e.facts.BootID), Start: cmp.Or(drain.Start, e.facts.Start),
	}
	if known != *drain {
		e.recordToWrite(&d).Drained = &known
	}
	return d
}
