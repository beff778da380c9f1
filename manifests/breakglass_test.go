package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func testBreakGlass(t *testing.T, server *testenv.APIServer) {
	for _, name := range []string{"own", "other"} {
		_, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: name})
		require.NoError(t, err)
		defer remove(t, server, name)
	}
	nodes := server.Client().CoreV1().Nodes()
	guarded := `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true","env":"prod"},"annotations":{"holdfast.dev/break-glass":"old","holdfast.dev/etcd":"[]","holdfast.dev/etcd-unverified":"[]"}}}`
	_, err := nodes.Patch(t.Context(), "own", types.MergePatchType, []byte(guarded), metav1.PatchOptions{})
	require.NoError(t, err)
	defer func() {
		_, err := nodes.Patch(t.Context(), "own", types.MergePatchType, []byte(`{"metadata":{"labels":null,"annotations":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}()

	kubelet, err := server.Kubelet("own")
	require.NoError(t, err)
	users := map[string]*kubernetes.Clientset{
		"kubelet": clientOf(t, kubelet),
		"admin":   server.Client(),
		// An autoscaler, a cloud controller, a person: whoever may patch Nodes and their status.
		"patcher": patcher(t, server, "patcher"),
		"breaker": patcher(t, server, "breaker", "holdfast-breakglass"),
		"agent":   clientOf(t, serviceAccount(t, server, "holdfast-agent", "own")),
		"webhook": clientOf(t, serviceAccount(t, server, "holdfast-webhook", "")),
	}
	const (
		glass, label = "annotation holdfast.dev/break-glass allows", "label holdfast.dev/etcd-member guards"
		claim        = "annotations holdfast.dev/etcd and holdfast.dev/etcd-unverified say"
		takeClaim    = `{"metadata":{"annotations":{"holdfast.dev/etcd":null}}}`
		takeDoubt    = `{"metadata":{"annotations":{"holdfast.dev/etcd-unverified":null}}}`
		changeClaim  = `{"metadata":{"annotations":{"holdfast.dev/etcd":"[{}]"}}}`
		breakIt      = `{"metadata":{"annotations":{"holdfast.dev/break-glass":"new"}}}`
		mendIt       = `{"metadata":{"annotations":{"holdfast.dev/break-glass":null}}}`
		takeIt       = `{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`
		loosenIt     = `{"metadata":{"labels":{"holdfast.dev/etcd-member":"false"}}}`
		takeAll      = `{"metadata":{"labels":null}}`
		giveIt       = `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true"}}}`
		elsewhere    = `{"metadata":{"labels":{"env":"test"},"annotations":{"example.org/x":"y"}}}`
	)
	for _, test := range []struct {
		user, does, node, patch string
		status                  bool
		want                    string
	}{
		{user: "patcher", does: "breaks it", patch: breakIt, want: glass},
		{user: "patcher", does: "breaks it where it was whole", node: "other", patch: breakIt, want: glass},
		{user: "patcher", does: "breaks it through the status", patch: breakIt, status: true, want: glass},
		{user: "patcher", does: "mends it", patch: mendIt},
		{user: "patcher", does: "takes the label", patch: takeIt, want: label},
		{user: "patcher", does: "takes the label through the status", patch: takeIt, status: true, want: label},
		{user: "patcher", does: "changes the label", patch: loosenIt, want: label},
		{user: "patcher", does: "takes all labels", patch: takeAll, want: label},
		{user: "patcher", does: "gives the label", node: "other", patch: giveIt},
		{user: "patcher", does: "writes something else", patch: elsewhere},
		{user: "patcher", does: "takes the announcement", patch: takeClaim, want: claim},
		{user: "patcher", does: "takes the announcement through the status", patch: takeClaim, status: true, want: claim},
		{user: "patcher", does: "takes what is unverified", patch: takeDoubt, want: claim},
		{user: "patcher", does: "changes the announcement", patch: changeClaim, want: claim},
		{user: "patcher", does: "announces where nothing is", node: "other", patch: changeClaim},
		{user: "kubelet", does: "takes the announcement", patch: takeClaim, want: claim},
		{user: "agent", does: "takes the announcement", patch: takeClaim},
		{user: "agent", does: "takes what is unverified", patch: takeDoubt},
		{user: "webhook", does: "takes the announcement", patch: takeClaim, want: claim},
		{user: "breaker", does: "takes the announcement", patch: takeClaim},
		{user: "admin", does: "takes what is unverified", patch: takeDoubt},
		{user: "kubelet", does: "breaks it", patch: breakIt, want: glass},
		{user: "kubelet", does: "breaks it through the status", patch: breakIt, status: true, want: glass},
		{user: "kubelet", does: "takes the label", patch: takeIt, want: label},
		{user: "kubelet", does: "takes the label through the status", patch: takeIt, status: true, want: label},
		{user: "kubelet", does: "writes something else", patch: elsewhere},
		{user: "agent", does: "breaks it", patch: breakIt, want: glass},
		{user: "agent", does: "takes the label", patch: takeIt},
		{user: "webhook", does: "breaks it", patch: breakIt, want: glass},
		{user: "webhook", does: "takes the label", patch: takeIt, want: label},
		{user: "webhook", does: "gives the label", node: "other", patch: giveIt},
		{user: "breaker", does: "breaks it", patch: breakIt},
		{user: "breaker", does: "takes the label", patch: takeIt},
		{user: "admin", does: "breaks it", patch: breakIt},
		{user: "admin", does: "takes the label", patch: takeIt},
	} {
		t.Run(test.user+" "+test.does, func(t *testing.T) {
			var subresource []string
			if test.status {
				subresource = []string{"status"}
			}
			requireVerdict(t, test.want, patchDry(t.Context(), users[test.user], orName(test.node), test.patch, subresource...))
		})
	}
	t.Run("kubelet is born with a broken glass", func(t *testing.T) {
		_, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "forger", Annotations: map[string]string{"holdfast.dev/break-glass": "{}"}})
		requireVerdict(t, glass, err)
	})
	t.Run("kubelet is born with the label", func(t *testing.T) {
		_, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "keen", Labels: map[string]string{"holdfast.dev/etcd-member": "true"}})
		require.NoError(t, err)
		require.NoError(t, patchDry(t.Context(), users["admin"], "keen", takeIt))
		_, err = nodes.Patch(t.Context(), "keen", types.MergePatchType, []byte(takeAll), metav1.PatchOptions{})
		require.NoError(t, err)
		remove(t, server, "keen")
	})
	t.Run("kubelets live on beside a policy that cannot be evaluated", func(t *testing.T) { testBrokenPolicy(t, server) })
}

