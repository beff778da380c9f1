package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	service = "holdfast-webhook"
	soon    = 30 * time.Second
)

// site is a namespace with a Service and a webhook configuration of its own.
type site struct {
	server *testenv.APIServer
	client client.WithWatch
	name   string // of the namespace and of the configuration
}

func newSite(t *testing.T, server *testenv.APIServer, name string) *site {
	t.Helper()
	s := &site{server: server, client: dial(t, server.Admin()), name: name}
	require.NoError(t, s.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"site": name}}}))
	require.NoError(t, s.client.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: service},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443}}},
	}))
	return s
}

func dial(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	require.NoError(t, err)
	return c
}

// configure creates a configuration with two webhooks that are asked about each new ConfigMap of the site.
func (s *site) configure(t *testing.T) {
	t.Helper()
	none, port := admissionv1.SideEffectClassNone, int32(8443)
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	for _, n := range []string{"one", "two"} {
		config.Webhooks = append(config.Webhooks, admissionv1.ValidatingWebhook{
			Name: n + ".holdfast.dev", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig:      admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: s.name, Name: service, Port: &port}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"site": s.name}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		})
	}
	require.NoError(t, s.client.Create(t.Context(), config))
}

func (s *site) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: "holdfast-webhook-tls"}, secret))
	return secret
}

// bundles are the caBundles of the site's webhooks.
func (s *site) bundles(t *testing.T) [][]byte {
	t.Helper()
	config := &admissionv1.ValidatingWebhookConfiguration{}
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Name: s.name}, config))
	var bundles [][]byte
	for _, w := range config.Webhooks {
		bundles = append(bundles, w.ClientConfig.CABundle)
	}
	return bundles
}

// start runs n keepers at once until the test ends.
func (s *site) start(t *testing.T, n int, quick terms) []*Keeper {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	keepers := make([]*Keeper, n)
	for i := range keepers {
		var err error
		keepers[i], err = New(Options{
			Client: dial(t, s.server.Admin()), Namespace: s.name, Secret: "holdfast-webhook-tls", Service: service, Configuration: s.name,
			CAValidity: quick.ca, LeafValidity: quick.leaf, Settle: quick.settle,
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("keeper", i), Registerer: prometheus.NewRegistry(),
		})
		require.NoError(t, err)
		require.EqualError(t, keepers[i].Ready(), "the serving certificate has not been read yet")
		g.Go(func() error { return keepers[i].Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, g.Wait(), context.Canceled)
	})
	return keepers
}

func allReady(keepers []*Keeper) func() bool {
	return func() bool {
		for _, k := range keepers {
			if k.Ready() != nil {
				return false
			}
		}
		return true
	}
}

// serve answers reviews with the keepers' certificates behind the Service, one handshake for each.
func (s *site) serve(t *testing.T, keepers []*Keeper) {
	t.Helper()
	var backends []string
	for _, k := range keepers {
		yes, err := admission.StandaloneWebhook(&admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
			return admission.Allowed("")
		})}, admission.StandaloneOptions{})
		require.NoError(t, err)
		backend := httptest.NewUnstartedServer(yes)
		backend.TLS = &tls.Config{GetCertificate: k.GetCertificate}
		backend.Config.SetKeepAlivesEnabled(false)
		backend.StartTLS()
		t.Cleanup(backend.Close)
		backends = append(backends, backend.Listener.Addr().String())
	}
	proxy, err := s.server.ServeService(t.Context(), s.name, service, backends...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
}

// call makes the API server ask both webhooks.
func (s *site) call(ctx context.Context) error {
	_, err := s.server.Client().CoreV1().ConfigMaps(s.name).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "call-"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// startServing starts two keepers that rotate within seconds, and returns them and their first authority once the API
// server has called them.
func (s *site) startServing(t *testing.T) ([]*Keeper, *x509.Certificate) {
	t.Helper()
	s.configure(t)
	keepers := s.start(t, 2, terms{ca: 30 * time.Second, leaf: 12 * time.Second, settle: 4 * time.Second})
	s.serve(t, keepers)
	require.Eventually(t, func() bool { return allReady(keepers)() && s.call(t.Context()) == nil }, soon, 20*time.Millisecond)
	return keepers, read(s.secret(t).Data, nil).ca.cert
}

func servedBy(keepers []*Keeper, pair *tls.Certificate) bool {
	for _, k := range keepers {
		if !bytes.Equal(k.inUse().Certificate[0], pair.Certificate[0]) {
			return false
		}
	}
	return true
}

// noCallFails calls both replicas through the API server until done.
func (s *site) noCallFails(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls int
	var g errgroup.Group
	g.Go(func() error {
		for ; ctx.Err() == nil; calls++ {
			if err := s.call(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("call %d: %w", calls, err)
			}
		}
		return nil
	})
	require.Eventually(t, done, 2*soon, 100*time.Millisecond)
	cancel()
	require.NoError(t, g.Wait())
	require.Greater(t, calls, 20)
}
