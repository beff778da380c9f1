package holdwatch

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Reasons of events about the parameter.
const (
	// EventSwitchedOff means that new nodes are no longer born held.
	EventSwitchedOff = "BornHeldSwitchedOff"
	// EventLeftOn means that new nodes are still born held, although too many nodes are stuck.
	EventLeftOn = "BornHeldLeftOn"
)

type holdCounts struct {
	nodes  int
	states map[readiness.HoldState]int
	// reasons are the numbers of held nodes by heldReason.
	reasons map[string]int
	// oldest is the age of the oldest hold.
	oldest time.Duration
	// stuck are the creation times of the nodes that count as stuck.
	stuck []time.Time
}

// countHolds counts the Nodes by the state of their hold. A Node whose hold has changed since
// the last check is too young to count.
func (w *watcher) countHolds(nodes []*corev1.Node, now time.Time) holdCounts {
	counts := holdCounts{nodes: len(nodes), states: map[readiness.HoldState]int{}, reasons: map[string]int{}}
	for _, node := range nodes {
		if tracked := w.tracked[node.UID]; tracked == nil || tracked.holdKey != holdKeyOf(node) {
			continue
		}
		check, age := w.checkedHold(node, now)
		if check.State == "" {
			continue
		}
		counts.states[check.State]++
		counts.reasons[heldReason(node)]++
		counts.oldest = max(counts.oldest, age)
		isLate := check.State == readiness.HoldAgentMissing || check.State == readiness.HoldOverdue
		if isLate && !check.AgentSeen && age >= w.stuckAge() && readiness.IsBornHeld(node) {
			counts.stuck = append(counts.stuck, node.CreationTimestamp.Time)
		}
	}
	return counts
}

// noReport stands for the reason of a held node without the condition NetworkHeld.
const noReport = "NoReport"

// heldReason returns why the node is held, by its condition. Agents and the leader write it, with
// one of a few reasons. A kubelet may write any bytes, which no metric accepts.
func heldReason(node *corev1.Node) string {
	if c := readiness.FindCondition(node, readiness.NetworkHeld); c != nil {
		return cmp.Or(printable.Quote(c.Reason), noReport)
	}
	return noReport
}

// checkParameter deletes the parameter of the born-held policy if too many nodes are stuck.
// Otherwise it sends no request to the API server.
func (w *watcher) checkParameter(ctx context.Context, counts holdCounts, now time.Time) error {
	hold := readiness.MassHold{Nodes: counts.nodes, StuckCreated: counts.stuck, Now: w.serverTimeAt(now)}
	if !hold.IsWidespread() {
		w.reportedParameter = ""
		return nil
	}
	parameter, err := w.ConfigMaps.Get(ctx, Parameter, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading the parameter of the born-held policy: %w", err)
	}
	hold.ParameterCreated = parameter.CreationTimestamp.Time
	if !w.parameterRemoved.IsZero() {
		hold.SinceRemoved = now.Sub(w.parameterRemoved)
	}
	ok, why := hold.CanRemoveParameter()
	if ok {
		return w.removeParameter(ctx, parameter, hold, now)
	}
	if w.reportedParameter != string(parameter.UID) {
		w.reportedParameter = string(parameter.UID)
		w.reportParameter(ctx, parameter, EventLeftOn, fmt.Sprintf("%s. New nodes are still born held. "+
			"To stop that: `kubectl -n %s delete configmap %s`", why, parameter.Namespace, Parameter))
	}
	return nil
}

// removeParameter counts again with Nodes from the API server, because the cache may be stale,
// and deletes the parameter.
func (w *watcher) removeParameter(
	ctx context.Context, parameter *corev1.ConfigMap, hold readiness.MassHold, now time.Time,
) error {
	live, err := w.LiveNodes(ctx)
	if err != nil {
		return fmt.Errorf("counting holds without an agent: %w", err)
	}
	counts := w.countHolds(live, now)
	hold.Nodes, hold.StuckCreated = counts.nodes, counts.stuck
	ok, why := hold.CanRemoveParameter()
	if !ok {
		return nil // The next check decides with a newer cache.
	}
	err = w.ConfigMaps.Delete(ctx, Parameter, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &parameter.UID, ResourceVersion: &parameter.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // Another client was faster; the next check handles it.
	case err != nil:
		return fmt.Errorf("deleting the parameter of the born-held policy: %w", err)
	}
	w.parameterRemoved = now
	w.metrics.switchedOff.Inc()
	w.reportParameter(ctx, parameter, EventSwitchedOff, fmt.Sprintf("%s. New nodes are no longer born held. "+
		"To see why agents are missing: `kubectl -n %s get pods -o wide`. "+
		"When agents run again: `kubectl -n %s create configmap %s`",
		why, parameter.Namespace, parameter.Namespace, Parameter))
	return nil
}

func (w *watcher) reportParameter(ctx context.Context, parameter *corev1.ConfigMap, reason, message string) {
	w.Log.ErrorContext(ctx, "too many nodes are held without an agent", "decision", reason, "message", message)
	w.RecordEvent(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: parameter.Namespace, Name: parameter.Name, UID: parameter.UID,
	}, corev1.EventTypeWarning, reason, message)
}
