// Package servingcert issues and rotates the webhook's serving certificate, so that no other
// tool such as cert-manager is required.
//
// A Secret holds a certificate authority (CA) and the serving certificate. The caBundle of
// every webhook in a ValidatingWebhookConfiguration contains the CA. All replicas of the
// webhook run a Rotator. Each of them does the next step when it is due; resourceVersion
// guards every write, so no leader is required.
//
// No call by the API server fails during a rotation. A certificate is served only after every
// webhook's caBundle contains its CA. A CA stays in the caBundles for as long as a valid
// certificate of it may be served. If the Secret is damaged or deleted, the Rotator
// replaces the unusable parts and keeps the CAs that are trusted already.
//
// Files is for clusters in which another program issues the certificate.
package servingcert

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options configures a Rotator.
type Options struct {
	// Client reads and writes the Secret and the ValidatingWebhookConfiguration, uncached.
	Client client.WithWatch
	// Namespace is the namespace of the Secret and of the Service.
	Namespace string
	// Secret is the Secret's name. The Rotator creates it if it does not exist.
	Secret string
	// Service is the Service through which the API server calls the webhook. The serving
	// certificate is valid for its DNS names.
	Service string
	// Configuration is the name of the ValidatingWebhookConfiguration. The Rotator sets the
	// caBundle of every webhook in it.
	Configuration string
	// CAValidity is the lifetime of a CA, 5 years if zero.
	CAValidity time.Duration
	// LeafValidity is the lifetime of a serving certificate, 90 days if zero. At most half of
	// CAValidity.
	LeafValidity time.Duration
	// Settle is the time between a change of the caBundles and the use of a certificate that
	// depends on it, because each API server reads the configuration with its own delay. 10
	// minutes if zero. At most a third of LeafValidity.
	Settle time.Duration
	Log    *slog.Logger
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// A Rotator provides a serving certificate that the API server trusts.
type Rotator struct {
	client client.WithWatch
	secret types.NamespacedName
	config string
	policy rotationPolicy
	log    *slog.Logger
	expiry prometheus.Gauge
	loaded chan struct{} // closed when there is a certificate

	mu       sync.Mutex // guards served and notReady
	served   *tls.Certificate
	notReady string // the reason that calls fail, empty if they succeed
}

// New returns a Rotator. It returns an error if the lifetimes leave no time for a rotation.
func New(o Options) (*Rotator, error) {
	policy := rotationPolicy{
		caValidity:   cmp.Or(o.CAValidity, 5*365*24*time.Hour),
		leafValidity: cmp.Or(o.LeafValidity, 90*24*time.Hour),
		settle:       cmp.Or(o.Settle, 10*time.Minute),
		dnsNames:     serviceDNSNames(o.Service, o.Namespace),
	}
	ca, leaf, settle := policy.caValidity, policy.leafValidity, policy.settle
	if leaf < 0 || settle < 0 || leaf > ca/2 || settle > leaf/3 {
		return nil, fmt.Errorf("a serving certificate for %s under a CA for %s with a settle time of %s cannot be rotated: "+
			"the first may be at most half of the second, and the third at most a third of the first", leaf, ca, settle)
	}
	r := &Rotator{
		client: o.Client, secret: types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}, config: o.Configuration,
		policy: policy, log: o.Log, loaded: make(chan struct{}), notReady: "the serving certificate is not loaded yet",
		expiry: prometheus.NewGauge(expiryGauge()),
	}
	if err := o.Registerer.Register(r.expiry); err != nil {
		return nil, fmt.Errorf("registering the serving certificate's metric: %w", err)
	}
	return r, nil
}

func expiryGauge() prometheus.GaugeOpts {
	return prometheus.GaugeOpts{
		Name: "holdfast_webhook_serving_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the serving certificate in use, in seconds since the epoch; 0 if there is none.",
	}
}

// serviceDNSNames returns the DNS names of a Service. The API server uses the third.
func serviceDNSNames(service, namespace string) []string {
	name := service + "." + namespace
	return []string{service, name, name + ".svc", name + ".svc.cluster.local"}
}

// GetCertificate returns the serving certificate. It has the signature that tls.Config requires.
func (r *Rotator) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served == nil {
		return nil, errors.New(r.notReady)
	}
	return r.served, nil
}

// Loaded returns a channel that is closed when GetCertificate returns a certificate. Before that,
// every TLS handshake fails.
func (r *Rotator) Loaded() <-chan struct{} { return r.loaded }

// Ready returns an error with the reason if calls by the API server fail.
func (r *Rotator) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.notReady != "":
		return errors.New(r.notReady)
	case !time.Now().Before(r.served.Leaf.NotAfter):
		return errors.New(expiredReason(r.served))
	}
	return nil
}

// servedCert returns the certificate in use, nil if there is none yet.
func (r *Rotator) servedCert() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// updateServed selects the certificate to serve, and updates the readiness.
func (r *Rotator) updateServed(s rotationState) {
	selected := selectServing(s, r.policy)
	reason := unreadyReason(s, selected)
	r.mu.Lock()
	previous, previousReason := r.served, r.notReady
	r.served, r.notReady = selected, reason
	r.mu.Unlock()
	if selected != nil && (previous == nil || !slices.Equal(previous.Certificate[0], selected.Certificate[0])) {
		if previous == nil {
			close(r.loaded)
		}
		leaf := selected.Leaf
		r.expiry.Set(float64(leaf.NotAfter.Unix()))
		r.log.Info("serving a new certificate", "serial", leaf.SerialNumber.Text(16), "not_after", leaf.NotAfter)
	}
	switch reason {
	case previousReason:
	case "":
		r.log.Info("the API server trusts the serving certificate")
	default:
		r.log.Warn("the API server cannot call this webhook", "reason", reason)
	}
}
