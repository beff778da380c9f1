package manifests_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// testGrants deletes EtcdClusters by name and by the collection, with grants and without.
func testGrants(t *testing.T, server *testenv.APIServer) {
	const (
		granted = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"ab01","labels":{"mine":"yes"}},` +
			`"spec":{"grants":[{"node":"etcd-1","nodeUID":"u1","members":["1"],"time":"2026-01-02T03:04:05Z"}]}}`
		calm = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"ab02","labels":{"mine":"yes"}},` +
			`"spec":{"members":[{"memberID":"1","node":"etcd-1","nodeUID":"u1"}]}}`
		refused = "EtcdCluster ab01 has open grants"
	)
	admin := server.Client().RESTClient()
	for _, body := range []string{granted, calm} {
		require.NoError(t, admin.Post().AbsPath(clusterPath).Body([]byte(body)).Do(t.Context()).Error())
	}
	remover := clusterRemover(t, server)
	drop := func(client *kubernetes.Clientset, name string) error {
		return client.RESTClient().Delete().AbsPath(clusterPath, name).Param("dryRun", "All").Do(t.Context()).Error()
	}
	require.Eventually(t, func() bool { return drop(remover, "ab02") == nil }, soon, poll, "one without grants may go")
	requireVerdict(t, refused, drop(remover, "ab01"))
	require.ErrorContains(t, drop(remover, "ab01"), "(nodes etcd-1)")
	require.ErrorContains(t, drop(remover, "ab01"), "kubectl annotate etcdcluster ab01 holdfast.dev/settle=")
	requireVerdict(t, refused, remover.RESTClient().Delete().AbsPath(clusterPath).Param("labelSelector", "mine=yes").
		Param("dryRun", "All").Do(t.Context()).Error())

	breaker := as(t, server, rest.ImpersonationConfig{UserName: "cluster-remover", Groups: []string{"glass-breakers"}})
	_, err := server.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "glass-breakers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "holdfast-breakglass"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "glass-breakers"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for name, client := range map[string]*kubernetes.Clientset{"who may break the glass": breaker, "the administrator": server.Client()} {
		require.ErrorContains(t, drop(client, "ab01"), "holdfast.dev/break-glass=", "%s is told how", name)
	}
	glass := func(uid string) {
		patch := `{"metadata":{"annotations":{"holdfast.dev/break-glass":"` + uid + `"}}}`
		require.NoError(t, admin.Patch("application/merge-patch+json").AbsPath(clusterPath, "ab01").Body([]byte(patch)).Do(t.Context()).Error())
	}
	glass("of another object")
	require.ErrorContains(t, drop(server.Client(), "ab01"), refused)
	object, err := admin.Get().AbsPath(clusterPath, "ab01").Do(t.Context()).Raw()
	require.NoError(t, err)
	var found metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(object, &found))
	glass(string(found.UID))
	require.NoError(t, drop(breaker, "ab01"), "who may break the glass and has broken it may do this")
	require.NoError(t, drop(server.Client(), "ab01"))
	requireVerdict(t, refused, drop(remover, "ab01"))

	// Once the grants are over anybody may.
	settled := `{"spec":{"grants":null}}`
	require.NoError(t, admin.Patch("application/merge-patch+json").AbsPath(clusterPath, "ab01").Body([]byte(settled)).Do(t.Context()).Error())
	require.NoError(t, drop(remover, "ab01"))
	for _, name := range []string{"ab01", "ab02"} {
		require.NoError(t, remover.RESTClient().Delete().AbsPath(clusterPath, name).Do(t.Context()).Error())
	}
}

// clusterRemover returns a user who may delete EtcdClusters and nothing else.
func clusterRemover(t *testing.T, server *testenv.APIServer) *kubernetes.Clientset {
	t.Helper()
	rbac, name := server.Client().RbacV1(), "cluster-remover"
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"holdfast.dev"}, Resources: []string{"etcdclusters"}, Verbs: []string{"delete", "deletecollection"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return as(t, server, rest.ImpersonationConfig{UserName: name})
}
