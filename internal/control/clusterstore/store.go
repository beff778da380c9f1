// Package clusterstore is the I/O between the webhook and the API server: it reads, patches
// and follows EtcdClusters, reads their EtcdObservations and Nodes live, and requests fresh
// observations from the agents.
//
// One rule replaces a transaction over the two kinds: the observations that a decision combines
// with a version of an EtcdCluster are read after that version is known (docs/decisions.md,
// decision 39).
//
// It decides nothing. [Store.View] collects what a decision of package quorum needs, and the
// write methods fail with [ErrConflict] if an object is no longer the one that a decision was
// made from. A Node that cannot be read is a state of its own, never an absent Node.
package clusterstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/follow"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// fieldOwner is the name under which the webhook writes EtcdClusters and labels.
const fieldOwner = client.FieldOwner(apiaccess.WebhookFieldManager)

// ErrConflict reports that an object changed after the decision that a patch is based on.
var ErrConflict = errors.New("decided from an older version")

// Options configure a Store. All fields but the times, the tolerance and the Trimmer are required.
type Options struct {
	// Client writes. It must not throttle requests: client-go's default of five requests per
	// second uses up the time that the API server gives the webhook.
	Client client.Client
	// Reader reads from the API server, never from a cache: a stalled watch must not hide a
	// deletion.
	Reader client.Reader
	// Cache holds EtcdClusters, EtcdObservations and Nodes, and reports their changes.
	Cache cache.Cache
	// ProbeInterval is the longest time for which a probe request waits for the answers to the one
	// before, and the average time between two of them. Default 500 ms.
	ProbeInterval time.Duration
	// MinRemainingTolerance is the number of further voters that must be expendable after a
	// deletion. Default 0.
	MinRemainingTolerance int
	// Trimmer is that of the Cache, and trims the lists that replace it. Members on Nodes with one of
	// its marks count as lost or away.
	Trimmer
	Registerer prometheus.Registerer
}

// A Store reads and writes EtcdClusters.
type Store struct {
	// Nodes, Clusters and Observations are what the cache has, however old it is.
	Nodes        *follow.Set[*corev1.Node]
	Clusters     *follow.Set[*v1alpha1.EtcdCluster]
	Observations *follow.Set[*v1alpha1.EtcdObservation]

	client    client.Client
	reader    client.Reader
	cache     cache.Cache
	tolerance int
	trimmer   Trimmer
	requester *ProbeRequester
	conflicts prometheus.Counter
	live      *sharedRead[[]*v1alpha1.EtcdCluster]
	liveNodes *sharedRead[[]*corev1.Node]
}

// New returns a Store that follows the EtcdClusters of the cache. The cache may start later.
func New(ctx context.Context, o Options) (*Store, error) {
	metrics := promauto.With(o.Registerer)
	s := &Store{
		client: o.Client, reader: o.Reader, cache: o.Cache, tolerance: o.MinRemainingTolerance,
		trimmer: o.Trimmer,
		conflicts: metrics.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_webhook_grant_conflicts_total",
			Help: "Changes of grants that conflicted with another change and were decided again.",
		}),
		live:      newSharedRead[[]*v1alpha1.EtcdCluster]("etcdclusters"),
		liveNodes: newSharedRead[[]*corev1.Node]("nodes"),
	}
	probes := metrics.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_webhook_asks_total", Help: "Probe requests to the agents of etcd clusters.",
	})
	s.requester = newProbeRequester(o.Client, s.LiveCluster, o.ProbeInterval, probes)
	var nodesErr, clustersErr, observationsErr error
	s.Nodes, nodesErr = follow.Cached(ctx, s.cache, &corev1.Node{})
	s.Clusters, clustersErr = follow.Cached(ctx, s.cache, &v1alpha1.EtcdCluster{})
	s.Observations, observationsErr = follow.Cached(ctx, s.cache, &v1alpha1.EtcdObservation{})
	if err := errors.Join(nodesErr, clustersErr, observationsErr); err != nil {
		return nil, err
	}
	addVersion := func(before, after *v1alpha1.EtcdCluster) {
		if after == nil {
			s.requester.removeCluster(before.UID)
			return
		}
		s.requester.addVersion(after)
	}
	addObservation := func(before, after *v1alpha1.EtcdObservation) {
		if after == nil {
			s.requester.removeObservation(before)
			return
		}
		s.requester.addObservation(after)
	}
	return s, errors.Join(s.Clusters.OnChange(addVersion), s.Observations.OnChange(addObservation))
}

// noteEvery is how often WatchAges notes what the watches have delivered.
const noteEvery = 20 * time.Second

// WatchAges notes what the watches deliver until ctx ends, and then returns nil as the runnables of
// the manager do. Without it, only reads of the cache note that.
func (s *Store) WatchAges(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) {
		s.Nodes.IsCurrent()
		s.Clusters.IsCurrent()
		s.Observations.IsCurrent()
	}, noteEvery)
	return nil
}

// WaitForSync waits until the cache is filled, and reports whether it is.
func (s *Store) WaitForSync(ctx context.Context) bool { return s.cache.WaitForCacheSync(ctx) }

// LiveClusters lists all EtcdClusters with their observations from the API server. Callers share
// the objects, and must not change them.
func (s *Store) LiveClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	return s.live.do(ctx, s.readClusters)
}

