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
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// fieldOwner is the name under which the webhook writes EtcdClusters and labels.
const fieldOwner = client.FieldOwner(apiaccess.WebhookFieldManager)

// ErrConflict reports that an object changed after the decision that a patch is based on.
var ErrConflict = errors.New("decided from an older version")

// Options configure a Store. All fields but the times, the tolerance, the marks and the label are
// required.
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
	// Departures has the marks on Nodes by which members count as lost or away.
	Departures departure.Table
	// ZoneLabel is the label with the zone of a Node. Empty for no zones.
	ZoneLabel  string
	Registerer prometheus.Registerer
}

// A Store reads and writes EtcdClusters.
type Store struct {
	client     client.Client
	reader     client.Reader
	cache      cache.Cache
	nodes      nodeInformer
	tolerance  int
	departures departure.Table
	zoneLabel  string
	requester  *ProbeRequester
	conflicts  prometheus.Counter
	live       *sharedRead[[]*v1alpha1.EtcdCluster]
	liveNodes  *sharedRead[[]*corev1.Node]
	// nodesAge, clustersAge and observationsAge are of the watches of the cache.
	nodesAge, clustersAge, observationsAge *watchAge
}

// New returns a Store that follows the EtcdClusters of the cache. The cache may start later.
func New(ctx context.Context, o Options) (*Store, error) {
	probes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_webhook_asks_total", Help: "Probe requests to the agents of etcd clusters.",
	})
	conflicts := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_webhook_grant_conflicts_total",
		Help: "Changes of grants that conflicted with another change and were decided again.",
	})
	if err := errors.Join(o.Registerer.Register(probes), o.Registerer.Register(conflicts)); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	nodes, err := openNodes(ctx, o.Cache)
	if err != nil {
		return nil, err
	}
	s := &Store{
		client: o.Client, reader: o.Reader, cache: o.Cache, nodes: nodes, tolerance: o.MinRemainingTolerance,
		departures: o.Departures, zoneLabel: o.ZoneLabel, conflicts: conflicts,
		live:      newSharedRead[[]*v1alpha1.EtcdCluster]("etcdclusters"),
		liveNodes: newSharedRead[[]*corev1.Node]("nodes"), nodesAge: newWatchAge(nodes.LastSyncResourceVersion),
	}
	var clustersErr, observationsErr error
	s.clustersAge, clustersErr = openAge(ctx, s.cache, &v1alpha1.EtcdCluster{})
	s.observationsAge, observationsErr = openAge(ctx, s.cache, &v1alpha1.EtcdObservation{})
	if err := errors.Join(clustersErr, observationsErr); err != nil {
		return nil, err
	}
	s.requester = newProbeRequester(o.Client, s.LiveCluster, o.ProbeInterval, probes)
	if err := s.Follow(ctx, s.requester.addVersion); err != nil {
		return nil, err
	}
	return s, s.FollowObservations(ctx, s.requester.addObservation, s.requester.removeObservation)
}

// Follow calls seen for every version of every EtcdCluster that the cache learns of, deleted ones
// included. If a watch missed the deletion, that is the last version that the cache had.
func (s *Store) Follow(ctx context.Context, seen func(*v1alpha1.EtcdCluster)) error {
	informer, err := s.cache.GetInformer(ctx, &v1alpha1.EtcdCluster{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("opening the informer for EtcdClusters: %w", err)
	}
	call := func(obj any) {
		if missed, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = missed.Obj
		}
		if c, ok := obj.(*v1alpha1.EtcdCluster); ok {
			seen(c)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: call, UpdateFunc: func(_, obj any) { call(obj) }, DeleteFunc: call,
	})
	if err != nil {
		return fmt.Errorf("following EtcdClusters: %w", err)
	}
	return nil
}

// FollowNodes calls changed when a Node appears, disappears, or changes such that isChange
// reports true.
func (s *Store) FollowNodes(isChange func(before, after *corev1.Node) bool, changed func()) error {
	_, err := s.nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			was, ok := before.(*corev1.Node)
			is, also := after.(*corev1.Node)
			if ok && also && isChange(was, is) {
				changed()
			}
		},
		DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return fmt.Errorf("following Nodes: %w", err)
	}
	return nil
}

