package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// A simulatedCache is a cache of one kind, as old as the driver lets it be. As with a real
// informer, its content may be newer than what its handlers received.
type simulatedCache[T storedObject[T]] struct {
	table *objectTable[T]

	mu            sync.Mutex // guards objects and sorted, which the code under test reads
	objects       map[string]T
	sorted        []T // the objects by name, nil after a change
	received      int
	notified      map[string]T
	notifiedCount int
	watchState
	// bookmarked is the time of the last bookmark.
	bookmarked time.Time

	handlers []toolscache.ResourceEventHandler
	// settle waits until the goroutines that a handler woke are blocked.
	settle func()
}

// A watchState is the state of the watch of a cache.
type watchState struct {
	// stalled is true while it delivers nothing.
	stalled bool
	// disconnected is true after the API server closed the watch. The cache never receives the
	// versions that it missed; it lists again.
	disconnected bool
}

func (w *watchState) watch() *watchState { return w }

// A watchingCache is a simulatedCache of any kind.
type watchingCache interface {
	watch() *watchState
	pending() (held, told int)
	receive(n int)
	notify(n int)
	bookmark()
	relist()
}

// newSimulatedCache returns a cache that has just listed the objects.
func newSimulatedCache[T storedObject[T]](sim *simulation, t *objectTable[T]) *simulatedCache[T] {
	return &simulatedCache[T]{
		settle: sim.settle, table: t, objects: maps.Clone(t.kept), received: len(t.log),
		notified: maps.Clone(t.kept), notifiedCount: len(t.log),
	}
}

func (m *simulatedCache[T]) list() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sorted == nil {
		for _, name := range sortedKeys(m.objects) {
			m.sorted = append(m.sorted, m.objects[name])
		}
	}
	return slices.Clone(m.sorted)
}

func (m *simulatedCache[T]) get(name string) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// pending returns how many versions the cache has not received, and how many of those that
// it received its handlers were not notified of.
func (m *simulatedCache[T]) pending() (held, told int) {
	return len(m.table.log) - m.received, m.received - m.notifiedCount
}

// receive stores the next n versions in the cache.
func (m *simulatedCache[T]) receive(n int) {
	if m.disconnected {
		m.relist()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; n > 0 && m.received < len(m.table.log); n-- {
		v := m.table.log[m.received]
		m.received++
		m.sorted = nil
		if v.deleted {
			delete(m.objects, v.name)
		} else {
			m.objects[v.name] = v.object
		}
	}
}

// notify calls the handlers for the next n versions that the cache has received. It waits after
// each call until all goroutines that the call woke are blocked. Otherwise the scheduler would
// decide how many versions they see, and no history could be replayed.
func (m *simulatedCache[T]) notify(n int) {
	for ; n > 0 && m.notifiedCount < m.received; n-- {
		v := m.table.log[m.notifiedCount]
		m.notifiedCount++
		before, there := m.notified[v.name]
		for _, h := range m.handlers {
			switch {
			case v.deleted && there:
				h.OnDelete(v.object)
			case v.deleted:
			case there:
				h.OnUpdate(before, v.object)
			default:
				h.OnAdd(v.object, false)
			}
			m.settle()
		}
		if v.deleted {
			delete(m.notified, v.name)
		} else {
			m.notified[v.name] = v.object
		}
	}
}

// bookmark delivers the bookmark of this minute. The watch of observations gets none, so a replica
// reads them live more often.
func (m *simulatedCache[T]) bookmark() {
	if m.table.resource.Resource == v1alpha1.ObservationResource {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bookmarked = time.Now().Truncate(time.Minute)
}

// relist lists all objects again. The cache and its handlers never receive the versions in
// between.
func (m *simulatedCache[T]) relist() {
	m.mu.Lock()
	m.objects, m.sorted, m.disconnected = maps.Clone(m.table.kept), nil, false
	m.received, m.notifiedCount = len(m.table.log), len(m.table.log)
	m.mu.Unlock()
	for _, name := range sortedKeys(m.notified) {
		if _, there := m.objects[name]; !there {
			for _, h := range m.handlers {
				h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: name, Obj: m.notified[name]})
				m.settle()
			}
		}
	}
	for _, name := range sortedKeys(m.objects) {
		before, there := m.notified[name]
		for _, h := range m.handlers {
			if there {
				h.OnUpdate(before, m.objects[name])
			} else {
				h.OnAdd(m.objects[name], false)
			}
			m.settle()
		}
	}
	m.notified = maps.Clone(m.objects)
}

