package clusterstore

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// CreateObservation creates the EtcdObservation of a node, without a report. It belongs to c, and
// is deleted with it. The error is the API server's.
func (s *Store) CreateObservation(ctx context.Context, c *v1alpha1.EtcdCluster, node string) error {
	o := &v1alpha1.EtcdObservation{Cluster: observation.ClusterIDOf(c)}
	o.Name, o.Node = v1alpha1.ObservationName(o.Cluster, node), node
	o.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID,
	}}
	return s.client.Create(ctx, o, fieldOwner)
}

// DeleteObservation deletes the EtcdObservation that o is a version of. The error is the API
// server's.
func (s *Store) DeleteObservation(ctx context.Context, o *v1alpha1.EtcdObservation) error {
	return s.client.Delete(ctx, o, client.Preconditions{UID: &o.UID})
}

// WithObservations returns the EtcdCluster with its observations, which it reads from the API
// server now, after c: those of the Nodes to which members are bound, of those that the cache
// knows, and of the named ones.
func (s *Store) WithObservations(
	ctx context.Context, c *v1alpha1.EtcdCluster, nodes ...string,
) (*v1alpha1.EtcdCluster, error) {
	nodes = slices.Concat(nodes, BoundNodeNames(c.Spec.Members))
	for _, o := range s.requester.observationsOf(c.UID) {
		nodes = append(nodes, o.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	found := make([]*v1alpha1.EtcdObservation, len(nodes))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallelReads)
	for i, node := range nodes {
		key := client.ObjectKey{Name: v1alpha1.ObservationName(observation.ClusterIDOf(c), node)}
		g.Go(func() error {
			o := &v1alpha1.EtcdObservation{}
			switch err := s.reader.Get(ctx, key, o); {
			case err == nil:
				found[i] = o
			case !apierrors.IsNotFound(err):
				return fmt.Errorf("reading EtcdObservation %s: %w", key.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return observation.Join(c, slices.DeleteFunc(found, func(o *v1alpha1.EtcdObservation) bool { return o == nil })), nil
}
