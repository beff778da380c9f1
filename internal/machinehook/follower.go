package machinehook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// A machineFollower keeps the Machines as the API server has them.
type machineFollower struct {
	client  dynamic.Interface
	find    ResourceFinder
	kind    machineKind
	log     *slog.Logger
	retry   time.Duration
	changed loop.Signal
	logged  loop.LogOnce

	mu sync.Mutex // guards the fields below
	// resource is in the version that is followed, or was followed last.
	resource schema.GroupVersionResource
	objects  map[string]machine.Object
	// unread are the objects whose newest version cannot be parsed.
	unread map[string]bool
	// isKnown means that the objects are complete, or that the API server does not serve the kind.
	isKnown bool
}

func newMachines(o Options, changed loop.Signal) *machineFollower {
	return &machineFollower{
		client: o.Client, find: o.FindResource, log: o.Log, retry: o.Tick, changed: changed,
		kind: machines(), objects: map[string]machine.Object{}, unread: map[string]bool{},
	}
}

// run follows the objects until ctx ends. While the API server does not serve the kind, run looks
// for it again and again. It does so too if the API server stops serving the version.
func (f *machineFollower) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if f.findResource(ctx) {
			if err := f.follow(ctx); err != nil {
				return err
			}
		}
		_ = loop.Wait(ctx, f.retry, nil) // The condition above checks ctx.
	}
	return nil
}

// follow follows the objects until ctx ends, or until the API server does not serve the version.
func (f *machineFollower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := dynamicinformer.NewFilteredDynamicInformer(
		f.client, f.resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	followed, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: f.update, UpdateFunc: func(_, object any) { f.update(object) }, DeleteFunc: f.remove,
	})
	handleError := func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		f.log.WarnContext(ctx, "a kind of machines is no longer served in the version that is followed; "+
			"looking for another version", "kind", f.kind.String(), "version", f.followed().Version)
		cancel()
	}
	err = errors.Join(err, informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(handleError))
	if err != nil {
		return fmt.Errorf("following each %s: %w", f.kind.Kind, err)
	}
	var informing sync.WaitGroup
	informing.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), followed.HasSynced) {
		f.setKnown(true)
	}
	<-ctx.Done()
	informing.Wait()
	f.setKnown(false)
	return nil
}

// findResource forgets all objects, and reports whether the API server serves the kind in a
// version that can be followed.
func (f *machineFollower) findResource(ctx context.Context) bool {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resource, isServed, err := f.find(reading, f.kind.GroupKind, f.kind.versions)
	if ctx.Err() != nil {
		return false
	}
	problem := err
	if err == nil && !isServed {
		problem = errors.New("the API server does not serve it")
	}
	if f.logged.ChangedErrorKind("resource", problem) && problem != nil {
		f.log.WarnContext(ctx, "failed to find a kind of machines; retrying", "kind", f.kind.String(), "err", problem)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects, f.unread = map[string]machine.Object{}, map[string]bool{}
	f.isKnown = err == nil && !isServed
	f.changed.Notify()
	if isServed {
		f.resource = resource
	}
	return isServed
}

// followed returns the resource in the version that is followed, or was followed last.
func (f *machineFollower) followed() schema.GroupVersionResource {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resource
}

func (f *machineFollower) setKnown(isKnown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isKnown = isKnown
	f.changed.Notify()
}

// trim removes what is not read from an object before it is cached.
func trim(object any) (any, error) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	m.SetManagedFields(nil)
	for _, part := range []struct {
		name string
		kept []string
	}{
		{"spec", []string{"providerID"}},
		{"status", []string{"nodeRef", "deletion", "conditions"}},
	} {
		if values, isMap := m.Object[part.name].(map[string]any); isMap {
			for key := range values {
				if !slices.Contains(part.kept, key) {
					delete(values, key)
				}
			}
		}
	}
	return m, nil
}

func (f *machineFollower) update(object any) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	parsed, err := f.kind.parse(m)
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.keyOf(m)
	if err != nil {
		f.log.Error("failed to read an object; no hook changes until it can be read",
			"kind", f.kind.Kind, "name", m.GetName(), "err", err)
		f.unread[key] = true
		return
	}
	delete(f.unread, key)
	before := f.objects[key]
	f.objects[key] = parsed
	before.ResourceVersion = parsed.ResourceVersion
	if before != parsed {
		f.changed.Notify()
	}
}

func (f *machineFollower) remove(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if m, ok := object.(*unstructured.Unstructured); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.objects, f.keyOf(m))
		delete(f.unread, f.keyOf(m))
	}
}

func (f *machineFollower) keyOf(m *unstructured.Unstructured) string {
	return machine.Object{Kind: f.kind.Kind, Namespace: m.GetNamespace(), Name: m.GetName()}.String()
}

// list returns the objects in the order of their names, and whether it is all of them.
func (f *machineFollower) list() (found []machine.Object, isKnown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found = make([]machine.Object, 0, len(f.objects))
	for _, o := range f.objects {
		found = append(found, o)
	}
	slices.SortFunc(found, func(a, b machine.Object) int { return strings.Compare(a.String(), b.String()) })
	return found, f.isKnown && len(f.unread) == 0
}
