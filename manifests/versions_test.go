package manifests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// TestOlderKubernetes has the API server behave as the oldest version that it can imitate: what is shipped for versions that
// do not hold nodes from birth installs, and its policies do what they do on a newer one.
func TestOlderKubernetes(t *testing.T) {
	server := testenv.NewEmulatingAPIServer(t, "1.33")
	testImitation(t, server)
	_, err := server.Kubectl(t.Context(), "apply", "--server-side", "-k", ".")
	require.ErrorContains(t, err, `no matches for kind "MutatingAdmissionPolicy" in version "admissionregistration.k8s.io/v1"`)
	_, err = server.Kubectl(t.Context(), "-n", "holdfast-system", "get", "daemonset/holdfast-agent", "deployment/holdfast-webhook")
	require.NoError(t, err, "everything else is installed")

	require.NoError(t, server.Apply(t.Context(), "overlays/without-born-held"))
	for _, dir := range overlays(t) {
		if !promises()[dir].open {
			dir = withoutBornHeld(t, dir)
		}
		testStrictDryRun(t, server, dir)
	}
	testTypeChecks(t, server)
	testRoles(t, server)
	t.Run("agent on nodes", func(t *testing.T) { testAgentNodes(t, server) })
	t.Run("agent on observations", func(t *testing.T) { testAgentObservations(t, server) })
	t.Run("break-glass", func(t *testing.T) { testBreakGlass(t, server) })
	t.Run("grants", func(t *testing.T) { testGrants(t, server) })
}

// testImitation shows that the imitation is one: expressions of later versions are refused.
func testImitation(t *testing.T, server *testenv.APIServer) {
	t.Helper()
	policies, dry := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	using := func(expression string) error {
		_, err := policies.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Create},
						Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
					},
				}}},
				Validations: []admissionv1.Validation{{Expression: expression}},
			},
		}, dry)
		return err
	}
	require.NoError(t, using(`[1, 2].sum() == 3`))
	require.ErrorContains(t, using(`[1, 1].distinct().size() == 1`), "undeclared reference", "1.34 knows it")
}

// TestNoExpressionNeedsMoreThan132: of what an expression can call, 1.33 added the functions of semantic versions to 1.32, and
// nothing else (k8s.io/apiserver/pkg/cel/environment); TestOlderKubernetes refuses what came later.
func TestNoExpressionNeedsMoreThan132(t *testing.T) {
	for _, document := range kustomized(t, "overlays/without-born-held") {
		if strings.HasPrefix(kind(t, document).Kind, "ValidatingAdmissionPolicy") {
			require.NotRegexp(t, `(?i)semver\(`, document)
		}
	}
}
