package machinehook

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/control/follow"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// A machineFollower keeps the Machines as the API server has them.
type machineFollower struct {
	Options
	kind    machineKind
	changed loop.Signal
	logged  loop.LogOnce

	mu sync.Mutex // guards the fields below
	// resource is in the version that is followed, or was followed last.
	resource schema.GroupVersionResource
	// objects is nil while no version is followed. isAbsent means that the API server serves none.
	objects  *follow.Set[*record]
	isAbsent bool
}

// run follows the objects until ctx ends. While the API server does not serve the kind, run looks
// for it again and again. It does so too if the API server stops serving the version.
func (f *machineFollower) run(ctx context.Context) {
	for ctx.Err() == nil {
		if f.findResource(ctx) {
			if err := f.follow(ctx); f.logged.ChangedErrorText("follow", err) && err != nil {
				f.Log.ErrorContext(ctx, "failed to follow machines; retrying", "err", err)
			}
		}
		_ = loop.Wait(ctx, f.Tick, nil) // The condition above checks ctx.
	}
}

// follow follows the objects until ctx ends, or until the API server does not serve the version.
func (f *machineFollower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := func(err error) {
		if apierrors.IsNotFound(err) {
			f.Log.WarnContext(ctx, "a kind of machines is no longer served in the version that is followed; "+
				"looking for another version", "kind", f.kind.String(), "version", f.followed().Version)
			cancel()
		}
	}
	objects, run, err := follow.Open[*record](follow.Options{
		Name: f.kind.String(), Source: apiaccess.PagedLists(f.source(), f.trim), Example: &unstructured.Unstructured{},
		Transform: f.trim, Log: f.Log, Failed: failed,
	})
	if err == nil {
		err = objects.OnChange(f.noteChange)
	}
	if err != nil {
		return err
	}
	f.setObjects(objects)
	defer f.setObjects(nil)
	run(ctx, f.changed.Notify)
	return nil
}

func (f *machineFollower) source() cache.ListerWatcher {
	objects := f.Client.Resource(f.resource)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: objects.Watch,
	}, f.Client)
}

// findResource reports whether the API server serves the kind in a version that can be followed.
func (f *machineFollower) findResource(ctx context.Context) bool {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resource, isServed, err := f.FindResource(reading, f.kind.GroupKind, f.kind.versions)
	if ctx.Err() != nil {
		return false
	}
	problem := err
	if err == nil && !isServed {
		problem = errors.New("the API server does not serve it")
	}
	if f.logged.ChangedErrorKind("resource", problem) && problem != nil {
		f.Log.WarnContext(ctx, "failed to find a kind of machines; retrying", "kind", f.kind.String(), "err", problem)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isAbsent = err == nil && !isServed
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

func (f *machineFollower) setObjects(objects *follow.Set[*record]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects = objects
	f.changed.Notify()
}

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

// noteChange begins a round if the object has changed.
func (f *machineFollower) noteChange(before, after *record) {
	if after != nil && after.err != nil {
		f.Log.Error("failed to read an object; no hook changes until it can be read",
			"kind", f.kind.Kind, "name", after.Name, "err", after.err)
	}
	if before != nil && after != nil {
		was := before.parsed
		if was.ResourceVersion = after.parsed.ResourceVersion; was == after.parsed {
			return
		}
	}
	f.changed.Notify()
}

// list returns the objects in the order of their names, and whether they are known: all of them can
// be parsed, or the API server does not serve the kind.
func (f *machineFollower) list() (found []machine.Object, areKnown bool) {
	f.mu.Lock()
	objects, isAbsent := f.objects, f.isAbsent
	f.mu.Unlock()
	if objects == nil {
		return nil, isAbsent
	}
	records, err := objects.List()
	for _, r := range records {
		err = cmp.Or(err, r.err)
		found = append(found, r.parsed)
	}
	slices.SortFunc(found, func(a, b machine.Object) int { return strings.Compare(a.String(), b.String()) })
	return found, err == nil
}
