package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

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
