package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testEvictionRequest uses the alpha API of Kubernetes 1.37 by which programs ask for evictions. A
// guard pod is created as without it. A request for it deletes nothing: the default responder
// evicts by pods/NAME/eviction, and that needs an answer of the webhook. No replica runs.
func testEvictionRequest(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "etcd-1")
	webhook := serviceAccount(t, server, "holdfast-webhook", "").CoreV1().Pods("holdfast-system")
	pod, err := webhook.Create(t.Context(), guardPod(agentSpec(t)), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Empty(t, pod.Spec.EvictionResponders, "only the default responder")

	_, err = server.Client().LifecycleV1alpha1().EvictionRequests(pod.Namespace).Create(t.Context(),
		&lifecyclev1alpha1.EvictionRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "drain"},
			Spec: lifecyclev1alpha1.EvictionRequestSpec{
				Target: lifecyclev1alpha1.EvictionRequestTarget{
					Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID},
				},
				Requester: "example.org/drainer", Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
			},
		}, metav1.CreateOptions{})
	require.NoError(t, err)
	err = server.Client().CoreV1().Pods(pod.Namespace).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
	})
	require.ErrorContains(t, err, `failed calling webhook "guard-pods.holdfast.dev"`)
	after, err := webhook.Get(t.Context(), pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, after.DeletionTimestamp)
}
