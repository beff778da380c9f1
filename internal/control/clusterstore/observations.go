package clusterstore

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// FollowObservations calls seen for every version of every EtcdObservation that the cache learns
// of, and gone for those that are deleted.
func (s *Store) FollowObservations(ctx context.Context, seen, gone func(*v1alpha1.EtcdObservation)) error {
	informer, err := s.cache.GetInformer(ctx, &v1alpha1.EtcdObservation{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("opening the informer for EtcdObservations: %w", err)
	}
	pass := func(obj any, to func(*v1alpha1.EtcdObservation)) {
		if missed, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = missed.Obj
		}
		if o, ok := obj.(*v1alpha1.EtcdObservation); ok {
			to(o)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { pass(obj, seen) }, UpdateFunc: func(_, obj any) { pass(obj, seen) },
		DeleteFunc: func(obj any) { pass(obj, gone) },
	})
	if err != nil {
		return fmt.Errorf("following EtcdObservations: %w", err)
	}
	return nil
}

// CachedObservations lists all EtcdObservations from the cache.
func (s *Store) CachedObservations(ctx context.Context) ([]*v1alpha1.EtcdObservation, error) {
	return listObservations(ctx, s.cache)
}

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
	nodes = slices.Concat(nodes, BoundNodeNames(c.Spec.Members), s.requester.observersOf(c.UID))
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

func listObservations(ctx context.Context, from client.Reader) ([]*v1alpha1.EtcdObservation, error) {
	list := &v1alpha1.EtcdObservationList{}
	if err := from.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing EtcdObservations: %w", err)
	}
	found := make([]*v1alpha1.EtcdObservation, len(list.Items))
	for i := range list.Items {
		found[i] = &list.Items[i]
	}
	return found, nil
}