// WaitForSync waits until the cache is filled, and reports whether it is.
func (s *Store) WaitForSync(ctx context.Context) bool { return s.cache.WaitForCacheSync(ctx) }

// LiveClusters lists all EtcdClusters with their observations from the API server. Callers share
// the objects, and must not change them.
func (s *Store) LiveClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	return s.live.do(ctx, func(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
		return listClusters(ctx, s.reader)
	})
}

// CachedClusters lists all EtcdClusters with their observations from the cache, or from the API
// server if a watch may hang. Both kinds have watches of their own, so an EtcdCluster of the
// cache may be newer than its observations.
func (s *Store) CachedClusters(ctx context.Context) ([]*v1alpha1.EtcdCluster, error) {
	isCurrent := s.clustersAge.isCurrent()
	isCurrent = s.observationsAge.isCurrent() && isCurrent
	return currentOr(ctx, isCurrent, s.LiveClusters, func() ([]*v1alpha1.EtcdCluster, error) {
		return listClusters(ctx, s.cache)
	})
}

func listClusters(ctx context.Context, from client.Reader) ([]*v1alpha1.EtcdCluster, error) {
	list := &v1alpha1.EtcdClusterList{}
	if err := from.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing EtcdClusters: %w", err)
	}
	observations, err := listObservations(ctx, from) // after the EtcdClusters
	if err != nil {
		return nil, err
	}
	found := make([]*v1alpha1.EtcdCluster, len(list.Items))
	for i := range list.Items {
		found[i] = observation.Join(&list.Items[i], observations)
	}
	return found, nil
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

// Delete deletes the EtcdCluster that c is a version of. It fails with a conflict if the object has
// changed since.
func (s *Store) Delete(ctx context.Context, c *v1alpha1.EtcdCluster) error {
	return s.client.Delete(ctx, c, client.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion})
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
	case apierrors.IsConflict(err):
		s.conflicts.Inc()
		return nil, ErrConflict
	case !apierrors.IsInvalid(err):
		return nil, withWriters(ctx, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err), c.Name, s.LiveCluster)
	}
	// The API server answers 422 both for a failed test and for an object that the schema
	// forbids (apiserver's handlers/patch.go).
	now, readErr := s.LiveCluster(ctx, c.Name)
	if readErr != nil {
		return nil, readErr
	}
	if isSameTested(now, c) {
		return nil, fmt.Errorf("writing etcd cluster %s: %w", c.Name, err)
	}
	s.conflicts.Inc()
	return nil, ErrConflict
}

// isSameTested reports whether everything that a patch may test is equal in both versions.
func isSameTested(a, b *v1alpha1.EtcdCluster) bool {
	return a.UID == b.UID && a.Spec.Ledger == b.Spec.Ledger && slices.Equal(a.Spec.Members, b.Spec.Members) &&
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

// A sharedRead makes one read for all callers that wait for it. A caller shares only a read that
// began after its call: callers that arrive while a read is under way wait for the next one.
type sharedRead[T any] struct {
	name  string
	group singleflight.Group
	// turn contains a value during a read.
	turn chan struct{}
}

func newSharedRead[T any](name string) *sharedRead[T] {
	return &sharedRead[T]{name: name, turn: make(chan struct{}, 1)}
}

// maxSharedRead limits one read: others wait for it.
const maxSharedRead = 5 * time.Second

// do returns the result of a read that began after the call. The read does not end with the caller
// that began it, but has its deadline.
func (s *sharedRead[T]) do(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	const key = "" // There is one read.
	result, err, _ := s.group.Do(key, func() (any, error) {
		s.turn <- struct{}{}
		loop.Turn(ctx, s.name)
		defer func() { <-s.turn }()
		s.group.Forget(key) // From here on, callers wait for the next read.
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeLeft(ctx))
		defer cancel()
		return read(reading)
	})
	loop.Turn(ctx, s.name)
	value, _ := result.(T)
	return value, err
}

// timeLeft returns the time until the deadline of ctx, at most maxSharedRead.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, isSet := ctx.Deadline(); isSet {
		return min(time.Until(deadline), maxSharedRead)
	}
	return maxSharedRead
}
