package manifests_test

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// The two components for machines.
const clusterAPI, nodeClaims = "cluster-api", "karpenter-nodeclaims"

// A Machine and a NodeClaim.
const (
	shippedMachine = `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Machine",
		"metadata":{"namespace":"default","name":"m1","annotations":{"kept":"a"}},"spec":{"providerID":"cloud:///1"}}`
	shippedClaim = `{"apiVersion":"karpenter.sh/v1","kind":"NodeClaim","metadata":{"name":"c1"}}`
)

// TestMachineComponents checks what the components add to the base.
func TestMachineComponents(t *testing.T) {
	base := webhookEntries(t, kustomized(t, "."))
	for component, rules := range map[string][]admissionv1.Rule{
		clusterAPI: {
			{
				APIGroups: []string{"cluster.x-k8s.io"}, APIVersions: []string{"v1beta1", "v1beta2"},
				Resources: []string{"machines", "clusters"}, Scope: new(admissionv1.NamespacedScope),
			},
			{
				APIGroups: []string{"controlplane.cluster.x-k8s.io"}, APIVersions: []string{"*"},
				Resources: []string{"*"}, Scope: new(admissionv1.NamespacedScope),
			},
		},
		nodeClaims: {{
			APIGroups: []string{"karpenter.sh"}, APIVersions: []string{"v1"},
			Resources: []string{"nodeclaims"}, Scope: new(admissionv1.ClusterScope),
		}},
	} {
		t.Run(component, func(t *testing.T) {
			entries := webhookEntries(t, kustomized(t, withComponent(t, "overlays/karpenter", component)))
			require.Equal(t, base, entries[:len(base)])
			require.Len(t, entries, len(base)+1)
			added := entries[len(base)]
			require.Len(t, added.Rules, len(rules))
			for i, rule := range added.Rules {
				require.Equal(t, []admissionv1.OperationType{admissionv1.Delete}, rule.Operations)
				require.Equal(t, rules[i], rule.Rule)
			}
			require.Equal(t, admissionv1.Ignore, *added.FailurePolicy, "ordinary machines never depend on Holdfast")
			require.Equal(t, "/validate-machine", *added.ClientConfig.Service.Path)
			added.ClientConfig.Service.Path = base[0].ClientConfig.Service.Path
			require.Equal(t, base[0].ClientConfig, added.ClientConfig)
			require.Equal(t, base[0].TimeoutSeconds, added.TimeoutSeconds)
			require.Equal(t, base[0].SideEffects, added.SideEffects)
		})
	}
}

// TestClusterAPIComponent checks the flag, the permissions and the policy of the component.
func TestClusterAPIComponent(t *testing.T) {
	documents := kustomized(t, withComponent(t, ".", clusterAPI))
	args := one[appsv1.Deployment](t, documents, "Deployment", "holdfast-webhook").Spec.Template.Spec.Containers[0].Args
	require.Contains(t, args, "--cluster-api")
	require.NotContains(t, strings.Join(shipped(t), ""), "--cluster-api")
	both := kustomized(t, withComponent(t, ".", clusterAPI, nodeClaims))
	args = one[appsv1.Deployment](t, both, "Deployment", "holdfast-webhook").Spec.Template.Spec.Containers[0].Args
	require.Subset(t, args, []string{"--cluster-api", "--karpenter"})
	role := one[rbacv1.ClusterRole](t, documents, "ClusterRole", "holdfast-webhook-machines")
	require.Equal(t, []string{"get", "list", "watch", "patch"}, role.Rules[0].Verbs)
	binding := one[rbacv1.ClusterRoleBinding](t, documents, "ClusterRoleBinding", role.Name)
	require.Equal(t, role.Name, binding.RoleRef.Name)
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, documents, "ValidatingAdmissionPolicy", "holdfast-machines")
	require.Contains(t, policy.Spec.Variables[0].Expression, machine.HookAnnotation)
}

