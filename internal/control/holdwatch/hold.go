package holdwatch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// checkHold reports a changed state of a hold, and writes the decision. Before both, it reads
// the Node from the API server, because the cache may not contain the latest write of an
// agent.
func (w *watcher) checkHold(ctx context.Context, cached *corev1.Node, now time.Time) error {
	tracked := w.tracked[cached.UID]
	check, _ := w.checkedHold(cached, now)
	if !isUnreported(cached, tracked, check) && !hasChanges(cached, check, now) {
		tracked.reported = check.State
		return nil
	}
	node, err := w.Nodes.Get(ctx, cached.Name, metav1.GetOptions{})
	if err == nil && node.UID == cached.UID && holdKeyOf(node) == tracked.holdKey {
		check, _ = w.checkedHold(node, now)
		w.reportHold(ctx, node, tracked, check)
		err = w.applyDecision(ctx, node, check)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // The Node has changed; the next check handles it.
	case err != nil:
		return fmt.Errorf("checking the hold of node %q: %w", cached.Name, err)
	}
	return nil
}

// reportHold logs and records the event of a state once.
func (w *watcher) reportHold(ctx context.Context, node *corev1.Node, tracked *trackedNode, check readiness.HoldCheck) {
	if isUnreported(node, tracked, check) {
		w.Log.WarnContext(ctx, "a hold needs attention", "node", node.Name,
			"state", string(check.State), "agent_seen", check.AgentSeen, "message", check.Event.Message)
		w.RecordEvent(nodeReference(node), check.Event.Type, check.Event.Reason, check.Event.Message)
	}
	tracked.reported = check.State
}

// isUnreported reports whether an event has to be recorded. If the condition already has the
// reason, the last leader recorded the event.
func isUnreported(node *corev1.Node, tracked *trackedNode, check readiness.HoldCheck) bool {
	if check.Event == nil || check.State == tracked.reported {
		return false
	}
	reason, c := check.Decision.Reason, readiness.FindCondition(node, readiness.NetworkHeld)
	return reason == "" || c == nil || c.Reason != reason
}

func hasChanges(node *corev1.Node, check readiness.HoldCheck, now time.Time) bool {
	patches, err := nodepatch.Plan(node, desiredState(check.Decision), now)
	return err != nil || len(patches) > 0
}

func (w *watcher) applyDecision(ctx context.Context, node *corev1.Node, check readiness.HoldCheck) error {
	after, err := w.writer.Apply(ctx, node, desiredState(check.Decision))
	if after.ResourceVersion == node.ResourceVersion {
		return err
	}
	w.Log.InfoContext(ctx, "wrote the node on behalf of its agent", "node", node.Name,
		"state", string(check.State), "reason", check.Decision.Reason, "message", check.Decision.Message)
	if event := check.Decision.Event; event != nil {
		w.RecordEvent(nodeReference(node), event.Type, event.Reason, event.Message)
		if event.Reason == readiness.EventGivenUp {
			w.metrics.givenUp.Inc()
		}
	}
	return err
}

// desiredState returns the Node that a decision asks for. If an agent writes between the read
// and this write, the write fails with a conflict instead of overwriting the agent's
// condition.
func desiredState(d readiness.Decision) nodepatch.Desired {
	wanted := nodepatch.OfHold(d)
	wanted.Guarded = true
	return wanted
}
