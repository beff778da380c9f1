// Package servingcert issues and rotates the webhook's serving certificate, so that no other
// tool such as cert-manager is required.
//
// A Secret holds a certificate authority (CA). The caBundle of every webhook in a
// ValidatingWebhookConfiguration contains it. All replicas of the webhook run a Rotator. Each
// issues a serving certificate for itself, in memory only. Each does the next step of the CA's
// rotation when it is due; resourceVersion guards every write, so no leader is required.
//
// No call by the API server fails during a rotation. A new CA is used only after every webhook's
// caBundle has contained it for a while. A CA stays in the caBundles for as long as a valid
// certificate of it may be served. If the Secret is damaged or deleted, the Rotator creates a new
// CA, and keeps the CAs that are trusted already.
//
// Files is for clusters in which another program issues the certificate.
package servingcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
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
	// CAValidity. A replica replaces its certificate after a third of it.
	LeafValidity time.Duration
	// Settle is the time between a change of the caBundles and the use of a CA that depends on it,
	// because each API server reads the configuration with its own delay. 10 minutes if zero. At
	// most a third of LeafValidity.
	Settle time.Duration
	Log    *slog.Logger
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// A Rotator provides a serving certificate that the API server trusts.
type Rotator struct {
	client   client.WithWatch
	secret   types.NamespacedName
	config   string
	dnsNames []string
	policy   rotationPolicy
	log      *slog.Logger
	loaded   chan struct{} // closed when there is a certificate

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
	}
	ca, leaf, settle := policy.caValidity, policy.leafValidity, policy.settle
	if leaf < 0 || settle < 0 || leaf > ca/2 || settle > leaf/3 {
		return nil, fmt.Errorf("a serving certificate for %s under a CA for %s with a settle time of %s cannot be rotated: "+
			"the first may be at most half of the second, and the third at most a third of the first", leaf, ca, settle)
	}
	r := &Rotator{
		client: o.Client, secret: types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}, config: o.Configuration,
		dnsNames: serviceDNSNames(o.Service, o.Namespace), policy: policy, log: o.Log,
		loaded: make(chan struct{}), notReady: "the serving certificate is not loaded yet",
	}
	return r, registerExpiry(o.Registerer, r.servedCert)
}

// registerExpiry registers the metric of the served certificate, which may be nil.
func registerExpiry(registerer prometheus.Registerer, served func() *tls.Certificate) error {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_webhook_serving_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the serving certificate in use, in seconds since the epoch; 0 if there is none.",
	}, func() float64 {
		if certificate := served(); certificate != nil {
			return float64(certificate.Leaf.NotAfter.Unix())
		}
		return 0
	})
	if err := registerer.Register(gauge); err != nil {
		return fmt.Errorf("registering the serving certificate's metric: %w", err)
	}
	return nil
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
	reason := r.notReady
	if reason == "" {
		reason = invalidReason(r.served.Leaf, time.Now())
	}
	if reason != "" {
		return errors.New(reason)
	}
	return nil
}

// servedCert returns the certificate in use, nil if there is none yet.
func (r *Rotator) servedCert() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// serve uses the certificate of a state, and updates the readiness.
func (r *Rotator) serve(s rotationState) {
	reason := unreadyReason(s)
	r.mu.Lock()
	previous, previousReason := r.served, r.notReady
	r.served, r.notReady = s.served, reason
	r.mu.Unlock()
	if previous == nil && s.served != nil {
		close(r.loaded)
	}
	switch reason {
	case previousReason:
	case "":
		r.log.Info("the API server trusts the serving certificate")
	default:
		r.log.Warn("the API server cannot call this webhook", "reason", reason)
	}
}

// reconcileTimeout limits one reconciliation with its write.
const reconcileTimeout = 30 * time.Second

// Run rotates the certificate until ctx ends, and returns the cause of that. It retries after
// errors, and logs the same error once.
func (r *Rotator) Run(ctx context.Context) error {
	wake := loop.NewSignal()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return r.watchObject(ctx, wake, r.secret.Name, &corev1.SecretList{}, client.InNamespace(r.secret.Namespace))
	})
	g.Go(func() error {
		return r.watchObject(ctx, wake, r.config, &admissionv1.ValidatingWebhookConfigurationList{})
	})
	g.Go(func() error { return r.reconcileLoop(ctx, wake) })
	return g.Wait()
}

// newBackoff returns the delays between a step and the next reconciliation. They start short,
// because a new installation takes two steps. They grow, so that replicas with different
// flags do not overwrite each other's changes without limit.
func newBackoff() wait.Backoff { return loop.Backoff(20*time.Millisecond, 30*time.Second) }

