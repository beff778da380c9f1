package history

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// mirror is a cache of one kind, as old as the driver lets it be. What it holds and what its handlers were told may be of
// different age, as with a real informer.
type mirror[T client.Object] struct {
	table *table[T]

	mu      sync.Mutex // guards objects, which the code under test reads
	objects map[string]T
	at      int
	told    map[string]T
	toldAt  int
	// cut says that its watch has ended with the API server: what it has not heard of it never will, and lists anew.
	cut bool

	handlers []toolscache.ResourceEventHandler
}

// newMirror has listed: it holds what there is now.
func newMirror[T client.Object](t *table[T]) *mirror[T] {
	return &mirror[T]{table: t, objects: maps.Clone(t.objects), at: len(t.log), told: maps.Clone(t.objects), toldAt: len(t.log)}
}

func (m *mirror[T]) all() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []T
	for _, name := range sortedKeys(m.objects) {
		found = append(found, m.objects[name])
	}
	return found
}

func (m *mirror[T]) one(name string) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// behind says how many versions the cache, and how many its handlers, have not heard of.
func (m *mirror[T]) behind() (held, told int) { return len(m.table.log) - m.at, m.at - m.toldAt }

// hold has the cache take the next n versions.
func (m *mirror[T]) hold(n int) {
	if m.cut {
		m.skip()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; n > 0 && m.at < len(m.table.log); n-- {
		v := m.table.log[m.at]
		m.at++
		if v.gone {
			delete(m.objects, v.name)
		} else {
			m.objects[v.name] = v.object
		}
	}
}

// tell has the handlers hear of the next n versions that the cache holds.
func (m *mirror[T]) tell(n int) {
	for ; n > 0 && m.toldAt < m.at; n-- {
		v := m.table.log[m.toldAt]
		m.toldAt++
		before, there := m.told[v.name]
		for _, h := range m.handlers {
			switch {
			case v.gone && there:
				h.OnDelete(v.object)
			case v.gone:
			case there:
				h.OnUpdate(before, v.object)
			default:
				h.OnAdd(v.object, false)
			}
		}
		if v.gone {
			delete(m.told, v.name)
		} else {
			m.told[v.name] = v.object
		}
	}
}

// skip has the cache list anew: the versions in between are never heard of.
func (m *mirror[T]) skip() {
	m.mu.Lock()
	m.objects, m.cut = maps.Clone(m.table.objects), false
	m.at, m.toldAt = len(m.table.log), len(m.table.log)
	m.mu.Unlock()
	for _, name := range sortedKeys(m.told) {
		if _, there := m.objects[name]; !there {
			for _, h := range m.handlers {
				h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: name, Obj: m.told[name]})
			}
		}
	}
	for _, name := range sortedKeys(m.objects) {
		before, there := m.told[name]
		for _, h := range m.handlers {
			if there {
				h.OnUpdate(before, m.objects[name])
			} else {
				h.OnAdd(m.objects[name], false)
			}
		}
	}
	m.told = maps.Clone(m.objects)
}

// informer is what the webhook uses of cache.Informer.
type informer[T client.Object] struct {
	cache.Informer
	mirror *mirror[T]
}

// AddEventHandler also tells the handler what there is.
func (i informer[T]) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mirror.handlers = append(i.mirror.handlers, h)
	for _, name := range sortedKeys(i.mirror.told) {
		h.OnAdd(i.mirror.told[name], true)
	}
	return nil, nil
}

// caches is what the webhook uses of cache.Cache.
type caches struct {
	cache.Cache
	clusters *mirror[*v1alpha1.EtcdCluster]
	nodes    *mirror[*corev1.Node]
}

func (c caches) GetInformer(_ context.Context, obj client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	switch obj.(type) {
	case *v1alpha1.EtcdCluster:
		return informer[*v1alpha1.EtcdCluster]{mirror: c.clusters}, nil
	case *corev1.Node:
		return informer[*corev1.Node]{mirror: c.nodes}, nil
	}
	return nil, fmt.Errorf("nobody plays an informer for %T", obj)
}

func (c caches) WaitForCacheSync(context.Context) bool { return true }

// Get reads the cache.
func (c caches) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		if found := c.clusters.one(key.Name); found != nil {
			found.DeepCopyInto(into)
			return nil
		}
	case *corev1.Node:
		if found := c.nodes.one(key.Name); found != nil {
			found.DeepCopyInto(into)
			return nil
		}
	}
	return fmt.Errorf("%s is not in the cache", key.Name)
}

// List reads the cache.
func (c caches) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch into := list.(type) {
	case *v1alpha1.EtcdClusterList:
		for _, o := range c.clusters.all() {
			into.Items = append(into.Items, *o.DeepCopy())
		}
	case *corev1.NodeList:
		for _, o := range c.nodes.all() {
			into.Items = append(into.Items, *o.DeepCopy())
		}
	default:
		return fmt.Errorf("nobody plays a cached List of %T", list)
	}
	return nil
}
