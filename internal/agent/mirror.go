package agent

import (
	"context"
	"log/slog"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// object is what can be mirrored.
type object interface {
	runtime.Object
	metav1.Object
}

// mirror is a copy of some of the API server's objects, by name, kept up to date by one list and one watch. It is as
// old as the watch is late: who writes from it guards the write with the object's resourceVersion.
type mirror[T object] struct {
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
	changed func()
	log     *slog.Logger
	// wanted rings when somebody needs the objects; nil if they are needed anyway.
	wanted bell

	mu      sync.Mutex // guards what follows
	objects map[string]T
	synced  bool
	trouble said
}

// all returns the objects, which the caller must not change, and whether they were ever read. They are known from the
// first complete list on, and stay known as they were when the API server goes away.
func (m *mirror[T]) all() (objects []T, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		objects = append(objects, o)
	}
	return objects, m.synced
}

// one returns the object of that name, which the caller must not change.
func (m *mirror[T]) one(name string) (found T, there, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, there = m.objects[name]
	return found, there, m.synced
}

// runWanted keeps the copy from when it is wanted until the context ends.
func (m *mirror[T]) runWanted(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.wanted:
	}
	return m.run(ctx)
}

// run keeps the copy until the context ends.
func (m *mirror[T]) run(ctx context.Context) error {
	delays := retries()
	var example T
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			found, err := m.list(ctx, o)
			m.report(ctx, err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := m.watch(ctx, o)
			m.report(ctx, err)
			return stream, err
		},
	}
	cache.NewReflectorWithOptions(source, example, &reflected[T]{m}, cache.ReflectorOptions{Backoff: &delays}).RunWithContext(ctx)
	return context.Cause(ctx)
}

// report says once that the API server does not answer, and once that it does again.
func (m *mirror[T]) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	before := m.trouble.last
	news := m.trouble.changed(cause(err))
	m.mu.Unlock()
	switch {
	case !news:
	case err != nil:
		m.log.WarnContext(ctx, "the api server does not show its objects, keeping what is known", "err", err)
	case before != "":
		m.log.InfoContext(ctx, "the api server shows its objects again")
	}
}

// reflected is the side of a mirror that the reflector writes.
type reflected[T object] struct{ m *mirror[T] }

func (r *reflected[T]) Add(o any) error    { return r.Update(o) }
func (r *reflected[T]) Update(o any) error { return r.write(func() { r.m.set(o) }) }
func (r *reflected[T]) Delete(o any) error {
	return r.write(func() {
		if gone, ok := o.(T); ok {
			delete(r.m.objects, gone.GetName())
		}
	})
}

func (r *reflected[T]) Replace(list []any, _ string) error {
	return r.write(func() {
		r.m.objects, r.m.synced = map[string]T{}, true
		for _, o := range list {
			r.m.set(o)
		}
	})
}

func (r *reflected[T]) Resync() error { return nil }

func (r *reflected[T]) write(change func()) error {
	r.m.mu.Lock()
	change()
	r.m.mu.Unlock()
	r.m.changed()
	return nil
}

// set keeps o. The caller holds the mutex.
func (m *mirror[T]) set(o any) {
	if kept, ok := o.(T); ok {
		m.objects[kept.GetName()] = kept
	}
}
