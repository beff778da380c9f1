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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestInstalled shares one API server among all tests that restore its state.
func TestInstalled(t *testing.T) {
	server := apiserver.NewInstalled(t)
	t.Run("strict dry run", func(t *testing.T) {
		components := []string{clusterAPI, nodeClaims, "metrics"}
		if server.BornHeld() {
			components = append(components, bornHeld)
		}
		// The other overlays change only arguments.
		testStrictDryRun(t, server, withComponent(t, "overlays/spc", components...))
	})
	t.Run("pod security", func(t *testing.T) { testPodSecurity(t, server) })
	t.Run("expression types", func(t *testing.T) { testTypeChecks(t, server) })
	t.Run("webhook configuration", func(t *testing.T) { testWebhookConfiguration(t, server) })
	t.Run("roles", func(t *testing.T) { testRoles(t, server) })
	t.Run("flow control", func(t *testing.T) { testFlowControl(t, server) })
	t.Run("metrics component", func(t *testing.T) { testMetricsComponent(t, server) })
	t.Run("born held", func(t *testing.T) { testBornHeld(t, server) })
	testPolicies(t, server)
}

// testPolicies tests the policies that all supported versions of Kubernetes have.
func testPolicies(t *testing.T, server *apiserver.Server) {
	t.Run("agent on nodes", func(t *testing.T) { testAgentNodes(t, server) })
	t.Run("roles of nodes", func(t *testing.T) { testNodeRoles(t, server) })
	// F25: a stolen token of a replica set taints and addresses of Nodes.
	t.Run("webhook on nodes", func(t *testing.T) { testWebhookNodes(t, server) })
	t.Run("agent on observations", func(t *testing.T) { testAgentObservations(t, server) })
	// F26: a kubelet removed the break-glass annotation of its Node.
	t.Run("break-glass", func(t *testing.T) { testBreakGlass(t, server) })
	t.Run("grants", func(t *testing.T) { testGrants(t, server) })
	// F101: the restore of a backup dropped the grant of a drain.
	t.Run("updates of grants", func(t *testing.T) { testGrantUpdates(t, server) })
	// F40: a stolen token of a replica ran or deleted pods.
	t.Run("guard pods", func(t *testing.T) { testGuardPods(t, server) })
	t.Run("guard pods of settings", func(t *testing.T) { testGuardDefaults(t, server) })
	t.Run("fields of guard pods", func(t *testing.T) { testGuardFields(t, server) })
	t.Run("evictions", func(t *testing.T) { testEvictions(t, server) })
}

// TestInstallations shares one API server among tests that change what is installed, one after the
// other.
func TestInstallations(t *testing.T) {
	options, files := static(t)
	server := apiserver.NewWith(t, options)
	t.Run("version skew", func(t *testing.T) { testVersionSkew(t, server) })
	t.Run("existing nodes", func(t *testing.T) { testExistingNodes(t, server) })
	t.Run("parameter deleted", func(t *testing.T) { testParameterDeleted(t, server) })
	t.Run("broken policy", func(t *testing.T) { testBrokenBornHeldPolicy(t, server) })
	t.Run("taint mode", func(t *testing.T) { testTaintMode(t, server) })
	t.Run("sources", func(t *testing.T) { testAPIServerSources(t, server) })
	t.Run("reviewed requests", func(t *testing.T) { testReviewedRequests(t, server) })
	t.Run("static admission", func(t *testing.T) { testStaticAdmission(t, server, files) })
}

// testExistingNodes checks that the installation writes nothing to an existing Node.
func testExistingNodes(t *testing.T, server *apiserver.Server) {
	before, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "old", Ready: true})
	require.NoError(t, err)
	dir := "."
	if server.BornHeld() {
		dir = full
	}
	// The command of the README, without server-side apply.
	_, err = server.Kubectl(t.Context(), "apply", "-k", dir)
	require.NoError(t, err)
	require.NoError(t, server.WaitForPolicies(t.Context()))
	after, err := server.Client().CoreV1().Nodes().Get(t.Context(), "old", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, before.ResourceVersion, after.ResourceVersion)
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "-k", dir)
	require.NoError(t, err, "the other tests apply on the side of the server")
}

// testParameterDeleted checks that a new node is not held after the parameter of the policy was
// deleted.
func testParameterDeleted(t *testing.T, server *apiserver.Server) {
	apiserver.RequireBornHeld(t, server)
	held, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "new", Ready: true})
	require.NoError(t, err)
	require.True(t, held.Spec.Unschedulable)
	parameters := server.Client().CoreV1().ConfigMaps("holdfast-system")
	parameter, err := parameters.Get(t.Context(), "holdfast-born-held", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, parameters.Delete(t.Context(), "holdfast-born-held", metav1.DeleteOptions{}))
	kubelet, err := server.Kubelet("free")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		node, err := apiserver.RegisterNode(t.Context(), kubelet, apiserver.NodeSpec{Name: "free", Ready: true})
		require.NoError(t, err)
		if node.Spec.Unschedulable { // the API server has not observed the deletion yet
			remove(t, server, "free")
			return false
		}
		require.NotContains(t, node.Annotations, "holdfast.dev/hold")
		require.Nil(t, readiness.FindCondition(node, corev1.NodeNetworkUnavailable))
		return true
	}, soon, poll)
	parameter.ResourceVersion = ""
	_, err = parameters.Create(t.Context(), parameter, metav1.CreateOptions{})
	require.NoError(t, err)
}

// testStrictDryRun checks that the API server accepts every object, knows every field, and
// returns no warning.
func testStrictDryRun(t *testing.T, server *apiserver.Server, dir string) {
	out, err := server.Kubectl(t.Context(),
		"apply", "-k", dir, "--dry-run=server", "--validate=strict", "--server-side")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(kustomized(t, dir)), out)
	for _, line := range lines {
		require.True(t, strings.HasSuffix(line, " serverside-applied (server dry run)"), line)
	}
}

// testTypeChecks runs the controller that compares the expressions of validating policies
// with the types that they match, and requires that it reports nothing.
func testTypeChecks(t *testing.T, server *apiserver.Server) {
	_, err := server.StartControllers("validatingadmissionpolicy-status-controller")
	require.NoError(t, err)
	client := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	require.Eventually(t, func() bool {
		policies, err := client.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, policies.Items, 5)
		for i := range policies.Items {
			checked := policies.Items[i].Status.TypeChecking
			if checked == nil {
				return false
			}
			require.Empty(t, checked.ExpressionWarnings, policies.Items[i].Name)
		}
		return true
	}, soon, poll)
}

// TestPolicyBindings checks that each policy has a binding that denies. Without one a policy
// has no effect.
func TestPolicyBindings(t *testing.T) {
	policies, bound := sets.New[string](), sets.New[string]()
	for _, document := range shipped(t) {
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
	require.Len(t, policies, 5)
	require.Equal(t, policies, bound)
}

// TestImages checks that the manifests and the README use the names and the tag that
// `make images` gives to the images.
func TestImages(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^VERSION +:= (v\S+)$`).FindStringSubmatch(string(makefile))
	require.Len(t, version, 2)
	var images []string
	for _, document := range shipped(t) {
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
	job := one[batchv1.Job](t, kustomized(t, "uninstall"), "Job", "holdfast-uninstall")
	require.Equal(t, "kubectl-holdfast:"+version[1], job.Spec.Template.Spec.Containers[0].Image)
	image := regexp.MustCompile(`holdfast-(?:agent|webhook|\$part):(v[\d.]+)`)
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	named := image.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, named)
	for _, tag := range named {
		require.Equal(t, version[1], tag[1])
	}
}
