package charts_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwnSecret checks that the certificate of a Secret is mounted, and trusted in every entry, and
// that the webhook may then change neither Secrets nor the webhook configuration.
func TestOwnSecret(t *testing.T) {
	chart := rendered(t, "1.36.0", "certificates.mode=secret", "certificates.secretName=mine",
		"certificates.caBundle=-----BEGIN CERTIFICATE-----", "clusterAPI.enabled=true", "karpenterNodeClaims.enabled=true")
	require.Subset(t, args(t, chart, webhook), []any{
		"--tls-cert-file=/etc/holdfast/tls/tls.crt", "--tls-key-file=/etc/holdfast/tls/tls.key",
	})
	volume := list(chart[webhook], "spec", "template", "spec", "volumes")[0].(object)
	require.Equal(t, "mine", field(volume, "secret", "secretName"))
	requireNoRule(t, chart["rbac.authorization.k8s.io/v1 Role holdfast-webhook"], "secrets")
	requireNoRule(t, chart["rbac.authorization.k8s.io/v1 ClusterRole holdfast-webhook"], "validatingwebhookconfigurations")
	entries := list(chart["admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration holdfast"], "webhooks")
	require.Len(t, entries, 6)
	for _, entry := range entries {
		require.Equal(t, "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", field(entry.(object), "clientConfig", "caBundle"))
	}
}

// TestSecretNames checks that the name of a Secret stays a string, also if it looks like a number.
func TestSecretNames(t *testing.T) {
	const name = "1e3"
	chart := rendered(t, "1.36.0", "certificates.mode=cert-manager", "certificates.secretName="+name, "spc.enabled=true",
		"spc.secretName="+name)
	require.Equal(t, name, field(chart["cert-manager.io/v1 Certificate holdfast-webhook"], "spec", "secretName"))
	for _, volume := range list(chart[webhook], "spec", "template", "spec", "volumes") {
		require.Equal(t, name, field(volume.(object), "secret", "secretName"))
	}
}

// requireNoRule checks that a role has rules, and none for a resource.
func requireNoRule(t *testing.T, role object, resource string) {
	t.Helper()
	require.NotEmpty(t, list(role, "rules"))
	for _, rule := range list(role, "rules") {
		require.NotContains(t, list(rule.(object), "resources"), resource)
	}
}

// TestOwnIssuer checks that no authority is made if there is an issuer.
func TestOwnIssuer(t *testing.T) {
	chart := rendered(t, "1.36.0", "certificates.mode=cert-manager", "certificates.issuerRef.name=mine",
		"certificates.issuerRef.kind=ClusterIssuer")
	want := object{"name": "mine", "kind": "ClusterIssuer"}
	require.Equal(t, want, field(chart["cert-manager.io/v1 Certificate holdfast-webhook"], "spec", "issuerRef"))
	require.NotContains(t, chart, "cert-manager.io/v1 Certificate holdfast-webhook-ca")
	require.NotContains(t, chart, "cert-manager.io/v1 Issuer holdfast-webhook-ca")
}
