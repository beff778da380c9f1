package machinehook_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
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
