package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// without returns the EtcdObservations for which is returns false.
func without(
	all []*v1alpha1.EtcdObservation, is func(*v1alpha1.EtcdObservation) bool,
) []*v1alpha1.EtcdObservation {
	return slices.DeleteFunc(slices.Clone(all), is)
}

func nodesOf(observations []*v1alpha1.EtcdObservation) []string {
	nodes := make([]string, len(observations))
	for i, o := range observations {
		nodes[i] = o.Node
	}
	return nodes
}

// keepObservations creates and deletes EtcdObservations, so that there is one for each Node of
// membership.Observers. Agents can only update them. The last observation of a bound Node stays as
// long as its binding, because it shows where members were.
func (l *Leader) keepObservations(
	ctx context.Context, c *v1alpha1.EtcdCluster, nodes nodeIndex, existing []*v1alpha1.EtcdObservation, s *clusterState,
) error {
	observed := nodesOf(existing)
	wanted, refused := membership.Observers(c, nodes.announcers(c), observed)
	s.unobserved = refused
	if text := strings.Join(refused, "; "); s.logged.Changed("observers", text) && text != "" {
		l.Log.Warn("agents of nodes cannot publish observations", "etcd_cluster", c.Name, "reason", text)
		l.recordEvent(c, corev1.EventTypeWarning, "NotObserved", text)
	}
	var errs []error
	for _, node := range wanted {
		if slices.Contains(observed, node) {
			continue
		}
		if err := l.Store.CreateObservation(ctx, c, node); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("creating the EtcdObservation of node %q in etcd cluster %s: %w", node, c.Name, err))
		}
	}
	unwanted := without(existing, func(o *v1alpha1.EtcdObservation) bool { return slices.Contains(wanted, o.Node) })
	return errors.Join(append(errs, l.deleteUnwanted(ctx, c, unwanted))...)
}

// deleteUnwanted deletes the EtcdObservations of Nodes that are neither bound nor announce the
// cluster. It reads both without a cache: a Node may just have been bound or registered.
func (l *Leader) deleteUnwanted(
	ctx context.Context, c *v1alpha1.EtcdCluster, unwanted []*v1alpha1.EtcdObservation,
) error {
	if len(unwanted) == 0 {
		return nil
	}
	live, err := l.Store.LiveCluster(ctx, c.Name)
	if err != nil {
		return err
	}
	names := nodesOf(unwanted)
	nodes := l.Store.LiveNodesNamed(ctx, names)
	var announcers []string
	for name, n := range nodes {
		if n.Err != nil || (n.Node != nil && announces(n.Node, observation.ClusterIDOf(c))) {
			announcers = append(announcers, name)
		}
	}
	wanted, _ := membership.Observers(live, announcers, names)
	gone := without(unwanted, func(o *v1alpha1.EtcdObservation) bool { return slices.Contains(wanted, o.Node) })
	return l.deleteObservations(ctx, gone)
}

// deleteOrphans deletes the EtcdObservations of EtcdClusters that are gone, without waiting for the
// garbage collector: an object with the name of a new one is in its way.
func (l *Leader) deleteOrphans(ctx context.Context, orphans []*v1alpha1.EtcdObservation) error {
	var errs []error
	var gone []*v1alpha1.EtcdObservation
	for _, o := range orphans {
		switch c, err := l.Store.LiveCluster(ctx, string(o.Cluster)); {
		case apierrors.IsNotFound(err), err == nil && !observation.BelongsTo(o, c.UID):
			gone = append(gone, o)
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, l.deleteObservations(ctx, gone))...)
}

// deleteObservations deletes EtcdObservations. One that is gone or another one by now is no error.
func (l *Leader) deleteObservations(ctx context.Context, unwanted []*v1alpha1.EtcdObservation) error {
	var errs []error
	for _, o := range unwanted {
		switch err := l.Store.DeleteObservation(ctx, o); {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("deleting EtcdObservation %s: %w", o.Name, err))
		default:
			l.Log.Info("deleted an EtcdObservation that no node needs", "etcd_cluster", o.Cluster, "node", o.Node)
		}
	}
	return errors.Join(errs...)
}
