package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestOlderKubernetes runs a version without MutatingAdmissionPolicy v1. The base and the overlays
// install there completely, and the expressions of their policies have no newer part. Only the
// component born-held is refused. The other tests run on each real version (make
// test-kubernetes-versions).
func TestOlderKubernetes(t *testing.T) {
	server := apiserver.NewOlder(t)
	if server.EmulatedVersion() != "" {
		testEmulation(t, server)
	}
	require.NoError(t, server.Apply(t.Context(), "."))
	testStrictDryRun(t, server, "overlays/spc")
	_, err := server.Kubectl(t.Context(), "apply", "--server-side", "-k", full)
	require.ErrorContains(t, err,
		`no matches for kind "MutatingAdmissionPolicy" in version "admissionregistration.k8s.io/v1"`)
	require.NoError(t, server.Apply(t.Context(), "."), "the way back")
	testTypeChecks(t, server)
}

// TestBornHeldBeforeV1 applies the component born-held with the version of the policy that an older
// API server serves once it is enabled. docs/kubernetes-versions.md describes this.
func TestBornHeldBeforeV1(t *testing.T) {
	if apiserver.Minor(t) >= 36 {
		t.Skip("SKIPPED: this version of Kubernetes serves MutatingAdmissionPolicy v1")
	}
	version := "admissionregistration.k8s.io/v1beta1"
	if apiserver.Minor(t) < 34 {
		version = "admissionregistration.k8s.io/v1alpha1"
	}
	server := apiserver.NewWith(t, apiserver.Options{
		Args: []string{"--runtime-config=" + version + "=true", "--feature-gates=MutatingAdmissionPolicy=true"},
	})
	require.NoError(t, server.Apply(t.Context(), "."))
	var policies []string
	for _, document := range kustomized(t, full) {
		switch object := kind(t, document); {
		case strings.HasPrefix(object.Kind, "MutatingAdmissionPolicy"):
			policies = append(policies, strings.Replace(document, object.APIVersion, version, 1))
		case object.Name == "holdfast-born-held":
			policies = append(policies, document)
		}
	}
	require.Len(t, policies, 3)
	file := filepath.Join(t.TempDir(), "born-held.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(policies, "\n---\n")), 0o600))
	_, err := server.Kubectl(t.Context(), "apply", "--server-side", "-f", file)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		node, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "born"})
		require.NoError(t, err)
		defer remove(t, server, "born")
		if !node.Spec.Unschedulable { // the API server has not observed the policy yet
			return false
		}
		requireBornHeld(t, node)
		return true
	}, soon, poll)
}

// testEmulation checks that the emulation has an effect: the API server rejects an expression
// of a later version.
func testEmulation(t *testing.T, server *apiserver.Server) {
	t.Helper()
	policies := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	create := func(expression string) error {
		rule := admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"},
			},
		}
		_, err := policies.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{
					ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule}},
				},
				Validations: []admissionv1.Validation{{Expression: expression}},
			},
		}, dry)
		return err
	}
	require.NoError(t, create(`[1, 2].sum() == 3`))
	require.ErrorContains(t, create(`[1, 2].includes(1)`), "undeclared reference", "added in 1.37")
}

// TestExpressionsFit133 checks that no expression needs more than 1.33, which kube-apiserver 1.37
// cannot emulate: 1.34 added functions of lists (k8s.io/apiserver/pkg/cel/environment).
// TestOlderKubernetes detects functions that were added later.
func TestExpressionsFit133(t *testing.T) {
	for _, document := range shipped(t) {
		if strings.HasPrefix(kind(t, document).Kind, "ValidatingAdmissionPolicy") {
			require.NotRegexp(t, `\.(distinct|flatten|reverse|slice|sort|sortBy)\(|lists\.range\(`, document)
		}
	}
}
