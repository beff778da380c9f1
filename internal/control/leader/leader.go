// Package leader is the loop of the webhook replica that leads. It creates EtcdClusters and
// EtcdObservations from announcements, binds members to Nodes, records grants for Nodes that were
// deleted without a review, resolves grants, restores labels, and writes the summary of each
// cluster.
//
// Package membership and package quorum decide. This package calls them with what the agents
// report, and writes the result. Every write tests the version that it was decided from, so two
// leaders at the same time do no harm; they only request twice as many probes.
package leader

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

const (
	// maxParallelClusters bounds how many clusters are reconciled at the same time. Each may wait
	// for agents that do not answer.
	maxParallelClusters = 4
	// maxClustersPerNode is how many EtcdClusters are created from the announcements of one Node: kOps
	// runs two etcd clusters.
	maxClustersPerNode = 2
	// calmTick is the time between two probes of a cluster that does not change.
	calmTick = time.Minute
)

// Options configure a Leader. Store, Log and Registerer are required.
type Options struct {
	Store      *clusterstore.Store
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Wait is the longest time to wait for observations. Default 3 s.
	Wait time.Duration
	// Tick is the time between two rounds if nothing wakes the loop, and between two probes of a
	// cluster with open grants. Default 15 s.
	Tick time.Duration
	// Pause is the shortest time between two rounds. Default 1 s.
	Pause time.Duration
	// ResolveAfter is how long the reason to end a grant must hold. Default 30 s.
	ResolveAfter time.Duration
	// MaxClusters is the number of EtcdClusters at which no further one is created. Default 16.
	MaxClusters int
	// RecordEvent records an event on an EtcdCluster or a Node; nil records none. Several goroutines
	// call it.
	RecordEvent func(about *corev1.ObjectReference, eventType, reason, message string)
	// MachineEnding returns why a controller is already ending the machine of the grant (its Machine
	// or NodeClaim is being deleted), or an empty string. It reads without a cache. The default knows
	// of no machines.
	MachineEnding func(ctx context.Context, g v1alpha1.Grant) string
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	o.Wait, o.Tick = cmp.Or(o.Wait, 3*time.Second), cmp.Or(o.Tick, 15*time.Second)
	o.Pause, o.ResolveAfter = cmp.Or(o.Pause, time.Second), cmp.Or(o.ResolveAfter, 30*time.Second)
	o.MaxClusters = cmp.Or(o.MaxClusters, 16)
	if o.RecordEvent == nil {
		o.RecordEvent = func(*corev1.ObjectReference, string, string, string) {}
	}
	if o.MachineEnding == nil {
		o.MachineEnding = func(context.Context, v1alpha1.Grant) string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// A Leader runs the loop. It must run in one replica at a time.
type Leader struct {
	Options
	metrics *metrics
	wake    loop.Signal
	logged  loop.LogOnce
	// waiting are the announced clusters without an EtcdCluster in the last round. An agent may
	// announce others in each round, so it has none of the rounds before.
	waiting map[v1alpha1.ClusterID]bool
	// states are by the object's UID: another object of the same name starts without a state.
	states map[types.UID]*clusterState
}

// New returns the controller of a Leader.
func New(o Options) world.Controller { return newLeader(o).controller() }

func newLeader(o Options) *Leader {
	l := &Leader{
		Options: o.withDefaults(), metrics: &metrics{}, wake: loop.NewSignal(), states: map[types.UID]*clusterState{},
	}
	o.Registerer.MustRegister(l.metrics)
	return l
}

func (l *Leader) controller() world.Controller {
	return world.Controller{Name: "leader", Round: l.reconcileAll, Wake: l.wake, Tick: l.Tick, Pause: l.Pause}
}

// reconcileAll reconciles everything once. A failure in one cluster does not stop the others.
func (l *Leader) reconcileAll(ctx context.Context, w world.World) error {
	cached := w.Clusters
	orphans := without(w.Observations, func(o *v1alpha1.EtcdObservation) bool {
		return slices.ContainsFunc(cached, func(c *v1alpha1.EtcdCluster) bool { return observation.BelongsTo(o, c.UID) })
	})
	index := l.indexNodes(w.Nodes)
	errs := []error{l.deleteOrphans(ctx, orphans), l.createClusters(ctx, cached, index)}

	l.keepStates(cached)
	result := &roundResult{ignored: l.countIgnored(cached)}
	failed := make([]error, len(cached))
	var g errgroup.Group
	g.SetLimit(maxParallelClusters)
	for i, c := range cached {
		state := l.states[c.UID]
		own := without(w.Observations, func(o *v1alpha1.EtcdObservation) bool { return !observation.BelongsTo(o, c.UID) })
		g.Go(func() error {
			failed[i] = loop.RecoverPanic(func() error { return l.reconcileCluster(ctx, c, index, own, state) })
			return nil
		})
	}
	_ = g.Wait() // The functions above return no error.
	for _, c := range cached {
		result.clusters = append(result.clusters, resultOf(c, l.states[c.UID]))
	}
	l.metrics.set(result)
	return errors.Join(append(errs, failed...)...)
}

// keepStates drops the states of all objects but these, and creates the missing ones.
func (l *Leader) keepStates(clusters []*v1alpha1.EtcdCluster) {
	kept := map[types.UID]*clusterState{}
	for _, c := range clusters {
		kept[c.UID] = l.states[c.UID]
		if kept[c.UID] == nil {
			kept[c.UID] = newClusterState()
		}
	}
	for uid, state := range l.states {
		if kept[uid] == nil && state.probe != nil {
			state.probe.Release()
		}
	}
	l.states = kept
}

// countIgnored counts the observations that are ignored, by reason, and logs them when they
// change. Every cluster must have a state.
func (l *Leader) countIgnored(clusters []*v1alpha1.EtcdCluster) map[observation.IgnoredReason]int {
	counts := map[observation.IgnoredReason]int{}
	for _, c := range clusters {
		all := observation.Ignored(c, l.Now())
		text := printable.Join(all, ", ", func(ignored observation.IgnoredObservation) string {
			counts[ignored.Reason]++
			return ignored.Node + " " + string(ignored.Reason)
		})
		if l.states[c.UID].logged.Changed("ignored", text) && text != "" {
			l.Log.Info("ignoring observations of agents", "etcd_cluster", c.Name, "ignored", text)
		}
	}
	return counts
}

func (l *Leader) recordEvent(c *v1alpha1.EtcdCluster, eventType, reason, message string) {
	about := &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID,
	}
	l.RecordEvent(about, eventType, reason, message)
}
