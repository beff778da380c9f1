package machinehook

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// TestUnreadableObject: while an object cannot be parsed, the Machines are not known.
func TestUnreadableObject(t *testing.T) {
	f := newMachines(Options{Log: slog.New(slog.DiscardHandler)}, loop.NewSignal())
	f.setKnown(true)
	object := func(providerID any) *record {
		return recordOf(t, f, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
			"metadata": map[string]any{"name": "m", "namespace": "default", "uid": "1"},
			"spec":     map[string]any{"providerID": providerID},
		}})
	}
	isKnown := func() bool { _, isKnown := f.list(); return isKnown }
	f.update(object("aws:///a/i-1"))
	require.True(t, isKnown())
	f.update(object(int64(7)))
	require.False(t, isKnown())
	f.update(object("aws:///a/i-1"))
	require.True(t, isKnown())
	f.update(object(int64(7)))
	f.remove(object(int64(7)))
	require.True(t, isKnown())
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
