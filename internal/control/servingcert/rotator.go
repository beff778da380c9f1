package servingcert

import (
	"context"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// reconcileTimeout limits one reconciliation with its write.
const reconcileTimeout = 30 * time.Second

// rotate issues and rotates the certificate until ctx ends.
func (s *Source) rotate(ctx context.Context) error {
	wake := loop.NewSignal()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return s.watchObject(ctx, wake, s.options.Secret, &corev1.SecretList{}, client.InNamespace(s.options.Namespace))
	})
	g.Go(func() error {
		return s.watchObject(ctx, wake, s.options.Configuration, &admissionv1.ValidatingWebhookConfigurationList{})
	})
	g.Go(func() error { return s.reconcileLoop(ctx, wake) })
	return g.Wait()
}

// newBackoff returns the delays between a step and the next reconciliation. They start short,
// because a new installation takes two steps. They grow, so that replicas with different
// flags do not overwrite each other's changes without limit.
func newBackoff() wait.Backoff { return loop.Backoff(20*time.Millisecond, 30*time.Second) }

// reconcileLoop reconciles until no step is due, and then at every wake-up and several times in a
// settle time. No other deadline is as short.
func (s *Source) reconcileLoop(ctx context.Context, wake loop.Signal) error {
	interval := max(s.options.Policy.Settle/10, time.Second)
	var trust caTrust
	var logged loop.LogOnce
	retry := loop.NewRetry(newBackoff())
	for {
		step, err := s.reconcile(ctx, &trust)
		// On a conflict, another replica has made the step. The next reconciliation sees its result.
		isConflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if err != nil && ctx.Err() == nil && !isConflict && logged.Changed("", err.Error()) {
			s.options.Log.Warn("failed to rotate the serving certificate; retrying", "err", err)
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
func (s *Source) watchObject(
	ctx context.Context, wake loop.Signal, name string, list client.ObjectList, opts ...client.ListOption,
) error {
	watch := func(ctx context.Context) error {
		w, err := s.options.Client.Watch(ctx, list, append(opts, client.MatchingFields{"metadata.name": name})...)
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
		s.options.Log.Warn("failed to watch for changes to the serving certificate; retrying", "name", name, "err", err)
	})
}

// reconcile reads the current state, issues a serving certificate if one is due, and makes the
// next step.
func (s *Source) reconcile(ctx context.Context, trust *caTrust) (rotationStep, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	o := s.options
	// Read the configuration before the Secret. If another replica then changes the Secret and
	// the configuration, writing the caBundles of the outdated Secret fails with a conflict.
	config, secret := &admissionv1.ValidatingWebhookConfiguration{}, &corev1.Secret{}
	if err := o.Client.Get(ctx, client.ObjectKey{Name: o.Configuration}, config); client.IgnoreNotFound(err) != nil {
		return stepWait, fmt.Errorf("reading the ValidatingWebhookConfiguration %q: %w", o.Configuration, err)
	}
	key := client.ObjectKey{Namespace: o.Namespace, Name: o.Secret}
	if err := o.Client.Get(ctx, key, secret); client.IgnoreNotFound(err) != nil {
		return stepWait, fmt.Errorf("reading the Secret %q: %w", key, err)
	}
	state := rotationState{now: time.Now(), authorities: parseSecret(secret.Data), served: s.servedCert()}
	for _, w := range config.Webhooks {
		state.caBundles = append(state.caBundles, w.ClientConfig.CABundle)
	}
	*trust = trust.update(state)
	state.trust = *trust
	if err := s.issueIfDue(state); err != nil {
		return stepWait, err
	}
	step, reason := planRotation(state, o.Policy)
	var err error
	switch step {
	case stepWait:
		return step, nil
	case stepWriteBundle:
		err = o.writeBundle(ctx, config, wantedBundle(state, o.Policy))
	case stepPromoteNext:
		err = o.writeSecret(ctx, secret, authorities{current: state.next})
	case stepCreateNext:
		if state.next, err = newAuthority(state.now, o.Policy.CAValidity); err == nil {
			err = o.writeSecret(ctx, secret, state.authorities)
		}
	}
	if err != nil {
		return step, err
	}
	o.Log.Info("completed a step of the certificate rotation", "step", string(step), "reason", reason)
	return step, nil
}

// issueIfDue replaces the served certificate if that is due, and updates the readiness.
func (s *Source) issueIfDue(state rotationState) (err error) {
	o := s.options
	if signer := state.signerOfNew(o.Policy); signer != nil {
		state.served, err = signer.issue(state.now, o.Policy.LeafValidity, o.dnsName())
		if err != nil {
			return err
		}
	}
	reason := unreadyReason(state)
	switch previous := s.serve(state.served, reason); reason {
	case previous:
	case "":
		o.Log.Info("the API server trusts the serving certificate")
	default:
		o.Log.Warn("the API server cannot call this webhook", "reason", reason)
	}
	return nil
}

// writeBundle sets the caBundle of every webhook. Like writeSecret, it sends the resourceVersion
// that was read, so a concurrent write causes a conflict.
func (o Options) writeBundle(
	ctx context.Context, config *admissionv1.ValidatingWebhookConfiguration, bundle []byte,
) error {
	before := config.DeepCopy()
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = bundle
	}
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if err := o.Client.Patch(ctx, config, patch); err != nil {
		return fmt.Errorf("writing the caBundle of the ValidatingWebhookConfiguration %q: %w", o.Configuration, err)
	}
	return nil
}

// writeSecret creates the Secret or replaces its authorities. Other entries stay: the type of a
// Secret that another client has created may require them.
func (o Options) writeSecret(ctx context.Context, secret *corev1.Secret, content authorities) error {
	data, err := content.encode()
	if err != nil {
		return err
	}
	for _, entry := range []string{currentEntry, nextEntry} {
		delete(secret.Data, entry+".crt")
		delete(secret.Data, entry+".key")
	}
	maps.Copy(data, secret.Data)
	secret.Data = data
	if secret.ResourceVersion != "" {
		err = o.Client.Update(ctx, secret)
	} else {
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Secret, Labels: map[string]string{"app.kubernetes.io/part-of": "holdfast"},
		}
		err = o.Client.Create(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("writing the Secret %q: %w", client.ObjectKeyFromObject(secret), err)
	}
	return nil
}
