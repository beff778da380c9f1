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
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// testWebhookConfiguration checks which entry of the configuration calls which path, and the
// result of a deletion without an answer. The server of the test refuses every review and
// returns the path of the request.
func testWebhookConfiguration(t *testing.T, server *apiserver.Server) {
	for name, label := range map[string]string{"etcd": "true", "odd": "maybe", "worker": ""} {
		spec := apiserver.NodeSpec{Name: name}
		if label != "" {
			spec.Labels = map[string]string{"holdfast.dev/etcd-member": label}
		}
		_, _, err := server.AddNode(t.Context(), spec)
		require.NoError(t, err)
	}
	nodes, admin := server.Client().CoreV1().Nodes(), metav1.DeleteOptions{}
	require.ErrorContains(t, nodes.Delete(t.Context(), "etcd", admin), "etcd-nodes.holdfast.dev", "fails closed")

	ca, err := pki.NewCA("holdfast-webhook")
	require.NoError(t, err)
	var dry atomic.Bool
	listener := refuser(t, ca, &dry)
	proxy, err := server.ServeService(t.Context(), "holdfast-system", "holdfast-webhook", listener)
	require.NoError(t, err)
	defer func() { require.NoError(t, proxy.Close()) }()

	trustAll(t, server, ca)
	for node, path := range map[string]string{
		"etcd": "/validate-etcd-node", "odd": "/validate-node", "worker": "/validate-node",
	} {
		err := nodes.Delete(t.Context(), node, admin)
		require.ErrorContains(t, err, "refused at "+path)
		require.False(t, dry.Load())
		err = nodes.Delete(t.Context(), node, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(t, err, "refused at "+path)
		require.True(t, dry.Load())
	}
	withEtcd := metav1.ListOptions{LabelSelector: "holdfast.dev/etcd-member=true"}
	err = nodes.DeleteCollection(t.Context(), admin, withEtcd)
	require.ErrorContains(t, err, "refused at /validate-etcd-node")

	// A second installation keeps the bundle.
	dir := "."
	if server.BornHeld() {
		dir = full
	}
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-k", dir)
	require.NoError(t, err)
	configurations := server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	again, err := configurations.Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	for _, w := range again.Webhooks {
		require.Equal(t, ca.PEM(), w.ClientConfig.CABundle, w.Name)
	}

	require.NoError(t, proxy.Close())
	require.NoError(t, nodes.Delete(t.Context(), "worker", admin), "fails open")
	require.NoError(t, nodes.Delete(t.Context(), "odd", admin), "fails open")
	err = nodes.Delete(t.Context(), "etcd", admin)
	require.ErrorContains(t, err, "etcd-nodes.holdfast.dev", "fails closed")
	removeProtection(t, server, "etcd")
	remove(t, server, "etcd")
}

// refuser serves the names of the Service over TLS, refuses every review, and returns its address.
func refuser(t *testing.T, ca *pki.CA, dry *atomic.Bool) string {
	t.Helper()
	pair, err := ca.Issue(pki.CertOptions{Server: true, Hosts: []string{"holdfast-webhook.holdfast-system.svc"}})
	require.NoError(t, err)
	certificate, err := pair.TLS()
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request.OldObject.Raw == nil {
			http.Error(w, "the request is not a review of a deletion", http.StatusBadRequest)
			return
		}
		dry.Store(*review.Request.DryRun)
		result := &metav1.Status{Message: "refused at " + r.URL.Path}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: result}
		_ = json.NewEncoder(w).Encode(review) // the API server reports an incomplete answer
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestWebhookEntries checks that every deletion of a Node calls exactly one entry, and that
// all entries call the port of the Service.
func TestWebhookEntries(t *testing.T) {
	all := shipped(t)
	service := one[corev1.Service](t, all, "Service", "holdfast-webhook")
	pods := one[appsv1.Deployment](t, all, "Deployment", "holdfast-webhook").Spec.Template
	require.Equal(t, pods.Labels["app.kubernetes.io/name"], service.Spec.Selector["app.kubernetes.io/name"])
	hooks := webhookEntries(t, all)
	require.Len(t, hooks, 4)
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

// webhookEntries returns the entries of the webhook configuration.
func webhookEntries(t *testing.T, documents []string) []registrationv1.ValidatingWebhook {
	t.Helper()
	const kind = "ValidatingWebhookConfiguration"
	return one[registrationv1.ValidatingWebhookConfiguration](t, documents, kind, "holdfast").Webhooks
}

// TestWebhookPrefersControlPlane checks that the token of the webhook stays away from workers if
// there are nodes of the control plane that take its pods, and that it needs no such node.
func TestWebhookPrefersControlPlane(t *testing.T) {
	pods := one[appsv1.Deployment](t, shipped(t), "Deployment", "holdfast-webhook").Spec.Template.Spec
	terms := pods.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	require.Len(t, terms, 1)
	const label = "node-role.kubernetes.io/control-plane"
	require.Equal(t, []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpExists}},
		terms[0].Preference.MatchExpressions)
	for _, key := range []string{label, "node-role.kubernetes.io/master"} {
		require.True(t, tolerated(pods.Tolerations, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}))
	}
	for _, term := range pods.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			require.NotEqual(t, label, r.Key)
		}
	}
}
