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
)

const (
	// tick is the longest time between two looks, for events that were lost.
	tick = 10 * time.Minute
	// stepTime bounds one look and the write after it.
	stepTime = 30 * time.Second
)

// Run keeps the certificate until ctx ends, and returns its cause. What goes wrong is logged once and tried again.
func (k *Keeper) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return k.follow(ctx, wake, k.secret.Name, &corev1.SecretList{}, client.InNamespace(k.secret.Namespace))
	})
	g.Go(func() error {
		return k.follow(ctx, wake, k.config, &admissionv1.ValidatingWebhookConfigurationList{})
	})
	g.Go(func() error { return k.loop(ctx, wake) })
	return g.Wait()
}

// backoff is the pause between a step and the next look. It begins small, since a fresh installation takes three steps,
// and grows, so that replicas which disagree do not write without end.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 12, Cap: 30 * time.Second}
}

// loop looks, does at most one thing, and looks again until nothing is due; then it waits to be woken.
func (k *Keeper) loop(ctx context.Context, wake <-chan struct{}) error {
	var known trust
	var failure string
	retry := backoff()
	for {
		p, err := k.once(ctx, &known)
		// Another replica that was faster is no failure: what is left to do shows in the next look.
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && err.Error() != failure {
			k.log.Warn("serving certificate cannot be kept, trying again", "err", err)
			failure = err.Error()
		}
		if err != nil || p.step != idle {
			err = pause(ctx, retry.Step(), nil)
		} else {
			failure, retry = "", backoff()
			err = pause(ctx, min(time.Until(p.again), tick), wake)
		}
		if err != nil {
			return err
		}
	}
}

// pause waits for the time to pass or for wake, and returns the cause if ctx ends first.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-wake:
	}
	return nil
}

// follow wakes the loop whenever the one object of the list's kind with this name changes. Each watch begins with what
// is there, so that a change between two watches is not lost.
func (k *Keeper) follow(ctx context.Context, wake chan<- struct{}, name string, list client.ObjectList, opts ...client.ListOption) error {
	retry := backoff()
	var failure string
	for {
		began := time.Now()
		w, err := k.client.Watch(ctx, list, append(opts, client.MatchingFields{"metadata.name": name})...)
		if err != nil && ctx.Err() == nil && err.Error() != failure {
			k.log.Warn("serving certificate is not watched, trying again", "name", name, "err", err)
			failure = err.Error()
		}
		if err == nil {
			failure = ""
			for range w.ResultChan() {
				select {
				case wake <- struct{}{}:
				default:
				}
			}
			w.Stop()
		}
		if time.Since(began) > time.Minute {
			retry = backoff()
		}
		if err := pause(ctx, retry.Step(), nil); err != nil {
			return err
		}
	}
}

// once looks, adopts what is to be served, and does what is due.
func (k *Keeper) once(ctx context.Context, known *trust) (plan, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	// The configuration is read first and the Secret after it: a bundle written from an older Secret would then need a
	// configuration that has changed since, and the write is refused.
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.client.Get(ctx, client.ObjectKey{Name: k.config}, config); client.IgnoreNotFound(err) != nil {
		return plan{}, fmt.Errorf("reading the ValidatingWebhookConfiguration %q: %w", k.config, err)
	}
	secret := &corev1.Secret{}
	if err := k.client.Get(ctx, k.secret, secret); client.IgnoreNotFound(err) != nil {
		return plan{}, fmt.Errorf("reading the Secret %q: %w", k.secret, err)
	}
	l := look{now: time.Now(), served: k.inUse()}
	for _, w := range config.Webhooks {
		l.webhooks = append(l.webhooks, w.ClientConfig.CABundle)
	}
	l.content = read(secret.Data, l.anywhere())
	*known = known.seen(l)
	l.trustedSince = known.since
	k.adopt(l)
	p := decide(l, k.terms)
	if p.step == idle {
		return p, nil
	}
	if len(l.content.problems) > 0 {
		k.log.Error("the secret of the serving certificate is damaged and is made anew", "secret", k.secret.String(),
			"reason", strings.Join(l.content.problems, "; "))
	}
	if err := k.do(ctx, p.step, l, secret, config); err != nil {
		return plan{}, err
	}
	k.log.Info("serving certificate step is done", "step", p.step.String(), "reason", p.why)
	return p, nil
}

// do makes the one write of a step.
func (k *Keeper) do(ctx context.Context, s step, l look, secret *corev1.Secret, config *admissionv1.ValidatingWebhookConfiguration) error {
	if s == writeBundle {
		return k.writeBundle(ctx, config, l.content.bundle())
	}
	next, err := advance(l, s, k.terms)
	if err != nil {
		return err
	}
	return k.writeSecret(ctx, secret, next)
}

func (k *Keeper) writeSecret(ctx context.Context, secret *corev1.Secret, c content) error {
	data, err := c.data()
	if err != nil {
		return err
	}
	secret.Data = data
	if secret.ResourceVersion == "" {
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: k.secret.Namespace, Name: k.secret.Name,
			Labels: map[string]string{"app.kubernetes.io/part-of": "holdfast"},
		}
		if err := k.client.Create(ctx, secret); err != nil {
			return fmt.Errorf("creating the Secret %q: %w", k.secret, err)
		}
		return nil
	}
	// An update carries the resourceVersion that was read: who comes second looks again.
	if err := k.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("writing the Secret %q: %w", k.secret, err)
	}
	return nil
}

func (k *Keeper) writeBundle(ctx context.Context, config *admissionv1.ValidatingWebhookConfiguration, bundle []byte) error {
	before := config.DeepCopy()
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = bytes.Clone(bundle)
	}
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if err := k.client.Patch(ctx, config, patch); err != nil {
		return fmt.Errorf("writing the caBundle of the ValidatingWebhookConfiguration %q: %w", k.config, err)
	}
	return nil
}
