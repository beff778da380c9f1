package manifests_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// testBrokenBornHeldPolicy checks that kubelets register although an expression of the policy
// fails. Such a node is not held.
func testBrokenBornHeldPolicy(t *testing.T, server *apiserver.Server) {
	apiserver.RequireBornHeld(t, server)
	policies := server.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	working, err := policies.Get(t.Context(), "holdfast-born-held", metav1.GetOptions{})
	require.NoError(t, err)
	const noLabel = "object.metadata.labels['no-such-label']"
	for name, broken := range map[string]struct{ path, value string }{
		"match condition": {"matchConditions/0/expression", noLabel + " == 'x'"},
		"mutation": {
			"mutations/0/applyConfiguration/expression",
			"Object{metadata: Object.metadata{annotations: {'x': " + noLabel + "}}}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			patch := []byte(`[{"op":"replace","path":"/spec/` + broken.path + `","value":"` + broken.value + `"}]`)
			changed, err := policies.Patch(t.Context(), "holdfast-born-held", types.JSONPatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
			require.NoError(t, server.WaitForPolicies(t.Context()))
			node, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "joins", Ready: true})
			require.NoError(t, err)
			defer remove(t, server, "joins")
			require.False(t, node.Spec.Unschedulable)
			require.NotContains(t, node.Annotations, readiness.HoldAnnotation)

			changed.Spec = working.Spec
			_, err = policies.Update(t.Context(), changed, metav1.UpdateOptions{})
			require.NoError(t, err)
			require.NoError(t, server.WaitForPolicies(t.Context()))
			again, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "joins-later", Ready: true})
			require.NoError(t, err)
			remove(t, server, "joins-later")
			requireBornHeld(t, again)
		})
	}
}

// testBornHeldIsSafe checks the fields that make an error of the policy harmless.
func testBornHeldIsSafe(t *testing.T, all []string) {
	spec := one[admissionv1.MutatingAdmissionPolicy](t, all, "MutatingAdmissionPolicy", "holdfast-born-held").Spec
	require.Equal(t, admissionv1.Ignore, *spec.FailurePolicy, "an error must not keep a node out of the cluster")
	require.Equal(t, admissionv1.NeverReinvocationPolicy, spec.ReinvocationPolicy)
	require.Len(t, spec.MatchConstraints.ResourceRules, 1)
	rule := spec.MatchConstraints.ResourceRules[0]
	require.Equal(t, []admissionv1.OperationType{admissionv1.Create}, rule.Operations, "existing nodes never change")
	require.Equal(t, []string{"nodes"}, rule.Resources)
	for _, mutation := range spec.Mutations {
		if mutation.JSONPatch != nil {
			require.NotContains(t, mutation.JSONPatch.Expression, "Object.",
				"a list of typed objects in a patch crashes kube-apiserver 1.36.3")
		}
	}
	const kind = "MutatingAdmissionPolicyBinding"
	binding := one[admissionv1.MutatingAdmissionPolicyBinding](t, all, kind, "holdfast-born-held").Spec
	action := *binding.ParamRef.ParameterNotFoundAction
	require.Equal(t, admissionv1.AllowAction, action, "without the parameter, nodes are not held")
}

// TestBornHeldMatchesAgent checks that nodes are born held only where the agent runs. The node
// affinity of the DaemonSet and the object selector of the policy differ only by the opt-out
// label.
func TestBornHeldMatchesAgent(t *testing.T) {
	all := shipped(t, "components/born-held/policy.yaml")
	agent := one[appsv1.DaemonSet](t, all, "DaemonSet", "holdfast-agent")
	policy := one[admissionv1.MutatingAdmissionPolicy](t, all, "MutatingAdmissionPolicy", "holdfast-born-held")

	affinity := agent.Spec.Template.Spec.Affinity.NodeAffinity
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Len(t, terms, 1, "a label selector cannot express an alternative")
	require.Empty(t, terms[0].MatchFields)
	require.Empty(t, agent.Spec.Template.Spec.NodeSelector)
	require.Empty(t, policy.Spec.MatchConstraints.ObjectSelector.MatchLabels)
	want := []metav1.LabelSelectorRequirement{
		{Key: "holdfast.dev/hold", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"never"}},
	}
	for _, r := range terms[0].MatchExpressions {
		operator := metav1.LabelSelectorOperator(r.Operator)
		want = append(want, metav1.LabelSelectorRequirement{Key: r.Key, Operator: operator, Values: r.Values})
	}
	require.ElementsMatch(t, want, policy.Spec.MatchConstraints.ObjectSelector.MatchExpressions)
	require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, agent.Spec.Template.Spec.Tolerations)
}

// TestReleaseNeedsNoFreeNode checks that a cluster with only held nodes becomes usable without
// help, for example after its control plane and workers have joined in parallel. The agent runs
// on every held node, and a release needs no other program.
func TestReleaseNeedsNoFreeNode(t *testing.T) {
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
	all := shipped(t)
	pod := one[appsv1.DaemonSet](t, all, "DaemonSet", "holdfast-agent").Spec.Template.Spec
	for _, taint := range held {
		require.True(t, tolerated(pod.Tolerations, taint), "the agent must run beside taint %s", taint.ToString())
	}
	require.True(t, pod.HostNetwork, "the pod network does not work yet")
	require.Equal(t, corev1.DNSDefault, pod.DNSPolicy, "the pods of the cluster DNS wait for a free node")
	require.Equal(t, "system-node-critical", pod.PriorityClassName, "the agent must run on a full node")
	require.Empty(t, pod.InitContainers)
	require.Empty(t, pod.TopologySpreadConstraints)
	for _, volume := range pod.Volumes {
		require.NotNil(t, volume.HostPath, "volume %s could need a provisioner", volume.Name)
	}
	for _, hook := range webhookEntries(t, all) {
		if hook.Name == "removal-markers.holdfast.dev" { // testRemovalMarkers has its updates
			require.Len(t, hook.MatchConditions, 1)
			continue
		}
		for _, rule := range hook.Rules {
			if slices.Equal(rule.Resources, []string{"pods/eviction"}) {
				continue
			}
			require.Equal(t, []admissionv1.OperationType{admissionv1.Delete}, rule.Operations,
				"registrations and releases must not call the webhook")
		}
	}
	webhook := one[appsv1.Deployment](t, all, "Deployment", "holdfast-webhook").Spec.Template.Spec
	require.False(t, tolerated(webhook.Tolerations, held[0]), "an evicted replica must not return to a drained node")
}

func tolerated(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	for _, t := range tolerations {
		keyed := t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists
		hasValue := t.Operator == corev1.TolerationOpExists || t.Value == taint.Value
		if keyed && hasValue && (t.Effect == "" || t.Effect == taint.Effect) {
			return true
		}
	}
	return false
}