// reconcileLoop reconciles until no step is due, and then at every wake-up and several times in a
// settle time. No other deadline is as short.
func (r *Rotator) reconcileLoop(ctx context.Context, wake loop.Signal) error {
	interval := max(r.policy.settle/10, time.Second)
	var trust caTrust
	var logged loop.LogOnce
	retry := loop.NewRetry(newBackoff())
	for {
		step, err := r.reconcile(ctx, &trust)
		// On a conflict, another replica has made the step. The next reconciliation sees its result.
		isConflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if err != nil && ctx.Err() == nil && !isConflict && logged.Changed("", err.Error()) {
			r.log.Warn("failed to rotate the serving certificate; retrying", "err", err)
		}
		if err != nil || step != stepWait {
			err = retry.Wait(ctx)
		} else {
			logged.Changed("", "")
			retry.Reset()
			err = loop.Wait(ctx, interval, wake)
		}
		if err != nil {
			return err
		}
	}
}

// watchObject notifies wake whenever the object with this name changes. Each watch starts with
// the current state, so a change between two watches is not lost.
func (r *Rotator) watchObject(
	ctx context.Context, wake loop.Signal, name string, list client.ObjectList, opts ...client.ListOption,
) error {
	watch := func(ctx context.Context) error {
		w, err := r.client.Watch(ctx, list, append(opts, client.MatchingFields{"metadata.name": name})...)
		if err != nil {
			return err
		}
		defer w.Stop()
		for range w.ResultChan() {
			wake.Notify()
		}
		return nil
	}
	return loop.KeepRunning(ctx, newBackoff(), watch, func(err error) {
		r.log.Warn("failed to watch for changes to the serving certificate; retrying", "name", name, "err", err)
	})
}

// reconcile reads the current state, issues a serving certificate if one is due, and makes the
// next step.
func (r *Rotator) reconcile(ctx context.Context, trust *caTrust) (rotationStep, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	// Read the configuration before the Secret. If another replica then changes the Secret and
	// the configuration, writing the caBundles of the outdated Secret fails with a conflict.
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: r.config}, config); client.IgnoreNotFound(err) != nil {
		return stepWait, fmt.Errorf("reading the ValidatingWebhookConfiguration %q: %w", r.config, err)
	}
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, r.secret, secret); client.IgnoreNotFound(err) != nil {
		return stepWait, fmt.Errorf("reading the Secret %q: %w", r.secret, err)
	}
	s := rotationState{now: time.Now(), authorities: parseSecret(secret.Data), served: r.servedCert()}
	for _, w := range config.Webhooks {
		s.caBundles = append(s.caBundles, w.ClientConfig.CABundle)
	}
	*trust = trust.update(s)
	s.trust = *trust
	if err := r.issueIfDue(&s); err != nil {
		return stepWait, err
	}
	r.serve(s)
	step, reason := planRotation(s, r.policy)
	if step == stepWait {
		return step, nil
	}
	if err := r.executeStep(ctx, step, s, secret, config); err != nil {
		return step, err
	}
	r.log.Info("completed a step of the certificate rotation", "step", string(step), "reason", reason)
	return step, nil
}

// issueIfDue replaces the served certificate of a state if that is due.
func (r *Rotator) issueIfDue(s *rotationState) error {
	signer := s.signerOfNew(r.policy)
	if signer == nil {
		return nil
	}
	serving, err := signer.issue(s.now, r.policy.leafValidity, r.dnsNames)
	if err != nil {
		return err
	}
	s.served = serving
	r.log.Info("serving a new certificate",
		"serial", serving.Leaf.SerialNumber.Text(16), "not_after", serving.Leaf.NotAfter)
	return nil
}

// executeStep makes the one write of a step. It carries the resourceVersion that was read, so a
// concurrent write causes a conflict.
func (r *Rotator) executeStep(
	ctx context.Context, step rotationStep, s rotationState,
	secret *corev1.Secret, config *admissionv1.ValidatingWebhookConfiguration,
) error {
	if step == stepWriteBundle {
		before, bundle := config.DeepCopy(), wantedBundle(s, r.policy)
		for i := range config.Webhooks {
			config.Webhooks[i].ClientConfig.CABundle = bundle
		}
		patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
		if err := r.client.Patch(ctx, config, patch); err != nil {
			return fmt.Errorf("writing the caBundle of the ValidatingWebhookConfiguration %q: %w", r.config, err)
		}
		return nil
	}
	next, err := applyStep(s, step, r.policy)
	if err != nil {
		return err
	}
	if secret.Data, err = next.encode(); err != nil {
		return err
	}
	write := func() error { return r.client.Update(ctx, secret) }
	if secret.ResourceVersion == "" {
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: r.secret.Namespace, Name: r.secret.Name,
			Labels: map[string]string{"app.kubernetes.io/part-of": "holdfast"},
		}
		write = func() error { return r.client.Create(ctx, secret) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("writing the Secret %q: %w", r.secret, err)
	}
	return nil
}
