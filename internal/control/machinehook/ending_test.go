package machinehook_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

func testEnding(t *testing.T, f *fixture) {
	requireEnding := func(node, expected string) {
		t.Helper()
		require.Equal(t, expected, f.controller.Ending(t.Context(), v1alpha1.Grant{Node: node}))
	}
	requireEnding("etcd", "")
	f.add(t, "ending")
	f.remove(t, "ending")
	claim := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
		"metadata": map[string]any{"name": "claimed", "finalizers": []any{"karpenter.sh/termination"}},
	}}
	_, err := f.claims.Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	f.patchClaim(t, `{"status":{"providerID":"cloud:///claimed"}}`, "status")
	require.NoError(t, f.claims.Delete(t.Context(), "claimed", metav1.DeleteOptions{}))
	f.setNodes(node("etcd", true), node("ending", true), node("claimed", true))
	f.set(func(f *fixture) { f.cached = nil })
	requireEnding("ending", "Machine default/ending of node ending is being deleted")
	requireEnding("claimed", "NodeClaim claimed of node claimed is being deleted")
	requireEnding("etcd", "")

	// F66: Karpenter names no Node in a NodeClaim that is not registered. The grant identifies it.
	gone := v1alpha1.Grant{Node: "gone", ProviderID: "cloud:///claimed"}
	require.Equal(t, "NodeClaim claimed of node gone is being deleted", f.controller.Ending(t.Context(), gone))
	f.setNodes(node("gone", true))
	require.Equal(t, "NodeClaim claimed of node gone is being deleted", f.controller.Ending(t.Context(), gone),
		"the name has passed to another machine")
	f.setNodes(node("etcd", true), node("ending", true), node("claimed", true))
	gone.ProviderID = "cloud:///another"
	require.Empty(t, f.controller.Ending(t.Context(), gone))

	f.patchClaim(t, `{"status":{"nodeName":"gone"}}`, "status")
	require.Empty(t, f.controller.Ending(t.Context(), gone), "F71: the claim has another machine")
	gone.ProviderID = ""
	require.Equal(t, "NodeClaim claimed of node gone is being deleted", f.controller.Ending(t.Context(), gone))
	f.patchClaim(t, `{"status":{"nodeName":null}}`, "status")
	f.set(func(f *fixture) { f.liveErr = errors.New("timeout") })
	requireEnding("etcd", "it is not known whether the machine of node etcd is about to end")
	f.set(func(f *fixture) { f.liveErr = nil })

	f.patchClaim(t, `{"status":{"conditions":[{"type":"Registered","status":"True"}]}}`, "status")
	requireEnding("claimed", "")
	gone = v1alpha1.Grant{Node: "gone", ProviderID: "cloud:///claimed"}
	require.Equal(t, "NodeClaim claimed of node gone is being deleted", f.controller.Ending(t.Context(), gone),
		"F73: its Node is gone, so Karpenter deletes none before the machine")
	for _, ended := range []dynamic.ResourceInterface{f.machines, f.claims} {
		for _, name := range []string{"ending", "claimed"} {
			_, err := ended.Patch(t.Context(), name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			require.True(t, err == nil || apierrors.IsNotFound(err))
		}
	}
	requireEnding("ending", "")
	f.setNodes(node("etcd", true), node("worker", false))
}

// TestEndingUnknown checks that a machine may be about to end whose objects cannot be read.
func TestEndingUnknown(t *testing.T) {
	kind := schema.GroupVersionKind{Group: machine.ClusterAPIGroup, Version: "v1beta2", Kind: machine.KindMachine}
	find := func(_ context.Context, kind schema.GroupKind, _ []string) (schema.GroupVersionResource, bool, error) {
		return machines(), kind.Kind == machine.KindMachine, nil
	}
	const unknown = "it is not known whether the machine of node etcd is about to end"
	for name, c := range map[string]struct {
		providerID any
		err        error
		want       string
	}{
		"readable":   {providerID: "cloud:///other"},
		"unreadable": {providerID: int64(7), want: unknown},
		"no list":    {providerID: "cloud:///other", err: errors.New("timeout"), want: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"name": "m", "namespace": "default"},
				"spec":     map[string]any{"providerID": c.providerID},
			}}
			object.SetGroupVersionKind(kind)
			client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
				map[schema.GroupVersionResource]string{machines(): "MachineList"}, object)
			if c.err != nil {
				fail := func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, c.err }
				client.PrependReactor("list", "*", fail)
			}
			controller := machinehook.New(machinehook.Options{
				ClusterAPI: true, Karpenter: true, Client: client, FindResource: find, Log: slog.New(slog.DiscardHandler),
				Node: func(_ context.Context, name string) (*corev1.Node, error) { return node(name, true), nil },
			})
			require.Equal(t, c.want, controller.Ending(t.Context(), v1alpha1.Grant{Node: "etcd"}))
		})
	}
}
