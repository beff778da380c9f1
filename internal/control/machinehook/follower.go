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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
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
	informer := cache.NewSharedInformer(apiaccess.PagedLists(f.source(), f.trim), &unstructured.Unstructured{}, 0)
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
	err = errors.Join(err, informer.SetTransform(f.trim), informer.SetWatchErrorHandlerWithContext(handleError))
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

// source lists and watches the objects in all namespaces.
func (f *machineFollower) source() cache.ListerWatcher {
	objects := f.client.Resource(f.resource)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: objects.Watch,
	}, f.client)
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

// A record is what the cache has of an object.
type record struct {
	// PartialObjectMetadata has the name, the UID and the version.
	metav1.PartialObjectMetadata
	parsed machine.Object
	// err is why the object cannot be parsed.
	err error
}

// trim is the transform of the cache. It returns a record of each object.
func (f *machineFollower) trim(object any) (any, error) {
	m, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil // client-go may trim an object twice.
	}
	r := &record{}
	r.Namespace, r.Name, r.UID, r.ResourceVersion = m.GetNamespace(), m.GetName(), m.GetUID(), m.GetResourceVersion()
	r.parsed, r.err = f.kind.parse(m)
	return r, nil
}

func (f *machineFollower) update(object any) {
	r, ok := object.(*record)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.keyOf(r)
	if r.err != nil {
		f.log.Error("failed to read an object; no hook changes until it can be read",
			"kind", f.kind.Kind, "name", r.Name, "err", r.err)
		f.unread[key] = true
		return
	}
	delete(f.unread, key)
	before := f.objects[key]
	f.objects[key] = r.parsed
	before.ResourceVersion = r.parsed.ResourceVersion
	if before != r.parsed {
		f.changed.Notify()
	}
}

func (f *machineFollower) remove(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if r, ok := object.(*record); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.objects, f.keyOf(r))
		delete(f.unread, f.keyOf(r))
	}
}

func (f *machineFollower) keyOf(r *record) string {
	return machine.Object{Kind: f.kind.Kind, Namespace: r.Namespace, Name: r.Name}.String()
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
