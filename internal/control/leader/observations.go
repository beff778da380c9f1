package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	if s.logged.Changed("observers", refused) && refused != "" {
		l.Log.Warn("agents of nodes cannot publish observations", "etcd_cluster", c.Name, "reason", refused)
		l.recordEvent(c, corev1.EventTypeWarning, "NotObserved", refused)
	}
	var errs []error
	isObserved := func(node string) bool { return slices.Contains(observed, node) }
	for _, node := range slices.DeleteFunc(slices.Clone(wanted), isObserved) {
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

// createClusters creates the EtcdClusters that are announced and missing. An empty object
// protects no node and refuses no deletion until membership.Bind accepts a claim; it only allows
// agents to report.
func (l *Leader) createClusters(ctx context.Context, existing []*v1alpha1.EtcdCluster, index nodeIndex) error {
	announced := map[string][]v1alpha1.ClusterID{} // by the name of the Node
	for name, node := range index {
		for _, ref := range node.announced {
			announced[name] = append(announced[name], ref.Cluster)
		}
	}
	create, waiting := membership.PlanObjects(existing, announced,
		membership.ObjectLimits{Total: l.MaxClusters, PerNode: maxClustersPerNode})
	waits := map[v1alpha1.ClusterID]bool{}
	for _, w := range waiting {
		if waits[w.ID] = true; !l.waiting[w.ID] {
			l.reportWaiting(w, index)
		}
	}
	l.waiting = waits
	var errs []error
	for _, object := range create {
		switch isCreated, err := l.createAnnounced(ctx, object); {
		case err != nil:
			errs = append(errs, fmt.Errorf("creating etcd cluster %s: %w", object.ID, err))
		case isCreated:
			l.Log.Info("created an EtcdCluster for an announced etcd cluster", "etcd_cluster", object.ID, "node", object.Node)
		}
	}
	return errors.Join(errs...)
}

func (l *Leader) reportWaiting(w membership.WaitingCluster, index nodeIndex) {
	l.Log.Warn("not creating an EtcdCluster for an announced etcd cluster: too many exist; "+
		"delete those of etcd clusters that no longer exist",
		"etcd_cluster", w.ID, "announced_by", w.Announcers, "reason", w.Reason)
	message := fmt.Sprintf("etcd cluster %s, which this node announces, has no EtcdCluster: %s. Its nodes cannot be "+
		"deleted. Delete the EtcdClusters of etcd clusters that no longer exist: kubectl get etcdclusters", w.ID, w.Reason)
	for _, name := range w.Announcers {
		about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: index[name].UID}
		l.RecordEvent(about, corev1.EventTypeWarning, "EtcdClusterNotCreated", message)
	}
}

// createAnnounced creates the EtcdCluster if it does not exist, and if the Node still announces it.
// The Node is read without the cache. Otherwise the leader would create an EtcdCluster again that
// an operator deletes just after the announcement was removed.
func (l *Leader) createAnnounced(ctx context.Context, object membership.NewObject) (isCreated bool, err error) {
	live := l.Store.LiveNodesNamed(ctx, []string{object.Node})[object.Node]
	if live.Err != nil {
		return false, fmt.Errorf("reading node %q: %w", object.Node, live.Err)
	}
	if live.Node == nil || !announces(live.Node, object.ID) {
		return false, nil
	}
	c := &v1alpha1.EtcdCluster{}
	c.Name = string(object.ID)
	c.Annotations = map[string]string{membership.MadeForAnnotation: object.Node}
	err = l.Store.Create(ctx, c)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}
