// Package manifests_test holds what is shipped against a real API server: that it installs, that every policy allows what
// it must and refuses what it must, to real identities, and that the parts agree with each other.
package manifests_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// soon is the bound for what takes milliseconds on an idle machine, poll how often it is looked at.
const soon, poll = 20 * time.Second, 20 * time.Millisecond

// TestInstalled shares one API server among everything that leaves it as it was.
func TestInstalled(t *testing.T) {
	server := testenv.NewInstalledAPIServer(t)
	t.Run("strict dry run", func(t *testing.T) {
		for _, dir := range append(overlays(t), ".") {
			t.Run(dir, func(t *testing.T) { testStrictDryRun(t, server, dir) })
		}
	})
	t.Run("powers of the pods", func(t *testing.T) { testPodSecurity(t, server) })
	t.Run("expressions fit their types", func(t *testing.T) { testTypeChecks(t, server) })
	t.Run("configuration reaches the webhook", func(t *testing.T) { testWebhookConfiguration(t, server) })
	t.Run("roles", func(t *testing.T) { testRoles(t, server) })
	t.Run("flow control", func(t *testing.T) { testFlowControl(t, server) })
	t.Run("born held", func(t *testing.T) { testBornHeld(t, server) })
	t.Run("agent on nodes", func(t *testing.T) { testAgentNodes(t, server) })
	t.Run("agent on observations", func(t *testing.T) { testAgentObservations(t, server) })
	t.Run("break-glass", func(t *testing.T) { testBreakGlass(t, server) })
	t.Run("grants", func(t *testing.T) { testGrants(t, server) })
}

// TestInstallationLeavesTheFleetAlone: nodes that are there before are not written, nor are those of a cluster from which
// the parameter has been taken away.
func TestInstallationLeavesTheFleetAlone(t *testing.T) {
	server := testenv.NewAPIServer(t)
	before, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "old", Ready: true})
	require.NoError(t, err)
	// The plain command of the README, without server-side apply.
	_, err = server.Kubectl(t.Context(), "apply", "-k", ".")
	require.NoError(t, err)
	require.NoError(t, server.Obeyed(t.Context()))
	after, err := server.Client().CoreV1().Nodes().Get(t.Context(), "old", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.ResourceVersion, after.ResourceVersion)

	held, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "new", Ready: true})
	require.NoError(t, err)
	require.True(t, held.Spec.Unschedulable)
	parameters := server.Client().CoreV1().ConfigMaps("holdfast-system")
	require.NoError(t, parameters.Delete(t.Context(), "holdfast-born-held", metav1.DeleteOptions{}))
	kubelet, err := server.Kubelet("free")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		node, err := testenv.RegisterNode(t.Context(), kubelet, testenv.NodeSpec{Name: "free", Ready: true})
		require.NoError(t, err)
		if node.Spec.Unschedulable { // the API server has not heard of it yet
			require.NoError(t, server.Client().CoreV1().Nodes().Delete(t.Context(), "free", metav1.DeleteOptions{}))
			return false
		}
		require.NotContains(t, node.Annotations, "holdfast.dev/hold")
		require.Nil(t, condition(node, corev1.NodeNetworkUnavailable))
		return true
	}, soon, poll)
}

// testTypeChecks has the controller that checks the expressions of validating policies against the types that they match
// say what it finds.
func testTypeChecks(t *testing.T, server *testenv.APIServer) {
	_, err := server.StartControllers("validatingadmissionpolicy-status-controller")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		policies, err := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, policies.Items, 3)
		for i := range policies.Items {
			if checked := policies.Items[i].Status.TypeChecking; checked == nil {
				return false
			} else if len(checked.ExpressionWarnings) > 0 {
				require.Empty(t, checked.ExpressionWarnings, policies.Items[i].Name)
			}
		}
		return true
	}, soon, poll)
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// as returns a client of the administrator who acts as somebody else.
func as(t *testing.T, server *testenv.APIServer, who rest.ImpersonationConfig) *kubernetes.Clientset {
	t.Helper()
	config := server.Admin()
	config.Impersonate = who
	return clientOf(t, config)
}

// serviceAccount returns the configuration of one of ours.
func serviceAccount(t *testing.T, server *testenv.APIServer, name, node string) *rest.Config {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", name, node)
	require.NoError(t, err)
	return config
}
