package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testAPIServerSources adds the component to every overlay. Only the addresses that the user adds
// may reach the webhook's port, and without them the API server rejects the NetworkPolicy.
func testAPIServerSources(t *testing.T, server *apiserver.Server) {
	for _, dir := range append(overlays(t), ".") {
		t.Run(dir, func(t *testing.T) {
			apply := func(patch string) error {
				policy := filepath.Join(t.TempDir(), "policy.yaml")
				for _, document := range kustomized(t, withSources(t, dir, patch)) {
					if identity(t, document) == "NetworkPolicy/holdfast-webhook" {
						require.NoError(t, os.WriteFile(policy, []byte(document), 0o600))
					}
				}
				_, err := server.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "-f", policy)
				return err
			}
			require.ErrorContains(t, apply(""), "add-the-addresses-of-the-API-server")
			require.NoError(t, apply(`
patches:
- target: {kind: NetworkPolicy, name: holdfast-webhook}
  patch: |
    - op: replace
      path: /spec/ingress/0/from
      value: [{ipBlock: {cidr: 192.0.2.11/32}}]
`))
		})
	}
	shipped := one[networkingv1.NetworkPolicy](t, kustomized(t, "."), "NetworkPolicy", "holdfast-webhook")
	with := one[networkingv1.NetworkPolicy](t, kustomized(t, withSources(t, ".", "")),
		"NetworkPolicy", "holdfast-webhook")
	require.Len(t, with.Spec.Ingress, 2)
	require.Len(t, with.Spec.Ingress[0].From, 1)
	ports := append(with.Spec.Ingress[0].Ports, with.Spec.Ingress[1].Ports...)
	require.Equal(t, shipped.Spec.Ingress[0].Ports, ports)
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
