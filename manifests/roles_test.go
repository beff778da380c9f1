package manifests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// testRoles asks the API server what each service account may do. A row reads "verb resource[/subresource] [namespace/][name]".
func testRoles(t *testing.T, server *testenv.APIServer) {
	for account, rows := range map[string]struct{ may, mayNot []string }{
		"holdfast-agent": {
			may: []string{
				"get nodes", "list nodes", "watch nodes", "patch nodes", "patch nodes/status",
				"get etcdclusters.holdfast.dev", "list etcdclusters.holdfast.dev", "watch etcdclusters.holdfast.dev",
				"patch etcdclusters.holdfast.dev/status", "create events default/", "patch events default/",
				"list configmaps holdfast-system/", "watch configmaps holdfast-system/",
			},
			mayNot: []string{
				"delete nodes", "create nodes", "update nodes", "update nodes/status", "patch etcdclusters.holdfast.dev",
				"create etcdclusters.holdfast.dev", "delete etcdclusters.holdfast.dev", "breakglass etcdclusters.holdfast.dev",
				"get secrets holdfast-system/holdfast-webhook-tls", "list pods", "get configmaps kube-system/x",
				"create configmaps holdfast-system/", "create events kube-system/", "create leases.coordination.k8s.io holdfast-system/",
			},
		},
		"holdfast-webhook": {
			may: []string{
				"get nodes", "list nodes", "watch nodes", "patch nodes", "patch nodes/status",
				"get etcdclusters.holdfast.dev", "list etcdclusters.holdfast.dev", "watch etcdclusters.holdfast.dev",
				"create etcdclusters.holdfast.dev", "patch etcdclusters.holdfast.dev", "patch etcdclusters.holdfast.dev/status",
				"create events default/", "create secrets holdfast-system/", "get secrets holdfast-system/holdfast-webhook-tls",
				"watch secrets holdfast-system/holdfast-webhook-tls", "update secrets holdfast-system/holdfast-webhook-tls",
				"create leases.coordination.k8s.io holdfast-system/", "update leases.coordination.k8s.io holdfast-system/holdfast-webhook",
				"create configmaps holdfast-system/", "update configmaps holdfast-system/x", "delete configmaps holdfast-system/holdfast-born-held",
				"get validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
				"watch validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
				"patch validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
			},
			mayNot: []string{
				"delete nodes", "create nodes", "update nodes", "update nodes/status", "delete etcdclusters.holdfast.dev", "breakglass etcdclusters.holdfast.dev",
				"get secrets holdfast-system/other", "list secrets holdfast-system/", "get secrets kube-system/x",
				"patch validatingwebhookconfigurations.admissionregistration.k8s.io /other",
				"patch validatingadmissionpolicies.admissionregistration.k8s.io /holdfast-nodes",
				"delete configmaps holdfast-system/other", "get configmaps kube-system/x", "create pods holdfast-system/",
			},
		},
	} {
		for _, row := range rows.may {
			require.True(t, allowed(t, server, account, row), "%s must be allowed to %s", account, row)
		}
		for _, row := range rows.mayNot {
			require.False(t, allowed(t, server, account, row), "%s must not be allowed to %s", account, row)
		}
	}
}

func allowed(t *testing.T, server *testenv.APIServer, account, row string) bool {
	t.Helper()
	fields := append(strings.Fields(row), "")
	resource, subresource, _ := strings.Cut(fields[1], "/")
	resource, group, _ := strings.Cut(resource, ".")
	namespace, name, _ := strings.Cut(fields[2], "/")
	review, err := server.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:holdfast-system:" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:holdfast-system", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: fields[0], Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return review.Status.Allowed
}
