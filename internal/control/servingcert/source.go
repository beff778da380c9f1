// Package servingcert issues and rotates the webhook's serving certificate, so that no other
// tool such as cert-manager is required.
//
// A Secret holds a certificate authority (CA). The caBundle of every webhook in a
// ValidatingWebhookConfiguration contains it. All replicas of the webhook run a Source. Each
// issues a serving certificate for itself, in memory only. Each does the next step of the CA's
// rotation when it is due; resourceVersion guards every write, so no leader is required.
//
// No call by the API server fails during a rotation. A new CA is used only after every webhook's
// caBundle has contained it for a while. A CA stays in the caBundles for as long as a valid
// certificate of it may be served. If the Secret is damaged or deleted, the Source creates a new
// CA, and keeps the CAs that are trusted already.
//
// In clusters in which another program issues the certificate, the Source reads it from files.
package servingcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options configures a Source.
type Options struct {
	// Namespace is the namespace of the Secret and of the Service.
	Namespace string
	// Service is the Service through which the API server calls the webhook.
	Service string

	// CertFile is a certificate with its chain that another program issues, KeyFile its key, both in
	// PEM. If they are empty, the Source issues the certificate with the options that follow.
	CertFile, KeyFile string

	// Secret is the Secret's name. The Source creates it if it does not exist.
	Secret string
	// Configuration is the name of the ValidatingWebhookConfiguration. The Source sets the
	// caBundle of every webhook in it.
	Configuration string
	// Policy has the times of the rotation. The default: a CA is valid for five years, a certificate
	// for 90 days, and a CA settles for 10 minutes.
	Policy Policy
	// Client reads and writes the Secret and the ValidatingWebhookConfiguration, uncached.
	Client client.WithWatch

	Log *slog.Logger
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// A Source provides the serving certificate.
type Source struct {
	options Options
	loaded  chan struct{} // closed when there is a certificate
	state   atomic.Pointer[sourceState]
}

type sourceState struct {
	served   *tls.Certificate // nil if there is none yet
	notReady string           // the reason that calls fail, empty if they succeed
}

// New returns a Source, which has no certificate before Run.
func New(o Options) *Source {
	o.Policy = cmp.Or(o.Policy, defaultPolicy())
	s := &Source{options: o, loaded: make(chan struct{})}
	s.state.Store(&sourceState{notReady: "the serving certificate is not loaded yet"})
	promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_webhook_serving_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the serving certificate in use, in seconds since the epoch; 0 if there is none.",
	}, func() float64 {
		if certificate := s.servedCert(); certificate != nil {
			return float64(certificate.Leaf.NotAfter.Unix())
		}
		return 0
	})
	return s
}

// Run keeps the certificate valid until ctx ends, and returns the cause of that. It retries after
// errors, and logs the same error once.
func (s *Source) Run(ctx context.Context) error {
	if s.options.CertFile != "" {
		return s.followFiles(ctx)
	}
	return s.rotate(ctx)
}

// GetCertificate returns the serving certificate. It has the signature that tls.Config requires.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	state := s.state.Load()
	if state.served == nil {
		return nil, errors.New(state.notReady)
	}
	return state.served, nil
}

// Loaded returns a channel that is closed when GetCertificate returns a certificate. Before that,
// every TLS handshake fails.
func (s *Source) Loaded() <-chan struct{} { return s.loaded }

// dnsName is the name that the API server calls.
func (o Options) dnsName() string { return o.Service + "." + o.Namespace + ".svc" }

// Ready returns an error with the reason if calls by the API server fail. It does not know whether
// the API server trusts a certificate from files.
func (s *Source) Ready() error {
	state := s.state.Load()
	reason := state.notReady
	if reason == "" {
		reason = invalidReason(state.served.Leaf, time.Now())
	}
	if reason != "" {
		return errors.New(reason)
	}
	return nil
}

// servedCert returns the certificate in use, nil if there is none yet.
func (s *Source) servedCert() *tls.Certificate { return s.state.Load().served }

// serve uses a certificate, nil if there is none yet. It also sets the reason that calls fail, and
// returns the previous one.
func (s *Source) serve(certificate *tls.Certificate, notReady string) (previous string) {
	before := s.state.Swap(&sourceState{certificate, notReady})
	if certificate != before.served {
		s.options.Log.Info("serving a new certificate",
			"serial", certificate.Leaf.SerialNumber.Text(16), "not_after", certificate.Leaf.NotAfter)
		if before.served == nil {
			close(s.loaded)
		}
	}
	return before.notReady
}

// invalidReason returns why no client accepts a certificate at this time, empty if there is no
// reason.
func invalidReason(leaf *x509.Certificate, now time.Time) string {
	switch {
	case !now.Before(leaf.NotAfter):
		return "the serving certificate expired on " + leaf.NotAfter.Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the serving certificate is not valid before " + leaf.NotBefore.Format(time.RFC3339)
	}
	return ""
}
