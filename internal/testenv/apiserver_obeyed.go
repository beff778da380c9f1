package testenv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// canary is the name that the objects of one call of Obeyed have in common. It is new for each call, since the API server
// obeys a policy for up to a second after its deletion.
type canary struct {
	*APIServer
	name string
}

// Obeyed returns when every policy and webhook configuration that was there when it was called is obeyed. The API
// server learns of each kind by a watch, in the order of writing. So it has caught up with all that came before when it
// obeys a canary, written last, of the same kind: a mutating policy with a parameter, a validating policy and a webhook,
// each for one ConfigMap that only ever exists as a dry run. The canaries are deleted afterwards. An API server that
// emulates an older one has no mutating policies.
func (s *APIServer) Obeyed(ctx context.Context) (err error) {
	c := canary{s, "canary-" + utilrand.String(10)}
	defer func() { err = errors.Join(err, c.remove(context.WithoutCancel(ctx))) }()
	type step = func(context.Context) error
	writes, proofs := []step{c.validating, c.webhook}, []step{c.validates, c.calls}
	if s.opts.EmulatedVersion == "" {
		writes, proofs = append(writes, c.mutating), append(proofs, c.mutates)
	}
	for _, write := range writes {
		if err := write(ctx); err != nil {
			return fmt.Errorf("writing a canary: %w", err)
		}
	}
	for _, obeyed := range proofs {
		if err := poll(ctx, s.process, obeyed); err != nil {
			return err
		}
	}
	return nil
}

func (c canary) mutates(ctx context.Context) error {
	made, err := c.try(ctx, "mutated")
	if err == nil && made.Data["canary"] != "sang" {
		return errors.New("the mutating canary is not obeyed")
	}
	return err
}

func (c canary) validates(ctx context.Context) error {
	_, err := c.try(ctx, "validated")
	return refusedBy(err, "ValidatingAdmissionPolicy '"+c.name+"'")
}

func (c canary) calls(ctx context.Context) error {
	_, err := c.try(ctx, "called")
	return refusedBy(err, "webhook \""+c.webhookName())
}

func (c canary) webhookName() string { return c.name + ".testenv.invalid" }

// try dry-runs the creation of a ConfigMap for one of the canaries.
func (c canary) try(ctx context.Context, suffix string) (*corev1.ConfigMap, error) {
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.name + "-" + suffix}}
	return c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, wanted, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// refusedBy returns nil if an error is a refusal that names who refused.
func refusedBy(err error, who string) error {
	switch {
	case err == nil:
		return fmt.Errorf("nothing is refused yet by %s", who)
	case strings.Contains(err.Error(), who):
		return nil
	}
	return err
}

func (c canary) meta() metav1.ObjectMeta { return metav1.ObjectMeta{Name: c.name} }

// match matches the creation of one ConfigMap of namespace default.
func (c canary) match(suffix string) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceDefault},
		},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{
			ResourceNames:      []string{c.name + "-" + suffix},
			RuleWithOperations: createConfigMaps(),
		}},
	}
}

func createConfigMaps() admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}
}

// mutating has a ConfigMap as its parameter, as the born-held policy has: that kind has a watch of its own.
func (c canary) mutating(ctx context.Context) error {
	allow, ignore := admissionv1.AllowAction, admissionv1.Ignore
	client := c.client.AdmissionregistrationV1()
	_, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{ObjectMeta: c.meta()}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: c.meta(),
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			ParamKind:          &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			FailurePolicy:      &ignore,
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints:   c.match("mutated"),
			Mutations: []admissionv1.Mutation{{
				PatchType:          admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: `Object{data: {"canary": "sang"}}`},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: c.meta(),
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: c.name,
			ParamRef: &admissionv1.ParamRef{
				Name: c.name, Namespace: metav1.NamespaceDefault, ParameterNotFoundAction: &allow,
			},
		},
	}, metav1.CreateOptions{})
	return err
}

func (c canary) validating(ctx context.Context) error {
	client := c.client.AdmissionregistrationV1()
	_, err := client.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: c.meta(),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: c.match("validated"),
			Validations:      []admissionv1.Validation{{Expression: "false"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: c.meta(),
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: c.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	return err
}

// webhook calls a port where nobody listens, and fails closed.
func (c canary) webhook(ctx context.Context) error {
	nobody, none := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone
	_, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: c.meta(),
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    c.webhookName(),
			ClientConfig:            admissionv1.WebhookClientConfig{URL: &nobody},
			Rules:                   []admissionv1.RuleWithOperations{createConfigMaps()},
			MatchConditions:         []admissionv1.MatchCondition{{Name: "canary", Expression: "request.name == '" + c.name + "-called'"}},
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	return err
}

func (c canary) remove(ctx context.Context) error {
	client, all := c.client.AdmissionregistrationV1(), metav1.DeleteOptions{}
	var failed error
	for _, err := range []error{
		client.ValidatingWebhookConfigurations().Delete(ctx, c.name, all),
		client.ValidatingAdmissionPolicyBindings().Delete(ctx, c.name, all),
		client.ValidatingAdmissionPolicies().Delete(ctx, c.name, all),
		client.MutatingAdmissionPolicyBindings().Delete(ctx, c.name, all),
		client.MutatingAdmissionPolicies().Delete(ctx, c.name, all),
		c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Delete(ctx, c.name, all),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("removing a canary: %w", err))
		}
	}
	return failed
}
