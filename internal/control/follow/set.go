// Package follow follows the objects of one kind: it lists them, and watches what changes later.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// maxAge is the time after which a watch that has delivered nothing may hang. The API server
// sends a bookmark about once a minute, and kubelets and the leader write at least every few.
const maxAge = 2 * time.Minute

// ErrNotFilled reports that the objects are not known yet. It never means that there are none.
var ErrNotFilled = errors.New("the cache is not filled yet")

// A Set has the objects of one kind as its informer knows them.
type Set[T any] struct {
	// Now is the clock.
	Now      func() time.Time
	informer toolscache.SharedInformer

	mu    sync.Mutex // guards the fields below
	seen  string     // the resourceVersion of the last event or bookmark
	noted time.Time  // when seen was compared last
	moved time.Time  // a time before which nothing was delivered since
}

// New returns the Set of an informer, which another goroutine runs.
func New[T any](informer toolscache.SharedInformer) *Set[T] {
	return &Set[T]{Now: time.Now, informer: informer, noted: time.Now()}
}

// Cached returns the Set of a kind in the cache, which may start later. The cache hands out
// informers of client-go, but its own List copies at least the struct of every object.
func Cached[T client.Object](ctx context.Context, from cache.Cache, kind T) (*Set[T], error) {
	opened, err := from.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("opening the informer for %T: %w", kind, err)
	}
	informer, ok := opened.(toolscache.SharedInformer)
	if !ok {
		return nil, fmt.Errorf("opening the informer for %T: %T has no store", kind, opened)
	}
	return New[T](informer), nil
}

// Options describe a Set with an informer of its own, apart from the caches that reviews wait for.
type Options struct {
	// Name is the name of the objects in the log.
	Name    string
	Source  toolscache.ListerWatcher
	Example runtime.Object
	// Transform makes what the Set keeps of an object. Nil keeps all of it.
	Transform toolscache.TransformFunc
	Log       *slog.Logger
	// Failed is called with the error of each list or watch. Optional.
	Failed func(error)
}

// Open returns a Set, and the function that follows its objects until ctx ends. It calls synced
// after the first list.
func Open[T any](o Options) (s *Set[T], run func(ctx context.Context, synced func()), err error) {
	informer := toolscache.NewSharedInformer(o.noted(), o.Example, 0)
	// The default handler logs each failure.
	err = informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {})
	if o.Transform != nil {
		err = errors.Join(err, informer.SetTransform(o.Transform))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("following %s: %w", o.Name, err)
	}
	s = New[T](informer)
	return s, func(ctx context.Context, synced func()) {
		s.IsCurrent() // The age counts from here.
		var running sync.WaitGroup
		running.Go(func() { informer.RunWithContext(ctx) })
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			synced()
		}
		running.Wait()
	}, nil
}

// noted returns the source, which logs the first failure of a kind, and its end.
func (o Options) noted() toolscache.ListerWatcher {
	from := toolscache.ToListerWatcherWithContext(o.Source)
	var logged loop.LogOnce
	note := func(ctx context.Context, err error) {
		if ctx.Err() != nil {
			return
		}
		if err != nil && o.Failed != nil {
			o.Failed(err)
		}
		switch isNews := logged.ChangedErrorKind("", err); {
		case isNews && err != nil:
			o.Log.WarnContext(ctx, "failed to follow objects; retrying", "objects", o.Name, "err", err)
		case isNews:
			o.Log.InfoContext(ctx, "following objects again", "objects", o.Name)
		}
	}
	list := func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
		found, err := from.ListWithContext(ctx, l)
		note(ctx, err)
		return found, err
	}
	watching := func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
		opened, err := from.WatchWithContext(ctx, l)
		if l.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // Otherwise, client-go lists.
			note(ctx, err)
		}
		return opened, err
	}
	return toolscache.ToListWatcherWithWatchListSemantics(
		&toolscache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watching}, o.Source)
}

// List returns all objects. The caller shares them with the Set, and must not change them: a copy
// of every Node for every round would be most of the memory of a large cluster. Before the first
// list, it returns ErrNotFilled.
func (s *Set[T]) List() ([]T, error) {
	var none T
	if !s.informer.HasSynced() {
		return nil, fmt.Errorf("listing each %T: %w", none, ErrNotFilled)
	}
	stored := s.informer.GetStore().List()
	found := make([]T, len(stored))
	for i, object := range stored {
		var ok bool
		if found[i], ok = object.(T); !ok {
			return nil, fmt.Errorf("listing each %T: the cache has a %T", none, object)
		}
	}
	return found, nil
}

// Get returns the object of this name without a namespace, which is shared as those of List are, or
// the zero value if there is none. Before the first list, it returns ErrNotFilled.
func (s *Set[T]) Get(name string) (found T, err error) {
	if !s.informer.HasSynced() {
		return found, fmt.Errorf("finding a %T: %w", found, ErrNotFilled)
	}
	object, exists, err := s.informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		return found, err
	}
	found, ok := object.(T)
	if !ok {
		return found, fmt.Errorf("finding a %T: the cache has a %T", found, object)
	}
	return found, nil
}

// OnChange calls changed for each change that the Set learns of. The first value is the zero value
// for a new object, and the second one for an object that is gone. If a watch missed the deletion,
// the first one is the last version that the Set had.
func (s *Set[T]) OnChange(changed func(before, after T)) error {
	var none T
	_, err := s.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if after, ok := object.(T); ok {
				changed(none, after)
			}
		},
		UpdateFunc: func(old, object any) {
			before, ok := old.(T)
			if after, also := object.(T); ok && also {
				changed(before, after)
			}
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if before, ok := object.(T); ok {
				changed(before, none)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("following each %T: %w", none, err)
	}
	return nil
}

// IsCurrent reports whether the watch has delivered an event or a bookmark within maxAge. Each of
// them has a later resourceVersion. Otherwise the content of the Set is not known to be that of the
// API server, and should be read from there. The age is known only to the last call of IsCurrent.
func (s *Set[T]) IsCurrent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version := s.informer.LastSyncResourceVersion(); version != s.seen {
		s.seen, s.moved = version, s.noted // It may have been delivered just after the last note.
	}
	s.noted = s.Now()
	return s.noted.Sub(s.moved) < maxAge
}
