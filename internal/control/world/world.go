// Package world runs the controllers of the webhook. A controller is a function of the World: the
// Nodes and the etcd clusters as the caches have them. It decides from the World what may be due,
// and reads what a write depends on again from the API server.
package world

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// A World is what a round begins with. It is shared, and must not be changed. A watch may hang, so
// a World may be two minutes old, and older while the API server does not answer.
type World struct {
	Nodes []*corev1.Node
	// Clusters have their observations. They were read after the Nodes, so that a member which is
	// bound in between counts.
	Clusters     []*v1alpha1.EtcdCluster
	Observations []*v1alpha1.EtcdObservation
	// IsLeading means that this replica leads. It does so until its process ends.
	IsLeading bool
}

// Read returns the World as the caches have it. Before they are filled, it returns
// follow.ErrNotFilled.
func Read(ctx context.Context, s *clusterstore.Store) (w World, err error) {
	if w.Nodes, err = s.CachedNodes(ctx); err != nil {
		return w, err
	}
	if w.Clusters, err = s.CachedClusters(ctx); err != nil {
		return w, err
	}
	w.Observations, err = s.Observations.List()
	return w, err
}

// A Controller does what is due in rounds, one after the other.
type Controller struct {
	// Name is the name of the controller in the log.
	Name string
	// Round does what is due. It must not rest on what earlier rounds have read: a later round repeats
	// what fails in this one.
	Round func(context.Context, World) error
	// Wake begins the next round. Every change of the World does that too, but for heartbeats.
	Wake loop.Signal
	// Tick is the time between two rounds if nothing wakes the controller, and Pause the shortest time
	// between two rounds.
	Tick, Pause time.Duration
	// InEveryReplica means that the controller runs without leadership.
	InEveryReplica bool
	// Watch follows more than the World beside the rounds, until its context ends. Optional.
	Watch func(context.Context)
}

// A Loop runs controllers.
type Loop struct {
	Store *clusterstore.Store
	// Elected is closed once this replica leads.
	Elected <-chan struct{}
	Log     *slog.Logger
}

// A Runnable is a controller for the manager of controller-runtime.
type Runnable struct {
	Controller
	loop Loop
}

// Runnables returns the controllers as runnables, which each change of the World wakes from now on.
func (l Loop) Runnables(controllers ...Controller) ([]Runnable, error) {
	runnables := make([]Runnable, len(controllers))
	for i, c := range controllers {
		runnables[i] = Runnable{c, l}
	}
	wake := func() {
		for _, c := range controllers {
			c.Wake.Notify()
		}
	}
	return runnables, errors.Join(
		l.Store.Clusters.OnChange(func(_, _ *v1alpha1.EtcdCluster) { wake() }),
		l.Store.Observations.OnChange(func(_, _ *v1alpha1.EtcdObservation) { wake() }),
		l.Store.Nodes.OnChange(func(before, after *corev1.Node) {
			if !isHeartbeat(before, after) { // Most changes are heartbeats.
				wake()
			}
		}),
	)
}

// NeedLeaderElection reports whether the manager starts the controller in the leader only.
func (r Runnable) NeedLeaderElection() bool { return !r.InEveryReplica }

// Start runs the controller until ctx ends, and then returns nil.
func (r Runnable) Start(ctx context.Context) error {
	if r.Watch != nil {
		var watching sync.WaitGroup
		watching.Go(func() { r.Watch(ctx) })
		defer watching.Wait()
	}
	if !r.loop.Store.WaitForSync(ctx) {
		return nil
	}
	var logged loop.LogOnce
	loop.Rounds{
		Do: r.round, Pause: r.Pause, Wake: r.Wake, Idle: func() time.Duration { return max(0, r.Tick-r.Pause) },
		Done: func(err error) {
			if logged.ChangedErrorText("", err) && err != nil {
				r.loop.Log.ErrorContext(ctx, "failed to complete a round; retrying", "controller", r.Name, "err", err)
			}
		},
	}.Run(ctx)
	return nil
}

func (r Runnable) round(ctx context.Context) error {
	w, err := Read(ctx, r.loop.Store)
	if err != nil {
		return err
	}
	w.IsLeading = r.loop.isLeading()
	return r.Round(ctx, w)
}

func (l Loop) isLeading() bool {
	select {
	case <-l.Elected:
		return true
	default:
		return false
	}
}

// isHeartbeat reports whether nothing has changed but the version and the times of conditions.
func isHeartbeat(before, after *corev1.Node) bool {
	if before == nil || after == nil {
		return false
	}
	isSame := func(a, b corev1.NodeCondition) bool { return a.Type == b.Type && a.Status == b.Status }
	old, now := *before, *after
	old.ResourceVersion, old.Status.Conditions = now.ResourceVersion, now.Status.Conditions
	return slices.EqualFunc(before.Status.Conditions, after.Status.Conditions, isSame) &&
		apiequality.Semantic.DeepEqual(old, now)
}
