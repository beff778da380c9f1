package manifests_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestABrokenPolicyKeepsNoNodeOut: whatever is wrong with an expression, kubelets register. The node is not held then.
func TestABrokenPolicyKeepsNoNodeOut(t *testing.T) {
	server := testenv.NewInstalledAPIServer(t)
	policies := server.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	for part, broken := range map[string]string{
		"a match condition":  `[{"op":"replace","path":"/spec/matchConditions/1/expression","value":"object.metadata.labels['no-such-label'] == 'x'"}]`,
		"the whole mutation": `[{"op":"replace","path":"/spec/mutations/0/applyConfiguration/expression","value":"Object{metadata: Object.metadata{annotations: {'x': object.metadata.labels['no-such-label']}}}"}]`,
	} {
		t.Run(part, func(t *testing.T) {
			_, err := policies.Patch(t.Context(), "holdfast-born-held", types.JSONPatchType, []byte(broken), metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, server.Obeyed(t.Context()))
			node, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "joins", Ready: true})
			require.NoError(t, err)
			defer remove(t, server, "joins")
			require.False(t, node.Spec.Unschedulable)
			require.NotContains(t, node.Annotations, readiness.HoldAnnotation)

			_, err = server.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "-k", ".")
			require.NoError(t, err)
			require.NoError(t, server.Obeyed(t.Context()))
			again, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: "joins-later", Ready: true})
			require.NoError(t, err)
			remove(t, server, "joins-later")
			requireBornHeld(t, again)
		})
	}
}

// TestBornHeldCanDoNoHarm pins what makes the policy safe to have.
func TestBornHeldCanDoNoHarm(t *testing.T) {
	for _, dir := range append(overlays(t), ".") {
		shipped := kustomized(t, dir)
		if promises()[dir].open {
			continue
		}
		spec := one[admissionv1.MutatingAdmissionPolicy](t, shipped, "MutatingAdmissionPolicy", "holdfast-born-held").Spec
		require.Equal(t, admissionv1.Ignore, *spec.FailurePolicy, "an error must not keep a node out of the cluster")
		require.Equal(t, admissionv1.NeverReinvocationPolicy, spec.ReinvocationPolicy)
		require.Len(t, spec.MatchConstraints.ResourceRules, 1)
		rule := spec.MatchConstraints.ResourceRules[0]
		require.Equal(t, []admissionv1.OperationType{admissionv1.Create}, rule.Operations, "a node that is there is never touched")
		require.Equal(t, []string{"nodes"}, rule.Resources)
		for _, mutation := range spec.Mutations {
			if mutation.JSONPatch != nil {
				require.NotContains(t, mutation.JSONPatch.Expression, "Object.", "a list of typed objects in a patch crashes kube-apiserver 1.36.3")
			}
		}
		binding := one[admissionv1.MutatingAdmissionPolicyBinding](t, shipped, "MutatingAdmissionPolicyBinding", "holdfast-born-held").Spec
		require.Equal(t, admissionv1.AllowAction, *binding.ParamRef.ParameterNotFoundAction, "the parameter is the switch")
	}
}

// TestNothingThatAReleaseNeedsWaitsForAFreeNode: a cluster whose nodes are all held, as one is whose control plane and
// workers join at once, gets out of that by itself. The agent runs on every held node, and nothing else has a part in it.
func TestNothingThatAReleaseNeedsWaitsForAFreeNode(t *testing.T) {
	held := []corev1.Taint{
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		{Key: "readiness.k8s.io/holdfast", Effect: corev1.TaintEffectNoSchedule},
		{Key: "startup-taint.cluster-autoscaler.kubernetes.io/holdfast", Effect: corev1.TaintEffectNoSchedule},
		{Key: "holdfast.dev/held", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoExecute},
	}
	shipped := kustomized(t, ".")
	pod := one[appsv1.DaemonSet](t, shipped, "DaemonSet", "holdfast-agent").Spec.Template.Spec
	for _, taint := range held {
		require.True(t, tolerated(pod.Tolerations, taint), "the agent must run beside taint %s", taint.ToString())
	}
	require.True(t, pod.HostNetwork, "it needs no pod network, which is what is waited for")
	require.Equal(t, corev1.DNSDefault, pod.DNSPolicy, "it needs no cluster DNS, whose pods wait for a free node")
	require.Equal(t, "system-node-critical", pod.PriorityClassName, "it must fit on a node that is full")
	require.Empty(t, pod.InitContainers)
	require.Empty(t, pod.TopologySpreadConstraints)
	for _, volume := range pod.Volumes {
		require.NotNil(t, volume.HostPath, "volume %s could be one that has to be provisioned first", volume.Name)
	}
	for _, hook := range one[admissionv1.ValidatingWebhookConfiguration](t, shipped, "ValidatingWebhookConfiguration", "holdfast").Webhooks {
		for _, rule := range hook.Rules {
			require.Equal(t, []admissionv1.OperationType{admissionv1.Delete}, rule.Operations, "no node joins and none is released through the webhook")
		}
	}
	webhook := one[appsv1.Deployment](t, shipped, "Deployment", "holdfast-webhook").Spec.Template.Spec
	require.True(t, tolerated(webhook.Tolerations, held[0]), "a cluster whose nodes are all cordoned keeps its guard")
}

func tolerated(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	for _, t := range tolerations {
		keyed := t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists
		if keyed && (t.Effect == "" || t.Effect == taint.Effect) && (t.Operator == corev1.TolerationOpExists || t.Value == taint.Value) {
			return true
		}
	}
	return false
}

// kustomized returns the documents that `kubectl kustomize` makes of a directory.
func kustomized(t *testing.T, dir string) []string {
	t.Helper()
	kubectl, err := testenv.Binary("kubectl")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", dir).Output()
	require.NoError(t, err)
	return strings.Split(string(out), "\n---\n")
}
