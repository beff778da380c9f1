package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// admissionConfiguration and webhookKubeconfig are the files in docs/permissions.md.
const (
	admissionConfiguration = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: /etc/kubernetes/webhooks/kubeconfig
`
	webhookKubeconfig = `apiVersion: v1
kind: Config
users:
- name: holdfast-webhook.holdfast-system.svc:9443
  user:
    client-certificate: /etc/kubernetes/webhooks/client.crt
    client-key: /etc/kubernetes/webhooks/client.key
`
)

// writeClientCertificate writes what docs/permissions.md describes: the API server sends a client
// certificate to the webhook. It returns the configuration of the API server, and the authority.
func writeClientCertificate(t *testing.T) (configuration, authority string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/permissions.md")
	require.NoError(t, err)
	unindented := strings.ReplaceAll(string(page), "\n   ", "\n")
	require.Contains(t, unindented, admissionConfiguration)
	require.Contains(t, unindented, webhookKubeconfig)

	ca, dir := newCA(t), t.TempDir()
	authority, configuration = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "admission.yaml")
	require.NoError(t, ca.Write(authority))
	pair, err := ca.Issue(pki.CertOptions{CommonName: "kube-apiserver", Client: true})
	require.NoError(t, err)
	require.NoError(t, pair.Write(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")))
	for path, content := range map[string]string{
		configuration: admissionConfiguration, filepath.Join(dir, "kubeconfig"): webhookKubeconfig,
	} {
		content = strings.ReplaceAll(content, "/etc/kubernetes/webhooks", dir)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return configuration, authority
}

// testClientCertificate requires the client certificate of the API server.
func testClientCertificate(t *testing.T, f *fixture) {
	f.startReady(t, []string{"--client-ca-file=" + f.clientCA, "--client-name=kube-apiserver"})
	f.addNode(t, "certified-etcd", etcdLabel())
	require.ErrorContains(t, f.deleteNode(t, "certified-etcd"), "its member is unknown")

	conn, err := f.replicas[0].dial(t.Context())
	require.NoError(t, err, "in TLS 1.3 the server checks the certificate after the handshake of the client")
	_, err = conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "certificate required")
	require.NoError(t, conn.Close())
}
