package manifests_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

// TestOnlyWhereTheAgentRunsANodeIsHeld compares, as data, the node affinity of the DaemonSet with the objects that the
// born-held policy matches: they differ by the label with which a node opts out, and by nothing else.
func TestOnlyWhereTheAgentRunsANodeIsHeld(t *testing.T) {
	shipped := built(t)
	agent := one[appsv1.DaemonSet](t, shipped, "DaemonSet", "holdfast-agent")
	policy := one[admissionv1.MutatingAdmissionPolicy](t, shipped, "MutatingAdmissionPolicy", "holdfast-born-held")

	terms := agent.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Len(t, terms, 1, "a second term would be an alternative, which a label selector cannot say")
	require.Empty(t, terms[0].MatchFields)
	require.Empty(t, agent.Spec.Template.Spec.NodeSelector)
	require.Empty(t, policy.Spec.MatchConstraints.ObjectSelector.MatchLabels)
	var runs []metav1.LabelSelectorRequirement
	for _, r := range terms[0].MatchExpressions {
		runs = append(runs, metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values})
	}
	optOut := metav1.LabelSelectorRequirement{Key: "holdfast.dev/hold", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"never"}}
	require.ElementsMatch(t, append(runs, optOut), policy.Spec.MatchConstraints.ObjectSelector.MatchExpressions)
	require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, agent.Spec.Template.Spec.Tolerations)
}

// TestEveryDeletionCallsExactlyOneWebhook: the two entries divide all Nodes, and both reach the port of the Service.
func TestEveryDeletionCallsExactlyOneWebhook(t *testing.T) {
	shipped := built(t)
	service := one[corev1.Service](t, shipped, "Service", "holdfast-webhook")
	pods := one[appsv1.Deployment](t, shipped, "Deployment", "holdfast-webhook").Spec.Template
	require.Equal(t, pods.Labels["app.kubernetes.io/name"], service.Spec.Selector["app.kubernetes.io/name"])
	hooks := one[admissionv1.ValidatingWebhookConfiguration](t, shipped, "ValidatingWebhookConfiguration", "holdfast").Webhooks
	require.Len(t, hooks, 2)
	closed, open := hooks[0].ObjectSelector.MatchExpressions, hooks[1].ObjectSelector.MatchExpressions
	require.Equal(t, metav1.LabelSelectorOpIn, closed[0].Operator)
	require.Equal(t, metav1.LabelSelectorOpNotIn, open[0].Operator)
	closed[0].Operator = metav1.LabelSelectorOpNotIn
	require.Equal(t, open, closed)
	require.Equal(t, hooks[0].Rules, hooks[1].Rules)
	for _, hook := range hooks {
		require.Equal(t, service.Namespace, hook.ClientConfig.Service.Namespace)
		require.Equal(t, service.Name, hook.ClientConfig.Service.Name)
		require.Equal(t, service.Spec.Ports[0].Port, *hook.ClientConfig.Service.Port)
		require.Empty(t, hook.ClientConfig.CABundle)
	}
}

// TestEveryPolicyIsBound: a policy without a binding that denies is a comment.
func TestEveryPolicyIsBound(t *testing.T) {
	policies, bound := sets.New[string](), sets.New[string]()
	for _, document := range built(t) {
		switch kind(t, document).Kind {
		case "ValidatingAdmissionPolicy":
			policies.Insert(kind(t, document).Name)
		case "ValidatingAdmissionPolicyBinding":
			binding := parsed[admissionv1.ValidatingAdmissionPolicyBinding](t, document)
			require.Equal(t, []admissionv1.ValidationAction{admissionv1.Deny}, binding.Spec.ValidationActions)
			require.Nil(t, binding.Spec.MatchResources)
			bound.Insert(binding.Spec.PolicyName)
		}
	}
	require.Len(t, policies, 3)
	require.Equal(t, policies, bound)
}

// TestImagesAreTheUsers: each of our images can be renamed by the name that `make images` gives it, and has the tag that it
// gives them; so has what the end-to-end tests load, and the README.
func TestImagesAreTheUsers(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^VERSION +:= (v\S+)$`).FindStringSubmatch(string(makefile))
	require.Len(t, version, 2)
	var images []string
	for _, document := range built(t) {
		var pod corev1.PodSpec
		switch kind(t, document).Kind {
		case "DaemonSet":
			pod = parsed[appsv1.DaemonSet](t, document).Spec.Template.Spec
		case "Deployment":
			pod = parsed[appsv1.Deployment](t, document).Spec.Template.Spec
		}
		for _, container := range pod.Containers {
			name, tag, tagged := strings.Cut(container.Image, ":")
			require.True(t, tagged)
			require.Equal(t, version[1], tag)
			images = append(images, name)
		}
	}
	slices.Sort(images)
	require.Equal(t, []string{"holdfast-agent", "holdfast-webhook"}, images)
	for _, file := range []string{"../test/e2e/cluster_test.go", "../README.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		named := regexp.MustCompile(`holdfast-(?:agent|webhook|\$part):(v[\d.]+)`).FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, named, file)
		for _, tag := range named {
			require.Equal(t, version[1], tag[1], file)
		}
	}
}

// built returns the documents that `kubectl kustomize` makes of what is shipped.
func built(t *testing.T) []string {
	t.Helper()
	return kustomized(t, ".")
}

func kind(t *testing.T, document string) metav1.PartialObjectMetadata {
	t.Helper()
	var object metav1.PartialObjectMetadata
	require.NoError(t, yaml.Unmarshal([]byte(document), &object))
	return object
}

func parsed[T any](t *testing.T, document string) T {
	t.Helper()
	var object T
	require.NoError(t, yaml.UnmarshalStrict([]byte(document), &object))
	return object
}

// one returns the one object of a kind and name.
func one[T any](t *testing.T, documents []string, kindName, name string) T {
	t.Helper()
	for _, document := range documents {
		if object := kind(t, document); object.Kind == kindName && object.Name == name {
			return parsed[T](t, document)
		}
	}
	require.Fail(t, "not shipped", "%s %s", kindName, name)
	panic("unreachable")
}
