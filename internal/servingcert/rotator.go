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
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

	"github.com/holdfast-dev/holdfast/internal/loop"
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
	case time.Now().Before(r.served.Leaf.NotBefore):
		return errors.New(tooEarlyReason(r.served))
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

const (
	// maxCheckInterval limits the time between two reconciliations, in case an event is lost.
	maxCheckInterval = 10 * time.Minute
	// reconcileTimeout limits one reconciliation with its write.
	reconcileTimeout = 30 * time.Second
)

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
// because a new installation takes three steps. They grow, so that replicas with different
// flags do not overwrite each other's changes without limit.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 12, Cap: 30 * time.Second}
}

// reconcileLoop reconciles until no step is due, and then waits for a wake-up or a deadline.
func (r *Rotator) reconcileLoop(ctx context.Context, wake loop.Signal) error {
	var known caTrust
	var logged loop.LogOnce
	retry := loop.NewRetry(newBackoff())
	for {
		plan, err := r.reconcile(ctx, &known)
		// On a conflict, another replica has made the step. The next reconciliation sees its result.
		isConflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if err != nil && ctx.Err() == nil && !isConflict && logged.Changed("", err.Error()) {
			r.log.Warn("failed to rotate the serving certificate; retrying", "err", err)
		}
		if err != nil || plan.step != stepWait {
			err = retry.Wait(ctx)
		} else {
			logged.Changed("", "")
			retry.Reset()
			err = loop.Wait(ctx, min(time.Until(plan.nextCheck), maxCheckInterval), wake)
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

// reconcile reads the current state, selects the certificate to serve, and makes the next step.
func (r *Rotator) reconcile(ctx context.Context, known *caTrust) (rotationPlan, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	// Read the configuration before the Secret. If another replica then changes the Secret and
	// the configuration, writing the caBundles of the outdated Secret fails with a conflict.
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: r.config}, config); client.IgnoreNotFound(err) != nil {
		return rotationPlan{}, fmt.Errorf("reading the ValidatingWebhookConfiguration %q: %w", r.config, err)
	}
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, r.secret, secret); client.IgnoreNotFound(err) != nil {
		return rotationPlan{}, fmt.Errorf("reading the Secret %q: %w", r.secret, err)
	}
	s := rotationState{now: time.Now(), served: r.servedCert()}
	for _, w := range config.Webhooks {
		s.caBundles = append(s.caBundles, w.ClientConfig.CABundle)
	}
	s.content = parseSecret(secret.Data, s.trustedByAny())
	*known = known.update(s)
	s.trustedSince = known.since
	r.updateServed(s)
	plan := planRotation(s, r.policy)
	if plan.step == stepWait {
		return plan, nil
	}
	if len(s.content.problems) > 0 {
		r.log.Error("replacing unusable entries of the serving certificate's Secret", "secret", r.secret.String(),
			"reason", strings.Join(s.content.problems, "; "))
	}
	if err := r.executeStep(ctx, plan.step, s, secret, config); err != nil {
		return rotationPlan{}, err
	}
	r.log.Info("completed a step of the certificate rotation", "step", plan.step.String(), "reason", plan.reason)
	return plan, nil
}

// executeStep makes the one write of a step.
func (r *Rotator) executeStep(
	ctx context.Context, step rotationStep, s rotationState,
	secret *corev1.Secret, config *admissionv1.ValidatingWebhookConfiguration,
) error {
	if step == stepWriteBundle {
		return r.writeBundle(ctx, config, s.content.caBundle())
	}
	next, err := applyStep(s, step, r.policy)
	if err != nil {
		return err
	}
	return r.writeSecret(ctx, secret, next)
}

func (r *Rotator) writeSecret(ctx context.Context, secret *corev1.Secret, c secretContent) error {
	data, err := c.encode()
	if err != nil {
		return err
	}
	secret.Data = data
	if secret.ResourceVersion == "" {
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: r.secret.Namespace, Name: r.secret.Name,
			Labels: map[string]string{"app.kubernetes.io/part-of": "holdfast"},
		}
		if err := r.client.Create(ctx, secret); err != nil {
			return fmt.Errorf("creating the Secret %q: %w", r.secret, err)
		}
		return nil
	}
	// The update carries the resourceVersion that was read, so a concurrent write causes a conflict.
	if err := r.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("writing the Secret %q: %w", r.secret, err)
	}
	return nil
}

func (r *Rotator) writeBundle(
	ctx context.Context, config *admissionv1.ValidatingWebhookConfiguration, bundle []byte,
) error {
	before := config.DeepCopy()
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = bytes.Clone(bundle)
	}
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, config, patch); err != nil {
		return fmt.Errorf("writing the caBundle of the ValidatingWebhookConfiguration %q: %w", r.config, err)
	}
	return nil
}