// testMachinePatches checks which changes of a Machine the webhook may make.
func testMachinePatches(t *testing.T, server *apiserver.Server) {
	require.NoError(t, createRaw(t, server, shippedMachine))
	account, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", "holdfast-webhook", "")
	require.NoError(t, err)
	const refused = "of a Machine the webhook may change only annotation " + machine.HookAnnotation
	for _, c := range []struct{ name, patch, want string }{
		{"set the hook", `{"metadata":{"annotations":{"` + machine.HookAnnotation + `":"holdfast"}}}`, ""},
		{"remove the hook", `{"metadata":{"annotations":{"` + machine.HookAnnotation + `":null}}}`, ""},
		{"other annotation", `{"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"yes"}}}`, refused},
		{"remove other annotation", `{"metadata":{"annotations":{"kept":null}}}`, refused},
		{"label", `{"metadata":{"labels":{"a":"b"}}}`, refused},
		{"finalizer", `{"metadata":{"finalizers":["a/b"]}}`, refused},
		{"spec", `{"spec":{"providerID":"cloud:///2"}}`, refused},
		{"new field", `{"status":{"phase":"Failed"},"more":{}}`, refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := clientOf(t, account).RESTClient()
			err := client.Patch(types.MergePatchType).AbsPath("/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/m1").
				Body([]byte(c.patch)).Do(t.Context()).Error()
			requireVerdict(t, c.want, err)
		})
	}
}

// testMachineDeletions checks which deletions call the entries.
func testMachineDeletions(t *testing.T, server *apiserver.Server, dry *atomic.Bool) {
	const namespaced = "cluster.x-k8s.io/v1beta2/namespaces/default"
	resources := map[string]string{
		namespaced + "/machines/m1":                               shippedMachine,
		"cluster.x-k8s.io/v1beta1/namespaces/default/machines/m1": shippedMachine,
		"karpenter.sh/v1/nodeclaims/c1":                           shippedClaim,
		namespaced + "/clusters/c1": `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster",` +
			`"metadata":{"name":"c1","namespace":"default"}}`,
		"controlplane." + namespaced + "/kubeadmcontrolplanes/cp": `{"kind":"KubeadmControlPlane",` +
			`"apiVersion":"controlplane.cluster.x-k8s.io/v1beta2","metadata":{"name":"cp","namespace":"default"}}`,
	}
	for _, resource := range slices.Sorted(maps.Keys(resources)) {
		t.Run(resource, func(t *testing.T) {
			require.NoError(t, createRaw(t, server, resources[resource]))
			const refused = "refused at /validate-machine"
			require.ErrorContains(t, deleteRaw(t, server, resource), refused)
			require.False(t, dry.Load())
			require.ErrorContains(t, deleteRaw(t, server, resource+"?dryRun=All"), refused)
			require.True(t, dry.Load())
			require.ErrorContains(t, deleteRaw(t, server, path.Dir(resource)), refused, "all at once")
		})
	}
}

// deleteRaw deletes the object, or all objects, at a path below /apis/.
func deleteRaw(t *testing.T, server *apiserver.Server, path string) error {
	t.Helper()
	return server.Client().RESTClient().Delete().RequestURI("/apis/" + path).Do(t.Context()).Error()
}

// createRaw applies an object in JSON.
func createRaw(t *testing.T, server *apiserver.Server, object string) error {
	t.Helper()
	var parsed metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal([]byte(object), &parsed))
	resource := strings.ToLower(parsed.Kind) + "s"
	path := "/apis/" + parsed.APIVersion + "/" + resource + "/" + parsed.Name
	if parsed.Namespace != "" {
		path = "/apis/" + parsed.APIVersion + "/namespaces/" + parsed.Namespace + "/" + resource + "/" + parsed.Name
	}
	return server.Client().RESTClient().Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", "test").
		Param("force", "true").Body([]byte(object)).Do(t.Context()).Error()
}

// trustAll writes the CA to every entry of the webhook configuration, with the identity of the
// webhook.
func trustAll(t *testing.T, server *apiserver.Server, ca *pki.CA) {
	t.Helper()
	client := serviceAccount(t, server, "holdfast-webhook", "").
		AdmissionregistrationV1().ValidatingWebhookConfigurations()
	shipped, err := client.Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	var bundles []map[string]any
	for _, w := range shipped.Webhooks {
		bundles = append(bundles, map[string]any{"name": w.Name, "clientConfig": map[string]any{"caBundle": ca.PEM()}})
	}
	patch, err := json.Marshal(map[string]any{"webhooks": bundles})
	require.NoError(t, err)
	_, err = client.Patch(t.Context(), "holdfast", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, server.WaitForPolicies(t.Context()))
}
