package holdwatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// attend tells what is new of a hold, and writes what it calls for. Before it does either it looks at the Node itself: the
// cache may lag behind an agent that has come by now.
func (w *Watcher) attend(ctx context.Context, cached *corev1.Node, now time.Time) error {
	seen := w.sightings[cached.UID]
	a := readiness.Attend(cached, w.age(cached, now), w.o.Patience, now)
	if !isNews(cached, seen, a) && !due(cached, a, now) {
		seen.told = a.Standing
		return nil
	}
	node, err := w.o.Nodes.Get(ctx, cached.Name, metav1.GetOptions{})
	if err == nil && (node.UID != cached.UID || shapeOf(node) != seen.shape) {
		return nil
	}
	if err == nil {
		a = readiness.Attend(node, w.age(node, now), w.o.Patience, now)
		w.announce(ctx, node, seen, a)
		err = w.write(ctx, node, a)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // The Node has moved, and the next round looks anew.
	case err != nil:
		return fmt.Errorf("attending to node %q: %w", cached.Name, err)
	}
	return nil
}

// isNews says whether there is something to tell that was not told. What the condition says already the last leader told.
func isNews(node *corev1.Node, seen *sighting, a readiness.Attention) bool {
	if a.Event == nil || a.Standing == seen.told {
		return false
	}
	return !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == readiness.NetworkHeld && a.Decision.Reason != "" && c.Reason == a.Decision.Reason
	})
}

// announce says once per standing what should be known.
func (w *Watcher) announce(ctx context.Context, node *corev1.Node, seen *sighting, a readiness.Attention) {
	news := isNews(node, seen, a)
	seen.told = a.Standing
	if !news {
		return
	}
	w.o.Log.WarnContext(ctx, "a hold needs attention", "node", node.Name, "standing", string(a.Standing), "agent_seen", a.Agent, "message", a.Event.Message)
	w.o.Tell(reference(node), a.Event.Type, a.Event.Reason, a.Event.Message)
}

// due says whether there is something to write, by the copy from the cache.
func due(node *corev1.Node, a readiness.Attention, now time.Time) bool {
	patches, err := nodepatch.Plan(node, desired(a.Decision), now)
	return err != nil || len(patches) > 0
}

// write writes what the hold calls for, and tells what came of it.
func (w *Watcher) write(ctx context.Context, node *corev1.Node, a readiness.Attention) error {
	after, err := w.writer.Apply(ctx, node, desired(a.Decision))
	if after.ResourceVersion == node.ResourceVersion {
		return err
	}
	w.o.Log.InfoContext(ctx, "node written in its agent's place", "node", node.Name, "standing", string(a.Standing), "reason", a.Decision.Reason, "message", a.Decision.Message)
	if e := a.Decision.Event; e != nil {
		w.o.Tell(reference(node), e.Type, e.Reason, e.Message)
		if e.Reason == readiness.EventGivenUp {
			w.metrics.givenUp.Inc()
		}
	}
	return err
}

// desired is what a decision asks of the Node. An agent that speaks up between our look and our write is not spoken over.
func desired(d readiness.Decision) nodepatch.Desired {
	wanted := nodepatch.OfHold(d)
	wanted.Guarded = true
	return wanted
}