// A simulatedInformer has the methods of an informer that the webhook uses.
type simulatedInformer[T storedObject[T]] struct {
	toolscache.SharedIndexInformer
	store *simulatedCache[T]
}

// AddEventHandler registers the handler and calls it for all present objects.
func (i simulatedInformer[T]) AddEventHandler(
	h toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.store.handlers = append(i.store.handlers, h)
	for _, name := range sortedKeys(i.store.notified) {
		h.OnAdd(i.store.notified[name], true)
	}
	return nil, nil
}

// HasSynced reports whether the informer has listed its objects, which it has from the beginning.
func (i simulatedInformer[T]) HasSynced() bool { return true }

// LastSyncResourceVersion changes with each event and each bookmark, of which there is one a
// minute.
func (i simulatedInformer[T]) LastSyncResourceVersion() string {
	i.store.mu.Lock()
	defer i.store.mu.Unlock()
	return fmt.Sprint(i.store.received, i.store.bookmarked)
}

// GetStore returns the content of the cache.
func (i simulatedInformer[T]) GetStore() toolscache.Store { return simulatedStore[T]{cache: i.store} }

// A simulatedStore has the methods of toolscache.Store that the webhook uses.
type simulatedStore[T storedObject[T]] struct {
	toolscache.Store
	cache *simulatedCache[T]
}

// List returns all objects, which the caller shares with the cache.
func (s simulatedStore[T]) List() []any {
	var found []any
	for _, object := range s.cache.list() {
		found = append(found, object)
	}
	return found
}

// GetByKey returns the object of this name.
func (s simulatedStore[T]) GetByKey(key string) (any, bool, error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	object, exists := s.cache.objects[key]
	return object, exists, nil
}

// A replicaCaches has the methods of cache.Cache that the webhook uses.
type replicaCaches struct {
	cache.Cache
	clusters     *simulatedCache[*v1alpha1.EtcdCluster]
	observations *simulatedCache[*v1alpha1.EtcdObservation]
	nodes        *simulatedCache[*corev1.Node]
}

func (c replicaCaches) all() []watchingCache {
	return []watchingCache{c.clusters, c.observations, c.nodes}
}

// joined returns the EtcdClusters with the observations that the caches have.
func (c replicaCaches) joined() []*v1alpha1.EtcdCluster {
	all := c.clusters.list()
	for i := range all {
		all[i] = observation.Join(all[i], c.observations.list())
	}
	return all
}

func (c replicaCaches) GetInformer(
	_ context.Context, obj client.Object, _ ...cache.InformerGetOption,
) (cache.Informer, error) {
	switch obj.(type) {
	case *v1alpha1.EtcdCluster:
		return simulatedInformer[*v1alpha1.EtcdCluster]{store: c.clusters}, nil
	case *v1alpha1.EtcdObservation:
		return simulatedInformer[*v1alpha1.EtcdObservation]{store: c.observations}, nil
	case *corev1.Node:
		return simulatedInformer[*corev1.Node]{store: c.nodes}, nil
	}
	return nil, fmt.Errorf("informer for %T is not simulated", obj)
}

func (c replicaCaches) WaitForCacheSync(context.Context) bool { return true }

// Get reads from the cache.
func (c replicaCaches) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		if found := c.clusters.get(key.Name); found != nil {
			found.DeepCopyInto(into)
			return nil
		}
	case *corev1.Node:
		if found := c.nodes.get(key.Name); found != nil {
			found.DeepCopyInto(into)
			return nil
		}
	}
	return fmt.Errorf("%s is not in the cache", key.Name)
}

// List reads from the cache.
func (c replicaCaches) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch into := list.(type) {
	case *v1alpha1.EtcdClusterList:
		for _, o := range c.clusters.list() {
			into.Items = append(into.Items, *o.DeepCopy())
		}
	case *v1alpha1.EtcdObservationList:
		for _, o := range c.observations.list() {
			into.Items = append(into.Items, *o.DeepCopy())
		}
	default:
		return fmt.Errorf("cached List of %T is not simulated", list)
	}
	return nil
}
