package leader

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
)

// createClusters creates the EtcdClusters that are announced and missing. An empty object
// protects no node and refuses no deletion until membership.Bind accepts a claim; it only allows
// agents to report.
func (l *Leader) createClusters(ctx context.Context, existing []*v1alpha1.EtcdCluster, index nodeIndex) error {
	create, waiting := membership.PlanObjects(existing, index.announcedClusters(),
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

// reportWaiting logs that a cluster has no EtcdCluster, and records an event on each Node that
// announces it.
func (l *Leader) reportWaiting(w membership.WaitingCluster, index nodeIndex) {
	l.Log.Warn("not creating an EtcdCluster for an announced etcd cluster: too many exist; "+
		"delete those of etcd clusters that no longer exist, or raise --max-etcd-clusters",
		"etcd_cluster", w.ID, "announced_by", w.Announcers, "reason", w.Reason)
	message := fmt.Sprintf("etcd cluster %s, which this node announces, has no EtcdCluster: %s. Its nodes cannot be "+
		"deleted. Delete the EtcdClusters of etcd clusters that no longer exist, or raise the webhook's flag "+
		"--max-etcd-clusters: kubectl get etcdclusters", w.ID, w.Reason)
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
	if old := object.Replaces; old != nil {
		if err := l.Store.Delete(ctx, old); err != nil {
			return false, fmt.Errorf("making room: %w", err)
		}
		l.Log.Warn("deleted an EtcdCluster without bindings, to make room",
			"etcd_cluster", old.Name, "made_for", old.Annotations[membership.MadeForAnnotation], "room_for", object.ID)
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
