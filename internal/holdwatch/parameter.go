package holdwatch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Reasons of events about the parameter.
const (
	// EventSwitchedOff says that nodes are not born held any more.
	EventSwitchedOff = "BornHeldSwitchedOff"
	// EventLeftOn says that they still are, although too many are stuck.
	EventLeftOn = "BornHeldLeftOn"
)

// tally is what a round counts.
type tally struct {
	nodes     int
	standings map[readiness.Standing]int
	// oldest is the age of the oldest hold that has not ended.
	oldest time.Duration
	// stuck are the times of birth of the nodes that count towards the parameter.
	stuck []time.Time
}

// count sums up how the Nodes stand. Those that are not in the shape in which they were last seen in the cache are young.
func (w *Watcher) count(nodes []corev1.Node, now time.Time) tally {
	t := tally{nodes: len(nodes), standings: map[readiness.Standing]int{}}
	for i := range nodes {
		node := &nodes[i]
		if seen := w.sightings[node.UID]; seen == nil || seen.shape != shapeOf(node) {
			continue
		}
		age := w.age(node, now)
		a := readiness.Attend(node, age, w.o.Patience, now)
		if a.Standing == "" {
			continue
		}
		t.standings[a.Standing]++
		t.oldest = max(t.oldest, age)
		missing := !a.Agent && (a.Standing == readiness.Unattended || a.Standing == readiness.Stuck)
		if missing && age >= w.spread() && readiness.BornHeld(node) {
			t.stuck = append(t.stuck, node.CreationTimestamp.Time)
		}
	}
	return t
}

// mindParameter takes the born-held policy's parameter away when too many nodes are stuck. As long as they are not, it
// asks nothing of the API server.
func (w *Watcher) mindParameter(ctx context.Context, counts tally, now time.Time) error {
	o := readiness.Outbreak{Nodes: counts.nodes, Stuck: counts.stuck, Now: w.clock.at(now)}
	if !o.Widespread() {
		w.saidParameter = ""
		return nil
	}
	parameter, err := w.o.ConfigMaps.Get(ctx, Parameter, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the parameter of the born-held policy: %w", err)
	}
	o.Parameter = parameter.CreationTimestamp.Time
	if !w.taken.IsZero() {
		o.Taken = now.Sub(w.taken)
	}
	yes, why := o.SwitchOff()
	if !yes {
		if w.saidParameter != string(parameter.UID) {
			w.saidParameter = string(parameter.UID)
			w.tellParameter(ctx, parameter, EventLeftOn, fmt.Sprintf("%s. New nodes are still born held; to stop that: `kubectl -n %s delete configmap %s`",
				why, parameter.Namespace, Parameter))
		}
		return nil
	}
	return w.takeParameter(ctx, parameter, o, now)
}

// takeParameter counts again by what the API server has, since the cache may be old, and takes the parameter away.
func (w *Watcher) takeParameter(ctx context.Context, parameter *corev1.ConfigMap, o readiness.Outbreak, now time.Time) error {
	nodes, err := w.o.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("counting the nodes that are held without an agent: %w", err)
	}
	counts := w.count(nodes.Items, now)
	o.Nodes, o.Stuck = counts.nodes, counts.stuck
	yes, why := o.SwitchOff()
	if !yes {
		return nil // The next round decides with a newer cache.
	}
	err = w.o.ConfigMaps.Delete(ctx, Parameter, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &parameter.UID, ResourceVersion: &parameter.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // Somebody was faster, and the next round looks anew.
	}
	if err != nil {
		return fmt.Errorf("taking away the parameter of the born-held policy: %w", err)
	}
	w.taken = now
	w.metrics.switchedOff.Inc()
	w.tellParameter(ctx, parameter, EventSwitchedOff, fmt.Sprintf(
		"%s, so new nodes are not born held any more. See why with `kubectl -n %s get pods -o wide`. When agents run again: `kubectl -n %s create configmap %s`",
		why, parameter.Namespace, parameter.Namespace, Parameter))
	return nil
}

func (w *Watcher) tellParameter(ctx context.Context, parameter *corev1.ConfigMap, reason, message string) {
	w.o.Log.ErrorContext(ctx, "too many nodes are held without an agent", "decision", reason, "message", message)
	w.o.Tell(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: parameter.Namespace, Name: parameter.Name, UID: parameter.UID,
	}, corev1.EventTypeWarning, reason, message)
}
