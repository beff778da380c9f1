// Package world runs the controllers of the webhook. A controller is a function of the World: the
// Nodes and the etcd clusters as the caches have them. It decides from the World what may be due,
// and reads what a write depends on again from the API server.
package world

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
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

// onChange calls wake for each change of the World but the heartbeats of Nodes, which are most of
// them.
func onChange(s *clusterstore.Store, wake func()) []error {
	return []error{
		s.Clusters.OnChange(func(_, _ *v1alpha1.EtcdCluster) { wake() }),
		s.Observations.OnChange(func(_, _ *v1alpha1.EtcdObservation) { wake() }),
		s.Nodes.OnChange(func(before, after *corev1.Node) {
			if !isHeartbeat(before, after) {
				wake()
			}
		}),
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
