package manifests_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// testWebhookConfiguration checks which entry of the shipped configuration calls which path, and what becomes of a deletion
// when nobody answers. Who answers here refuses everything and says where it was asked.
func testWebhookConfiguration(t *testing.T, server *testenv.APIServer) {
	for name, label := range map[string]string{"etcd": "true", "odd": "maybe", "worker": ""} {
		spec := testenv.NodeSpec{Name: name}
		if label != "" {
			spec.Labels = map[string]string{"holdfast.dev/etcd-member": label}
		}
		_, _, err := server.AddNode(t.Context(), spec)
		require.NoError(t, err)
	}
	nodes, admin := server.Client().CoreV1().Nodes(), metav1.DeleteOptions{}
	require.ErrorContains(t, nodes.Delete(t.Context(), "etcd", admin), "etcd-nodes.holdfast.dev", "fails closed")

	ca, err := testenv.NewCA("holdfast-webhook")
	require.NoError(t, err)
	var dry atomic.Bool
	listener := refuser(t, ca, &dry)
	proxy, err := server.ServeService(t.Context(), "holdfast-system", "holdfast-webhook", listener)
	require.NoError(t, err)
	defer func() { require.NoError(t, proxy.Close()) }()

	// As the webhook fills it in, with its own identity and rights.
	trust, err := json.Marshal([]map[string]any{
		{"name": "etcd-nodes.holdfast.dev", "clientConfig": map[string]any{"caBundle": ca.PEM()}},
		{"name": "other-nodes.holdfast.dev", "clientConfig": map[string]any{"caBundle": ca.PEM()}},
	})
	require.NoError(t, err)
	webhook := clientOf(t, serviceAccount(t, server, "holdfast-webhook", "")).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = webhook.Patch(t.Context(), "holdfast", types.StrategicMergePatchType, []byte(`{"webhooks":`+string(trust)+`}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, server.Obeyed(t.Context()))

	for node, path := range map[string]string{"etcd": "/validate-etcd-node", "odd": "/validate-node", "worker": "/validate-node"} {
		err := nodes.Delete(t.Context(), node, admin)
		require.ErrorContains(t, err, "refused at "+path)
		require.False(t, dry.Load())
		err = nodes.Delete(t.Context(), node, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(t, err, "refused at "+path)
		require.True(t, dry.Load())
	}
	err = nodes.DeleteCollection(t.Context(), admin, metav1.ListOptions{LabelSelector: "holdfast.dev/etcd-member=true"})
	require.ErrorContains(t, err, "refused at /validate-etcd-node")

	// Installing again leaves what the webhook has filled in.
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-k", ".")
	require.NoError(t, err)
	again, err := webhook.Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	for _, w := range again.Webhooks {
		require.Equal(t, ca.PEM(), w.ClientConfig.CABundle, w.Name)
	}

	require.NoError(t, proxy.Close())
	require.NoError(t, nodes.Delete(t.Context(), "worker", admin), "fails open")
	require.NoError(t, nodes.Delete(t.Context(), "odd", admin), "fails open")
	err = nodes.Delete(t.Context(), "etcd", admin)
	require.ErrorContains(t, err, "etcd-nodes.holdfast.dev", "fails closed")
	_, err = nodes.Patch(t.Context(), "etcd", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	remove(t, server, "etcd")
}

// refuser serves the names of the Service over TLS, refuses every review, and returns its address.
func refuser(t *testing.T, ca *testenv.CA, dry *atomic.Bool) string {
	t.Helper()
	pair, err := ca.Issue(testenv.CertOptions{Server: true, Hosts: []string{"holdfast-webhook.holdfast-system.svc"}})
	require.NoError(t, err)
	certificate, err := pair.TLS()
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request.OldObject.Raw == nil {
			http.Error(w, "this is no review of a deletion", http.StatusBadRequest)
			return
		}
		dry.Store(*review.Request.DryRun)
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "refused at " + r.URL.Path}}
		_ = json.NewEncoder(w).Encode(review) // the API server tells what it did not hear
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