// CachedClusters lists all EtcdClusters with their observations from the cache, or from the API
// server if a watch may hang. Both kinds have watches of their own, so an EtcdCluster of the
// cache may be newer than its observations.
func (s *Store) CachedClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	isCurrent := s.Clusters.IsCurrent()
	return s.clusters(ctx, s.Observations.IsCurrent() && isCurrent)
}

// LatestClusters lists all EtcdClusters as LiveClusters does, or as the cache has them if the API
// server does not answer in time.
func (s *Store) LatestClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	return s.clusters(ctx, false)
}

func (s *Store) clusters(ctx context.Context, isCurrent bool) ([]*v1alpha1.EtcdCluster, error) {
	clusters, err := s.Clusters.List()
	observations, observationsErr := s.Observations.List() // after the EtcdClusters
	err = errors.Join(err, observationsErr)
	return currentOr(ctx, isCurrent, joinAll(clusters, observations), err, s.LiveClusters)
}

// currentOr returns what the cache has if its watches are current, or else what live reads. If that
// fails, the cache is the best that is known. err is the error of the cache.
func currentOr[T any](
	ctx context.Context, isCurrent bool, cached T, err error, live func(context.Context) (T, error),
) (T, error) {
	if !isCurrent {
		reading, cancel := context.WithTimeout(ctx, timeLeft(ctx)/2)
		defer cancel()
		if found, err := live(reading); err == nil {
			return found, nil
		}
	}
	return cached, err
}

func (s *Store) readClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	clusters, observations := &v1alpha1.EtcdClusterList{}, &v1alpha1.EtcdObservationList{}
	if err := s.reader.List(ctx, clusters); err != nil {
		return nil, fmt.Errorf("listing EtcdClusters: %w", err)
	}
	if err := s.reader.List(ctx, observations); err != nil { // after the EtcdClusters
		return nil, fmt.Errorf("listing EtcdObservations: %w", err)
	}
	return joinAll(pointers(clusters.Items), pointers(observations.Items)), nil
}

func joinAll(clusters []*v1alpha1.EtcdCluster, observations []*v1alpha1.EtcdObservation) []*v1alpha1.EtcdCluster {
	joined := make([]*v1alpha1.EtcdCluster, len(clusters))
	for i, c := range clusters {
		joined[i] = observation.Join(c, observations)
	}
	return joined
}

func pointers[T any](items []T) []*T {
	found := make([]*T, len(items))
	for i := range items {
		found[i] = &items[i]
	}
	return found
}

// LiveCluster reads one EtcdCluster from the API server, without its observations.
func (s *Store) LiveCluster(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error) {
	c := &v1alpha1.EtcdCluster{}
	if err := s.reader.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return nil, fmt.Errorf("reading etcd cluster %s: %w", name, err)
	}
	s.requester.addVersion(c)
	return c, nil
}

// Create creates an EtcdCluster. The error is the API server's.
func (s *Store) Create(ctx context.Context, c *v1alpha1.EtcdCluster) error {
	return s.client.Create(ctx, c, fieldOwner)
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

// Patch applies the operations to the EtcdCluster that c is a version of, and returns the
// version that they made, without observations. It fails with ErrConflict if a test operation
// failed.
func (s *Store) Patch(ctx context.Context, c *v1alpha1.EtcdCluster, ops []Operation) (*v1alpha1.EtcdCluster, error) {
	body, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encoding the change of etcd cluster %s: %w", c.Name, err)
	}
	made := &v1alpha1.EtcdCluster{}
	made.Name = c.Name
	err = s.client.Patch(ctx, made, client.RawPatch(types.JSONPatchType, body), fieldOwner)
	switch {
	case err == nil:
		s.requester.addVersion(made)
		return made, nil
	case apierrors.IsInvalid(err):
		// The API server answers 422 both for a failed test and for an object that the schema
		// forbids (apiserver's handlers/patch.go).
		now, readErr := s.LiveCluster(ctx, c.Name)
		switch {
		case readErr != nil:
			return nil, readErr
		case isSameTested(now, c):
			return nil, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err)
		}
	case !apierrors.IsConflict(err):
		return nil, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err)
	}
	s.conflicts.Inc()
	return nil, ErrConflict
}

// isSameTested reports whether everything that a patch may test is equal in both versions.
func isSameTested(a, b *v1alpha1.EtcdCluster) bool {
	return a.UID == b.UID && a.Spec.Ledger == b.Spec.Ledger && slices.Equal(a.Spec.Members, b.Spec.Members) &&
		a.Spec.Observers == b.Spec.Observers &&
		a.Annotations[quorum.ResolveAnnotation] == b.Annotations[quorum.ResolveAnnotation]
}

// ApplyStatus applies the fields that status sets, and leaves all others alone. A cluster
// that is gone is no error.
func (s *Store) ApplyStatus(ctx context.Context, name string, status v1alpha1.EtcdClusterStatus) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.EtcdCluster{Status: status})
	if err != nil {
		return fmt.Errorf("encoding the summary of etcd cluster %s: %w", name, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{"status": raw["status"]}}
	apply.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("EtcdCluster"))
	apply.SetName(name)
	err = s.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		client.ForceOwnership, fieldOwner)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the summary of etcd cluster %s: %w", name, err)
	}
	return nil
}
