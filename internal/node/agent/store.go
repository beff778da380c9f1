package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// latest is a value that one goroutine replaces and others read. A time keeps its monotonic
// reading, so that changes of the wall clock do not change ages that are measured by it.
type latest[T any] struct{ pointer atomic.Pointer[T] }

func (l *latest[T]) set(value T) { l.pointer.Store(&value) }

// get returns the value, and whether it was ever set.
func (l *latest[T]) get() (value T, known bool) {
	if set := l.pointer.Load(); set != nil {
		return *set, true
	}
	return value, false
}

// storedObject is a type that a store can contain.
type storedObject interface {
	runtime.Object
	metav1.Object
}

// A store is a copy of some objects of the API server. One list and one watch keep it up to date.
// It can be behind the API server, so a write that is based on it must carry the resourceVersion of
// the object.
type store[T storedObject] struct {
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
	log    *slog.Logger
	logged loop.LogOnce // belongs to the reflector
	// objects are known after the first complete list, and stay so when the API server goes away. A
	// reader must not change them.
	objects latest[[]T]
	// writer replaces the objects, and then calls the function that newStore got.
	writer cache.ReflectorStore
	// wanted is set when the objects are needed for the first time. See runWhenWanted.
	wanted loop.Signal
}

func newStore[T storedObject](log *slog.Logger, changed func()) *store[T] {
	s := &store[T]{log: log, wanted: loop.NewSignal()}
	// The first call of a reflector is Replace, with a complete list.
	s.writer = cache.NewUndeltaStore(func(all []any) {
		objects := make([]T, 0, len(all))
		for _, o := range all {
			if object, ok := o.(T); ok {
				objects = append(objects, object)
			}
		}
		s.objects.set(objects)
		changed()
	}, cache.MetaNamespaceKeyFunc)
	return s
}

// get returns the object with this name, and whether the objects are known.
func (s *store[T]) get(name string) (found T, exists, synced bool) {
	objects, synced := s.objects.get()
	if i := slices.IndexFunc(objects, func(o T) bool { return o.GetName() == name }); i >= 0 {
		return objects[i], true, synced
	}
	return found, false, synced
}

func (s *store[T]) runWhenWanted(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.wanted:
	}
	return s.run(ctx)
}

func (s *store[T]) run(ctx context.Context) error {
	backoff := retryBackoff()
	var example T
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			found, err := s.list(ctx, o)
			s.logResult(ctx, err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := s.watch(ctx, o)
			// Without the feature WatchList, as on Kubernetes 1.33, the reflector lists after this error.
			if isRefused := o.SendInitialEvents != nil && apierrors.IsInvalid(err); !isRefused {
				s.logResult(ctx, err)
			}
			return stream, err
		},
	}
	options := cache.ReflectorOptions{Backoff: &backoff}
	cache.NewReflectorWithOptions(source, example, s.writer, options).RunWithContext(ctx)
	return context.Cause(ctx)
}

// logResult logs the first failure of a kind, and the first success after a failure.
func (s *store[T]) logResult(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil || !s.logged.ChangedErrorKind("requests", err):
	case err != nil:
		s.log.WarnContext(ctx, "failed to read from the API server; using cached objects", "err", err)
	default:
		s.log.InfoContext(ctx, "reading from the API server works again")
	}
}
