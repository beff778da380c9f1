package manifests_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// testReviewedRequests checks on a real API server which requests for Nodes, EtcdMembers and
// Machines call which entry. The server of the test refuses every review and returns the path of
// the request. dry is whether the last one was a dry run.
func testReviewedRequests(t *testing.T, server *apiserver.Server) {
	apiserver.InstallMachines(t, server)
	require.NoError(t, server.Apply(t.Context(), withComponent(t, ".", clusterAPI, nodeClaims)))
	kubelet := addAnnotated(t, server, "n", nil)
	require.ErrorContains(t, annotate(t, server.Client(), "n", map[string]any{marker: "true"}),
		`failed calling webhook "removal-markers.holdfast.dev"`, "fails closed")
	err := annotate(t, kubelet, "n", map[string]any{marker: "false"}, "status")
	require.NoError(t, err, "no other write needs a webhook")
	t.Run("patches of machines", func(t *testing.T) { testMachinePatches(t, server) })

	ca, err := pki.NewCA("holdfast-webhook")
	require.NoError(t, err)
	var dry atomic.Bool
	proxy, err := server.ServeService(t.Context(), "holdfast-system", "holdfast-webhook", refuser(t, ca, &dry))
	require.NoError(t, err)
	defer func() { require.NoError(t, proxy.Close()) }()
	trustAll(t, server, ca)
	t.Run("removal markers", func(t *testing.T) { testRemovalMarkers(t, server, &dry) })
	t.Run("etcd members", func(t *testing.T) { testEtcdMemberEntry(t, server) })
	t.Run("machines", func(t *testing.T) { testMachineDeletions(t, server, &dry) })

	require.NoError(t, proxy.Close())
	for _, resource := range []string{
		"cluster.x-k8s.io/v1beta2/namespaces/default/machines/m1", "karpenter.sh/v1/nodeclaims/c1",
	} {
		require.NoError(t, deleteRaw(t, server, resource), "fails open")
	}
}

// marker is the annotation that removes a member of k3s.
const marker = "etcd.k3s.cattle.io/remove"

// testRemovalMarkers checks which updates of a Node call the entry for markers.
func testRemovalMarkers(t *testing.T, server *apiserver.Server, dry *atomic.Bool) {
	const done, rke2 = "etcd.k3s.cattle.io/removed-node-name", "etcd.rke2.cattle.io/remove"
	type annotations map[string]any // nil removes
	for i, c := range []struct {
		name       string
		before     map[string]string
		set        annotations
		isReviewed bool
	}{
		{"set", nil, annotations{marker: "true"}, true},
		{"set in upper case", nil, annotations{marker: "TRUE"}, true},
		{"set for RKE2", nil, annotations{rke2: "true"}, true},
		{"set after false", map[string]string{marker: "false"}, annotations{marker: "true"}, true},
		{"set after a removal", map[string]string{done: "m"}, annotations{marker: "true"}, true},
		{"set as if removed", nil, annotations{marker: "true", done: "m"}, true},
		{"set again by the other annotation", map[string]string{marker: "true", done: "m"}, annotations{done: nil}, true},
		{"second one", map[string]string{marker: "true"}, annotations{rke2: "true"}, true},
		{"false", nil, annotations{marker: "false"}, false},
		{"odd value", nil, annotations{marker: "yes"}, false},
		{"similar key", nil, annotations{"etcd.k3s.cattle.io/removed": "true"}, false},
		{"removed", map[string]string{marker: "true"}, annotations{marker: nil}, false},
		{"cancelled", map[string]string{marker: "true"}, annotations{marker: "false"}, false},
		{"already set", map[string]string{marker: "true"}, annotations{marker: "True", "a": "b"}, false},
		{"k3s has removed the member", map[string]string{marker: "true"}, annotations{done: "m"}, false},
		{"joined again", map[string]string{marker: "true", done: "m"}, annotations{marker: "false", done: nil}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			byKubelet, byAdmin := fmt.Sprintf("kubelet-%d", i), fmt.Sprintf("admin-%d", i)
			kubelet := addAnnotated(t, server, byKubelet, c.before)
			addAnnotated(t, server, byAdmin, c.before)
			for _, err := range []error{
				annotate(t, kubelet, byKubelet, c.set, "status"), annotate(t, server.Client(), byAdmin, c.set),
			} {
				if c.isReviewed {
					require.ErrorContains(t, err, "refused at /validate-removal")
				} else {
					require.NoError(t, err)
				}
			}
		})
	}
	require.False(t, dry.Load())
	err := patchDry(t.Context(), server.Client(), "n", `{"metadata":{"annotations":{"`+marker+`":"true"}}}`)
	require.ErrorContains(t, err, "refused at /validate-removal")
	require.True(t, dry.Load())
}

// testEtcdMemberEntry checks which writes to an EtcdMember of k0s call the entry.
func testEtcdMemberEntry(t *testing.T, server *apiserver.Server) {
	members := dynamic.NewForConfigOrDie(server.Admin()).Resource(
		schema.GroupVersionResource{Group: "etcd.k0sproject.io", Version: "v1beta1", Resource: "etcdmembers"})
	patch := func(body string, subresources ...string) error {
		_, err := members.Patch(t.Context(), "c1", types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)
		return err
	}
	member := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "etcd.k0sproject.io/v1beta1", "kind": "EtcdMember", "metadata": map[string]any{"name": "c1"},
	}}
	_, err := members.Create(t.Context(), member, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, patch(`{"metadata":{"labels":{"a":"b"}},"spec":{"leave":false}}`))
	require.NoError(t, patch(`{"status":{"memberID":"3a"}}`, "status"))
	require.ErrorContains(t, patch(`{"spec":{"leave":true}}`), "refused at /validate-removal")
	require.ErrorContains(t, members.Delete(t.Context(), "c1", metav1.DeleteOptions{}), "refused at /validate-removal")

	member.SetName("c2")
	member.Object["spec"] = map[string]any{"leave": true}
	_, err = members.Create(t.Context(), member, metav1.CreateOptions{})
	require.NoError(t, err)
	again := []byte(`{"spec":{"leave":false}}`)
	_, err = members.Patch(t.Context(), "c2", types.MergePatchType, again, metav1.PatchOptions{})
	require.NoError(t, err, "it joins again")
}

// addAnnotated registers a Node with annotations, and returns a client of its kubelet.
func addAnnotated(
	t *testing.T, server *apiserver.Server, name string, annotations map[string]string,
) kubernetes.Interface {
	t.Helper()
	_, kubelet, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: name, Ready: true, Annotations: annotations})
	require.NoError(t, err)
	return clientOf(t, kubelet)
}

// annotate changes annotations of a Node.
func annotate(
	t *testing.T, client kubernetes.Interface, node string, annotations map[string]any, subresources ...string,
) error {
	t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().Patch(
		t.Context(), node, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	return err
}
