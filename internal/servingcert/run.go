package servingcert

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/loop"
)

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
