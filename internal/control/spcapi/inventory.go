package spcapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// InventoryKey is the key of the inventory in the ConfigMap's binary data: JSON,
	// compressed with gzip.
	InventoryKey = "inventory.json.gz"
	// maxInventory limits the size of the decompressed inventory. One that fits into a ConfigMap has
	// about 12 MiB.
	maxInventory = 16 << 20
	// watchTime is the minimum duration that a Reader requests for its watch.
	watchTime = 4 * time.Hour
)

// PartName returns the name of the ConfigMap with the part of the inventory for a Node.
func PartName(inventory, node string) string { return partName(inventory, spc.PartOf(node)) }

func partName(inventory string, number int) string { return fmt.Sprintf("%s-%d", inventory, number) }

// Encode compresses an inventory. Equal inventories result in equal bytes.
func Encode(i *spc.Inventory) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	if err := errors.Join(json.NewEncoder(w).Encode(i), w.Close()); err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	return packed.Bytes(), nil
}

// Decode returns the inventory in a ConfigMap that a Publisher wrote.
func Decode(m *corev1.ConfigMap) (*spc.Inventory, error) {
	packed, exists := m.BinaryData[InventoryKey]
	if !exists {
		return nil, fmt.Errorf("the ConfigMap %s/%s has no key %s", m.Namespace, m.Name, InventoryKey)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("decompressing the SPC inventory: %w", err)
	}
	var inventory spc.Inventory
	if err := json.NewDecoder(io.LimitReader(r, maxInventory)).Decode(&inventory); err != nil {
		return nil, fmt.Errorf("reading the SPC inventory: %w", err)
	}
	return &inventory, nil
}

// ConfigMapReader is a client for the ConfigMaps of the inventory's namespace.
type ConfigMapReader interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Reader follows the ConfigMap of one part of the inventory.
type Reader struct {
	ConfigMaps ConfigMapReader
	// Name is that of [PartName].
	Name string
	Log  *slog.Logger

	latest atomic.Pointer[spc.Index]
}

// Latest returns the inventory that was read last, or nil if none has been read.
func (r *Reader) Latest() *spc.Index { return r.latest.Load() }

// Run follows the ConfigMap until ctx ends and returns the cause. It calls notify after
// each change. If the ConfigMap is deleted or cannot be read, the last inventory stays: the
// loss of the list does not change the machines.
func (r *Reader) Run(ctx context.Context, notify func()) error {
	// The watches of an informer last five to ten minutes by default. These last for hours, to
	// save requests, and end at different times on different nodes.
	seconds := int64((watchTime + rand.N(watchTime)).Seconds())
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String()
	changed := func(obj any) {
		m, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return
		}
		inventory, err := Decode(m)
		if err != nil {
			r.Log.Warn("failed to decode spc inventory; using the last one", "err", err)
			return
		}
		r.latest.Store(spc.NewIndex(inventory))
		notify()
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return r.ConfigMaps.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector, o.TimeoutSeconds = selector, &seconds
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
