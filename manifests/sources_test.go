package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testAPIServerSources adds the component. Only the addresses that the user adds may reach the
// webhook's port, and without them the API server rejects the NetworkPolicy.
func testAPIServerSources(t *testing.T, server *apiserver.Server) {
	policies := server.Client().NetworkingV1().NetworkPolicies("holdfast-system")
	update := func(patch string) (networkingv1.NetworkPolicy, error) {
		policy := one[networkingv1.NetworkPolicy](t, kustomized(t, withSources(t, ".", patch)),
			"NetworkPolicy", "holdfast-webhook")
		_, err := policies.Update(t.Context(), &policy, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return policy, err
	}
	with, err := update("")
	require.ErrorContains(t, err, "add-the-addresses-of-the-API-server")
	_, err = update(`
patches:
- target: {kind: NetworkPolicy, name: holdfast-webhook}
  patch: |
    - op: replace
      path: /spec/ingress/0/from
      value: [{ipBlock: {cidr: 192.0.2.11/32}}]
`)
	require.NoError(t, err)
	base := one[networkingv1.NetworkPolicy](t, shipped(t), "NetworkPolicy", "holdfast-webhook")
	require.Len(t, with.Spec.Ingress, 2)
	require.Len(t, with.Spec.Ingress[0].From, 1)
	ports := append(with.Spec.Ingress[0].Ports, with.Spec.Ingress[1].Ports...)
	require.Equal(t, base.Spec.Ingress[0].Ports, ports)
	require.Empty(t, with.Spec.Ingress[1].From, "metrics and health are for the kubelet and for monitoring")
}

// withSources returns a kustomization as a user writes it: an overlay with the component on top.
func withSources(t *testing.T, overlay, patch string) string {
	t.Helper()
	dir := withComponent(t, overlay, "api-server-sources")
	file := filepath.Join(dir, "kustomization.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(string(text)+strings.TrimPrefix(patch, "\n")), 0o600))
	return dir
}
