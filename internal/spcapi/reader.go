package spcapi

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// watchTime is the least time that a watch of the inventory lasts, if nobody cuts it.
const watchTime = 4 * time.Hour

// ConfigMapReader is a client for the ConfigMaps of the inventory's namespace.
type ConfigMapReader interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Reader follows the inventory's ConfigMap.
type Reader struct {
	ConfigMaps ConfigMapReader
	Name       string
	Log        *slog.Logger

	latest struct {
		sync.Mutex
		index *spc.Index
	}
}

// Latest returns the inventory as last read, nil before the first.
func (r *Reader) Latest() *spc.Index {
	r.latest.Lock()
	defer r.latest.Unlock()
	return r.latest.index
}

// Run follows the ConfigMap until ctx ends, and returns its cause. notify is called after each change. A ConfigMap that
// is gone or cannot be read leaves the last inventory in place: machines do not change because a list was lost.
func (r *Reader) Run(ctx context.Context, notify func()) error {
	// An informer's own watches last five to ten minutes. These ask for nothing in steady state: each lasts for hours, and
	// not all agents' end at once.
	patience := int64((watchTime + rand.N(watchTime)).Seconds())
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String()
	changed := func(obj any) {
		m, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return
		}
		inventory, err := Decode(m)
		if err != nil {
			r.Log.Warn("spc inventory is unreadable, the last one stays", "err", err)
			return
		}
		index := spc.NewIndex(inventory)
		r.latest.Lock()
		r.latest.index = index
		r.latest.Unlock()
		notify()
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return r.ConfigMaps.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector, o.TimeoutSeconds = selector, &patience
				return r.ConfigMaps.Watch(ctx, o)
			},
		},
		ObjectType: &corev1.ConfigMap{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
		},
	})
	controller.RunWithContext(ctx)
	return context.Cause(ctx)
}
