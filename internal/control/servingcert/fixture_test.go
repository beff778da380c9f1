package servingcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"sync/atomic"
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

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

const (
	testCAValidity   = 5 * 365 * 24 * time.Hour
	testLeafValidity = 90 * 24 * time.Hour
	testSettle       = 10 * time.Minute

	serviceName = "holdfast-webhook"
	secretName  = "holdfast-webhook-tls"
	waitTime    = time.Minute // limit of one wait
)

func testPolicy() Policy {
	return Policy{CAValidity: testCAValidity, LeafValidity: testLeafValidity, Settle: testSettle}
}

func epoch() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// fixture is a namespace with a Service, and the name of a webhook configuration.
type fixture struct {
	server *apiserver.Server
	client client.WithWatch
	name   string // of the namespace and of the configuration
}

func newFixture(t *testing.T, server *apiserver.Server, name string) *fixture {
	t.Helper()
	f := &fixture{server: server, client: newClient(t, server.Admin()), name: name}
	require.NoError(t, f.client.Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"fixture": name}},
	}))
	require.NoError(t, f.client.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: serviceName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443}}},
	}))
	return f
}

func newClient(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	require.NoError(t, err)
	return c
}

// createConfiguration creates a configuration with two webhooks for new ConfigMaps in the
// fixture's namespace.
func (f *fixture) createConfiguration(t *testing.T) {
	t.Helper()
	none, port := admissionv1.SideEffectClassNone, int32(8443)
	configMaps := admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: f.name}}
	for _, n := range []string{"one", "two"} {
		config.Webhooks = append(config.Webhooks, admissionv1.ValidatingWebhook{
			Name: n + ".holdfast.dev", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Namespace: f.name, Name: serviceName, Port: &port},
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"fixture": f.name}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: configMaps,
			}},
		})
	}
	require.NoError(t, f.client.Create(t.Context(), config))
}

func (f *fixture) configuration(t *testing.T) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	config := &admissionv1.ValidatingWebhookConfiguration{}
	require.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Name: f.name}, config))
	return config
}

// caBundles returns the caBundles of the configuration's webhooks.
func (f *fixture) caBundles(t *testing.T) [][]byte {
	t.Helper()
	var bundles [][]byte
	for _, w := range f.configuration(t).Webhooks {
		bundles = append(bundles, w.ClientConfig.CABundle)
	}
	return bundles
}

// secret returns the Secret, empty if it does not exist.
func (f *fixture) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	err := f.client.Get(t.Context(), client.ObjectKey{Namespace: f.name, Name: secretName}, secret)
	require.NoError(t, client.IgnoreNotFound(err))
	return secret
}

// start runs n Sources until the test ends.
func (f *fixture) start(t *testing.T, n int, policy Policy) []*Source {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	rotators := make([]*Source, n)
	for i := range rotators {
		rotators[i] = New(Options{
			Client: newClient(t, f.server.Admin()), Namespace: f.name, Secret: secretName, Service: serviceName,
			Configuration: f.name, Policy: policy,
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", i), Registerer: prometheus.NewRegistry(),
		})
		require.EqualError(t, rotators[i].Ready(), "the serving certificate is not loaded yet")
		g.Go(func() error { return rotators[i].Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, g.Wait(), context.Canceled)
	})
	return rotators
}

func allReady(rotators []*Source) func() bool {
	return func() bool {
		for _, r := range rotators {
			if r.Ready() != nil {
				return false
			}
		}
		return true
	}
}

// getCertificate is the source of a server's certificate.
type getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// serve starts a webhook server behind the Service for each certificate. The servers make a new
// TLS handshake for each call.
func (f *fixture) serve(t *testing.T, certificates ...getCertificate) {
	t.Helper()
	allow := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return admission.Allowed("")
	})
	var backends []string
	for _, certificate := range certificates {
		handler, err := admission.StandaloneWebhook(&admission.Webhook{Handler: allow}, admission.StandaloneOptions{})
		require.NoError(t, err)
		backend := httptest.NewUnstartedServer(handler)
		backend.TLS = &tls.Config{GetCertificate: certificate}
		backend.Config.SetKeepAlivesEnabled(false)
		backend.StartTLS()
		t.Cleanup(backend.Close)
		backends = append(backends, backend.Listener.Addr().String())
	}
	proxy, err := f.server.ServeService(t.Context(), f.name, serviceName, backends...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
}

// call makes the API server call both webhooks.
func (f *fixture) call(ctx context.Context) error {
	_, err := f.server.Client().CoreV1().ConfigMaps(f.name).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "call-"}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// startServing starts two Sources that use a new CA after seconds: by then, the API server has read
// the caBundles. It returns them and their first CA after the first successful call.
func (f *fixture) startServing(t *testing.T) ([]*Source, *authority) {
	t.Helper()
	f.createConfiguration(t)
	rotators := f.start(t, 2, Policy{CAValidity: testCAValidity, LeafValidity: testLeafValidity, Settle: 8 * time.Second})
	f.serve(t, rotators[0].GetCertificate, rotators[1].GetCertificate)
	require.Eventually(t, func() bool { return allReady(rotators)() && f.call(t.Context()) == nil },
		waitTime, 20*time.Millisecond)
	content := parseSecret(f.secret(t).Data)
	return rotators, cmp.Or(content.current, content.next)
}

// isReplaced reports whether all Sources serve certificates of a current CA that is not the
// given one.
func (f *fixture) isReplaced(t *testing.T, first *authority, rotators []*Source) bool {
	t.Helper()
	current := parseSecret(f.secret(t).Data).current
	return current != nil && !current.Leaf.Equal(first.Leaf) &&
		!slices.ContainsFunc(rotators, func(r *Source) bool { return !current.hasIssued(r.servedCert()) })
}

// requireNoFailedCall calls the webhooks until done returns true, and at least ten times.
func (f *fixture) requireNoFailedCall(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for ; loop.Wait(ctx, 50*time.Millisecond, nil) == nil; calls.Add(1) {
			if err := f.call(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("call %d: %w", calls.Load(), err)
			}
		}
		return nil
	})
	require.Eventually(t, func() bool { return ctx.Err() != nil || done() && calls.Load() > 10 },
		2*waitTime, 100*time.Millisecond)
	cancel()
	require.NoError(t, g.Wait())
}
