package machinehook

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/internal/control/follow"
)

// TestUnreadableObject: while an object cannot be parsed, the Machines are not known.
func TestUnreadableObject(t *testing.T) {
	f := New(Options{Log: slog.New(slog.DiscardHandler)}).machines
	object := func(providerID any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
			"metadata": map[string]any{"name": "m", "namespace": "default", "uid": "1"},
			"spec":     map[string]any{"providerID": providerID},
		}}
	}
	for _, c := range []struct {
		providerID any
		areKnown   bool
	}{{"aws:///a/i-1", true}, {int64(7), false}, {"aws:///a/i-1", true}} {
		fill(t, f, object(c.providerID))
		_, areKnown := f.list()
		require.Equal(t, c.areKnown, areKnown, c.providerID)
	}
}

// A filledInformer has listed its objects, and receives no others.
type filledInformer struct {
	cache.SharedInformer
	store cache.Store
}

func (filledInformer) HasSynced() bool         { return true }
func (i filledInformer) GetStore() cache.Store { return i.store }

// fill sets the Machines of the cache.
func fill(t *testing.T, f *machineFollower, objects ...*unstructured.Unstructured) cache.Store {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, object := range objects {
		require.NoError(t, store.Add(recordOf(t, f, object)))
	}
	f.setObjects(follow.New[*record](filledInformer{store: store}))
	return store
}

// recordOf returns the record of an object.
func recordOf(t *testing.T, f *machineFollower, object *unstructured.Unstructured) *record {
	t.Helper()
	trimmed, err := f.trim(object)
	require.NoError(t, err)
	r, ok := trimmed.(*record)
	require.True(t, ok)
	return r
}