// testBrokenPolicy has the policy's own expressions fail: what it guards is refused then, everything else passes.
func testBrokenPolicy(t *testing.T, server *testenv.APIServer) {
	policies := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	whole, err := policies.Get(t.Context(), "holdfast-nodes", metav1.GetOptions{})
	require.NoError(t, err)
	broken := whole.DeepCopy()
	for i := range broken.Spec.Variables {
		switch v := &broken.Spec.Variables[i]; v.Name {
		case "mayBreakGlass", "breaksGlass", "takesLabel", "takesAnnouncement":
			v.Expression = "dyn(object).nothing.of.the.kind == true"
		}
	}
	_, err = policies.Update(t.Context(), broken, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, server.Obeyed(t.Context()))
	err = patchDry(t.Context(), server.Client(), "own", `{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`)
	require.ErrorContains(t, err, "no such key")
	kubelet, err := server.Kubelet("own")
	require.NoError(t, err)
	require.NoError(t, testenv.Heartbeat(t.Context(), kubelet, "own", true))
	_, _, err = server.AddNode(t.Context(), testenv.NodeSpec{Name: "late"})
	require.NoError(t, err)
	remove(t, server, "late")

	current, err := policies.Get(t.Context(), "holdfast-nodes", metav1.GetOptions{})
	require.NoError(t, err)
	current.Spec = whole.Spec
	_, err = policies.Update(t.Context(), current, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, server.Obeyed(t.Context()))
}

// patcher returns a user who may patch Nodes, and has further cluster roles.
func patcher(t *testing.T, server *testenv.APIServer, name string, roles ...string) *kubernetes.Clientset {
	t.Helper()
	rbac := server.Client().RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"patch"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, role := range append(roles, name) {
		_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	user, err := server.User(name)
	require.NoError(t, err)
	client := clientOf(t, user)
	require.Eventually(t, func() bool { // the authorizer learns of bindings by a watch
		return patchDry(t.Context(), client, "own", `{"metadata":{"labels":{"example.org/x":"y"}}}`) == nil
	}, soon, poll)
	return client
}
