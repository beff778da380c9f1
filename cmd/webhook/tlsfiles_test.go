package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// testTLSFiles rotates a certificate of another authority while a real API server calls two
// replicas, which have no permission for a Secret or the webhook configuration.
func testTLSFiles(t *testing.T, f *fixture) {
	f.removeCertificateRules(t)
	secrets := f.Client().CoreV1().Secrets("holdfast-system")
	require.NoError(t, client.IgnoreNotFound(secrets.Delete(t.Context(), tlsSecret, metav1.DeleteOptions{})))
	dir := t.TempDir()
	ca := newCA(t)
	f.trust(t, ca)
	args := []string{"--tls-cert-file=" + filepath.Join(dir, "tls.crt"), "--tls-key-file=" + filepath.Join(dir, "tls.key")}
	f.start(t, args, args)
	for _, replica := range f.replicas {
		require.Eventually(t, func() bool {
			code, text := fetch(t, "http://"+replica.health+"/readyz")
			return code == 503 && text == "loading the serving certificate "+dir+"/tls.crt with the key "+dir+
				"/tls.key: open "+dir+"/tls.crt: no such file or directory\n"
		}, soon, 20*time.Millisecond, "the certificate is late")
		require.Never(t, func() bool {
			_, err := replica.dial(t.Context())
			return !errors.Is(err, syscall.ECONNREFUSED)
		}, 300*time.Millisecond, 20*time.Millisecond, "the Service would not use another replica")
	}

	f.addNode(t, "etcd-of-files", etcdLabel())
	serve := func(ca *pki.CA) {
		pair, err := ca.Issue(pki.CertOptions{Hosts: []string{"holdfast-webhook.holdfast-system.svc"}, Server: true})
		require.NoError(t, err)
		require.NoError(t, pair.Write(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")))
		for _, replica := range f.replicas {
			replica.waitReady(t)
			replica.waitServing(t, pair)
			require.Regexp(t, `holdfast_webhook_serving_certificate_expiry_timestamp_seconds 1\.`, replica.fetchMetrics(t))
		}
		for _, replica := range f.replicas {
			f.service.SetBackends(replica.address)
			require.Eventually(t, func() bool {
				err := f.deleteNode(t, "etcd-of-files")
				require.Error(t, err)
				return strings.Contains(err.Error(), `admission webhook "etcd-nodes.holdfast.dev" denied the request`)
			}, soon, 100*time.Millisecond, "the API server reads new authorities with a delay")
		}
	}
	serve(ca)
	configuration := f.configuration(t)
	serve(ca)
	require.Equal(t, configuration.ResourceVersion, f.configuration(t).ResourceVersion, "the webhook writes it")

	next := newCA(t)
	f.trust(t, ca, next)
	serve(next)
	f.trust(t, next)
	serve(next)

	_, err := secrets.Get(t.Context(), tlsSecret, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	for _, replica := range f.replicas {
		require.NotContains(t, replica.LogTail(1000), "forbidden")
	}
}

// waitServing waits until the replica serves the certificate.
func (w *webhookProcess) waitServing(t *testing.T, pair pki.Pair) {
	t.Helper()
	want, err := pair.TLS()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		connection, err := w.dial(t.Context())
		if err != nil {
			return false
		}
		defer func() { require.NoError(t, connection.Close()) }()
		client, ok := connection.(*tls.Conn)
		require.True(t, ok)
		return bytes.Equal(client.ConnectionState().PeerCertificates[0].Raw, want.Certificate[0])
	}, soon, 20*time.Millisecond)
}

// removeCertificateRules removes the permissions that docs/permissions.md names.
func (f *fixture) removeCertificateRules(t *testing.T) {
	t.Helper()
	needless := func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "secrets") || slices.Contains(r.Resources, "validatingwebhookconfigurations")
	}
	rbac := f.Client().RbacV1()
	role, err := rbac.Roles("holdfast-system").Get(t.Context(), "holdfast-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	clusterRole, err := rbac.ClusterRoles().Get(t.Context(), "holdfast-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	before := len(role.Rules) + len(clusterRole.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, needless)
	clusterRole.Rules = slices.DeleteFunc(clusterRole.Rules, needless)
	require.Equal(t, before-3, len(role.Rules)+len(clusterRole.Rules))
	_, err = rbac.Roles("holdfast-system").Update(t.Context(), role, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = rbac.ClusterRoles().Update(t.Context(), clusterRole, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func (f *fixture) configuration(t *testing.T) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	configurations := f.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	return configuration
}

// trust sets the authorities of every webhook, as cert-manager's cainjector does.
func (f *fixture) trust(t *testing.T, authorities ...*pki.CA) {
	t.Helper()
	var bundle []byte
	for _, ca := range authorities {
		bundle = append(bundle, ca.PEM()...)
	}
	var hooks []map[string]any
	for _, hook := range f.configuration(t).Webhooks {
		hooks = append(hooks, map[string]any{"name": hook.Name, "clientConfig": map[string]any{"caBundle": bundle}})
	}
	patch, err := json.Marshal(map[string]any{"webhooks": hooks})
	require.NoError(t, err)
	configurations := f.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Patch(t.Context(), "holdfast", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}
