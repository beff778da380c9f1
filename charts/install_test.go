package charts_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestInstall installs, upgrades, rolls back and uninstalls on a real API server. No pods run
// there, so helm does not wait for them; make e2e does.
func TestInstall(t *testing.T) {
	server := apiserver.New(t)
	release := func(args ...string) string {
		out, err := helm(t, server.Kubeconfig(), append(args, "--namespace", namespace)...)
		require.NoError(t, err)
		return out
	}
	notes := release("install", "holdfast", "holdfast", "--create-namespace")
	holder := "held by the agent when it first runs there"
	if server.BornHeld() {
		holder = "held by the API server in the write that creates them"
	}
	require.Contains(t, notes, holder)
	require.Contains(t, notes, "kubectl label namespace holdfast-system pod-security.kubernetes.io/enforce=privileged")
	require.NoError(t, server.WaitForPolicies(t.Context()))
	node, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "new", Ready: true})
	require.NoError(t, err)
	require.Equal(t, server.BornHeld(), node.Spec.Unschedulable)

	// In a mass hold the leader of the webhook does the same.
	parameters := server.Client().CoreV1().ConfigMaps(namespace)
	if server.BornHeld() {
		require.NoError(t, parameters.Delete(t.Context(), "holdfast-born-held", metav1.DeleteOptions{}))
	}
	trust(t, server)
	const taint = "startup-taint.cluster-autoscaler.kubernetes.io/holdfast"
	const spread = "webhook.topologySpreadConstraints[0]."
	notes = release("upgrade", "holdfast", "holdfast", "--set", "autoscaler=cluster-autoscaler",
		"--set", "webhook.hostNetwork=true,webhook.port=11443",
		"--set", spread+"topologyKey=zone,"+spread+"maxSkew=1,"+spread+"whenUnsatisfiable=ScheduleAnyway",
		"--set", `webhook.podLabels.example\.com/team=a,agent.podLabels.example\.com/team=a`)
	require.Contains(t, notes, "held nodes:  taint "+taint+":NoSchedule")
	require.Contains(t, agentArgs(t, server), "--hold-taint-key="+taint)
	requireTrust(t, server)
	_, err = parameters.Get(t.Context(), "holdfast-born-held", metav1.GetOptions{})
	require.Equal(t, server.BornHeld(), err == nil, "an upgrade restores the parameter: %v", err)

	requireHostPort(t, server, 11443)

	release("rollback", "holdfast", "1")
	require.Contains(t, agentArgs(t, server), "--hold-taint-key=")
	requireTrust(t, server)

	// The webhook owns the field with the authority (docs/operations.md).
	ownSecret := []string{
		"upgrade", "holdfast", "holdfast", "--set", "certificates.mode=secret",
		"--set", "certificates.caBundle=-----BEGIN CERTIFICATE-----",
	}
	_, err = helm(t, server.Kubeconfig(), append(ownSecret, "--namespace", namespace)...)
	require.ErrorContains(t, err, `conflict with "holdfast-webhook"`)
	release(append(ownSecret, "--force-conflicts")...)

	release("uninstall", "holdfast")
	_, err = server.Client().AppsV1().DaemonSets(namespace).Get(t.Context(), "holdfast-agent", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	out, err := server.Kubectl(t.Context(), "get", "crd", "etcdclusters.holdfast.dev", "-o", "name")
	require.NoError(t, err, "the grants stay")
	require.Contains(t, out, "etcdclusters.holdfast.dev")
	release("install", "holdfast", "holdfast")
}

func agentArgs(t *testing.T, server *apiserver.Server) []string {
	t.Helper()
	set, err := server.Client().AppsV1().DaemonSets(namespace).Get(t.Context(), "holdfast-agent", metav1.GetOptions{})
	require.NoError(t, err)
	return set.Spec.Template.Spec.Containers[0].Args
}

// requireHostPort checks that the pods of the webhook occupy a port of their node: so the scheduler
// places no two of them on one node.
func requireHostPort(t *testing.T, server *apiserver.Server, port int32) {
	t.Helper()
	const name = "holdfast-webhook"
	deployment, err := server.Client().AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: deployment.Spec.Template.Spec}
	pod, err = server.Client().CoreV1().Pods(namespace).Create(t.Context(), pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.Equal(t, port, pod.Spec.Containers[0].Ports[0].HostPort)
}

// authority is a caBundle in the encoding of the API.
const authority = "dHJ1c3RlZA=="

// trust writes a caBundle into an entry of the webhook configuration, as the webhook does.
func trust(t *testing.T, server *apiserver.Server) {
	t.Helper()
	patch := `{"webhooks":[{"name":"etcd-nodes.holdfast.dev","clientConfig":{"caBundle":"` + authority + `"}}]}`
	_, err := server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(t.Context(), "holdfast",
		types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "holdfast-webhook"})
	require.NoError(t, err)
}

// requireTrust checks that helm has not removed what the webhook wrote. Without it, no node with
// etcd could be deleted until the webhook writes it again.
func requireTrust(t *testing.T, server *apiserver.Server) {
	t.Helper()
	found, err := server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "holdfast",
		metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "etcd-nodes.holdfast.dev", found.Webhooks[0].Name)
	require.Equal(t, "trusted", string(found.Webhooks[0].ClientConfig.CABundle))
}
