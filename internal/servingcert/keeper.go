// Package servingcert makes and rotates the webhook's serving certificate, so that nothing else need be installed for it.
//
// A Secret holds the certificate authority and the serving pair, and the ValidatingWebhookConfiguration trusts the
// authority. Any replica does whatever is due, guarded by resourceVersion, so that no replica is special. A certificate
// is served only after every webhook of the configuration trusts it, and an authority is trusted for as long as anything
// valid that it signed may be served; so no call fails during a rotation. What the package refuses to know is how the
// Secret came to be damaged: what cannot be used is made anew, and what was trusted stays trusted.
package servingcert

import (
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

// Options say what a Keeper keeps, and where.
type Options struct {
	// Client reads and writes the Secret and the ValidatingWebhookConfiguration, uncached.
	Client client.WithWatch
	// Namespace is that of the Secret and of the Service.
	Namespace string
	// Secret is the Secret's name. The Keeper makes it if it is not there.
	Secret string
	// Service is the Service by which the API server calls the webhook; the certificate is for its names.
	Service string
	// Configuration is the name of the ValidatingWebhookConfiguration. Every webhook in it gets the caBundle.
	Configuration string
	// CAValidity is how long an authority lasts: 5 years if zero.
	CAValidity time.Duration
	// LeafValidity is how long a serving certificate lasts: 90 days if zero. At most half of CAValidity.
	LeafValidity time.Duration
	// Settle is how long a bundle must have stood before a certificate is served under it, since each API server reads
	// the configuration in its own time: 10 minutes if zero. At most a third of LeafValidity.
	Settle time.Duration
	Log    *slog.Logger
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// Keeper keeps a serving certificate that the API server trusts.
type Keeper struct {
	client client.WithWatch
	secret types.NamespacedName
	config string
	terms  terms
	log    *slog.Logger
	expiry prometheus.Gauge

	// mu guards what the serving goroutines read.
	mu      sync.Mutex
	served  *tls.Certificate
	trouble string
}

// New returns a Keeper that has not looked yet.
func New(o Options) (*Keeper, error) {
	t := terms{ca: o.CAValidity, leaf: o.LeafValidity, settle: o.Settle, names: names(o.Service, o.Namespace)}
	if t.ca == 0 {
		t.ca = 5 * 365 * 24 * time.Hour
	}
	if t.leaf == 0 {
		t.leaf = 90 * 24 * time.Hour
	}
	if t.settle == 0 {
		t.settle = 10 * time.Minute
	}
	if t.leaf < 0 || t.settle < 0 || t.leaf > t.ca/2 || t.settle > t.leaf/3 {
		return nil, fmt.Errorf("a serving certificate for %s under an authority for %s with %s to settle cannot be rotated: "+
			"the first may be half of the second, and the third a third of the first", t.leaf, t.ca, t.settle)
	}
	k := &Keeper{
		client: o.Client, secret: types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}, config: o.Configuration,
		terms: t, log: o.Log, trouble: "the serving certificate has not been read yet",
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_serving_certificate_expiry_timestamp_seconds",
			Help: "When the serving certificate in use ends, in seconds since the epoch; 0 if there is none.",
		}),
	}
	if err := o.Registerer.Register(k.expiry); err != nil {
		return nil, fmt.Errorf("registering the certificate's metric: %w", err)
	}
	return k, nil
}

// names are the names by which a Service is called; the API server uses the third.
func names(service, namespace string) []string {
	short := service + "." + namespace
	return []string{service, short, short + ".svc", short + ".svc.cluster.local"}
}

// GetCertificate hands out the serving certificate; it fits tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.served == nil {
		return nil, errors.New(k.trouble)
	}
	return k.served, nil
}

// Ready says why a call by the API server would fail, nil if it would not.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.trouble != "":
		return errors.New(k.trouble)
	case !time.Now().Before(k.served.Leaf.NotAfter):
		return fmt.Errorf("the serving certificate has expired on %s", k.served.Leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// inUse is what is handed out now, nil before there is anything.
func (k *Keeper) inUse() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.served
}

// adopt hands out what the look says, and remembers whether it will do.
func (k *Keeper) adopt(l look) {
	served := serve(l, k.terms)
	why := trouble(l, served)
	k.mu.Lock()
	before, had := k.trouble, k.served
	k.served, k.trouble = served, why
	k.mu.Unlock()
	if served != nil && (had == nil || !slices.Equal(had.Certificate[0], served.Certificate[0])) {
		k.expiry.Set(float64(served.Leaf.NotAfter.Unix()))
		k.log.Info("serving a new certificate", "serial", served.Leaf.SerialNumber.Text(16), "until", served.Leaf.NotAfter)
	}
	switch why {
	case before:
	case "":
		k.log.Info("the API server trusts the serving certificate")
	default:
		k.log.Warn("the API server cannot call this webhook", "reason", why)
	}
}
