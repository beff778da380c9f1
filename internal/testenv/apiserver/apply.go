package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// Install applies the shipped manifests with these components, and with nodes that are born held if
// BornHeld.
func (s *Server) Install(ctx context.Context, components ...string) error {
	root, err := process.RepositoryRoot()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "manifests")
	overlay := dir
	if s.mutates {
		overlay = filepath.Join(dir, "overlays/born-held")
	}
	if len(components) > 0 {
		if overlay, err = s.addComponents(dir, overlay, components); err != nil {
			return err
		}
	}
	return s.Apply(ctx, overlay)
}

// addComponents writes a kustomization of an overlay with components, and returns its directory.
func (s *Server) addComponents(manifests, overlay string, components []string) (dir string, err error) {
	dir = s.path("components")
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		return "", fmt.Errorf("finding the manifests: %w", err)
	}
	if overlay, err = filepath.Rel(dir, overlay); err != nil {
		return "", fmt.Errorf("finding the manifests: %w", err)
	}
	text := "resources: [" + overlay + "]\ncomponents:\n"
	for _, c := range components {
		text += "- " + filepath.Join(manifests, "components", c) + "\n"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)
}

// InstallMachines installs definitions of objects of Cluster API, Karpenter and k0s without the
// programs that act on them.
func (s *Server) InstallMachines(ctx context.Context) error {
	root, err := process.RepositoryRoot()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "internal/testenv/apiserver/machines")
	if err := s.applyQuickly(ctx, dir); err != nil {
		return err
	}
	return s.waitServed(ctx)
}

// applyQuickly applies a kustomization. kubectl does not read the OpenAPI documents, with which it
// would find out whether the server rejects unknown fields: a server-side apply always does.
func (s *Server) applyQuickly(ctx context.Context, dir string) error {
	_, err := s.Kubectl(ctx, "apply", "--server-side", "--validate=false", "-k", dir)
	return err
}

// Apply installs a kustomization like "kubectl apply --server-side -k <dir>". It returns when
// the API server serves every CustomResourceDefinition and enforces every admission policy and
// webhook configuration.
func (s *Server) Apply(ctx context.Context, dir string) error {
	begun := time.Now()
	root, err := process.RepositoryRoot()
	if err != nil {
		return err
	}
	// An overlay reads the directories beside it.
	if err := process.TrackInputs(filepath.Join(root, "manifests"), dir); err != nil {
		return err
	}
	if err := s.applyQuickly(ctx, dir); err != nil {
		return err
	}
	if err := s.waitServed(ctx); err != nil {
		return fmt.Errorf("waiting until the definitions of %s are served: %w", dir, err)
	}
	if err := s.WaitForPolicies(ctx); err != nil {
		return fmt.Errorf("waiting until the policies of %s are in effect: %w", dir, err)
	}
	s.opts.Log.Info("manifests are in effect", "dir", dir, "took", time.Since(begun).Round(time.Millisecond).String())
	return nil
}

// Kubectl runs kubectl as the administrator and returns what it prints.
func (s *Server) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.KubectlAs(ctx, s.Kubeconfig(), args...)
}

// KubectlAs runs kubectl with a kubeconfig and returns its standard output and standard error.
func (s *Server) KubectlAs(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	binary, err := process.Binary("kubectl")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{
		"KUBECONFIG=" + kubeconfig, "HOME=" + s.opts.Dir, "KUBECACHEDIR=" + s.path("kubectl"),
		"GOGC=400", // a quarter less CPU for a kustomization
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running kubectl %q: %w: %s", args, err, out)
	}
	return string(out), nil
}

// waitServed returns when the resources of every CustomResourceDefinition can be listed.
func (s *Server) waitServed(ctx context.Context) error {
	get := func(ctx context.Context, path string) ([]byte, error) {
		return s.client.RESTClient().Get().AbsPath(path).DoRaw(ctx)
	}
	text, err := get(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
	if err != nil {
		return err
	}
	var definitions struct {
		Items []struct {
			Spec struct {
				Group    string
				Names    struct{ Plural string }
				Versions []struct {
					Name   string
					Served bool
				}
			}
		}
	}
	if err := json.Unmarshal(text, &definitions); err != nil {
		return fmt.Errorf("reading the definitions: %w", err)
	}
	for _, definition := range definitions.Items {
		for _, version := range definition.Spec.Versions {
			if !version.Served {
				continue
			}
			path := fmt.Sprintf("/apis/%s/%s/%s", definition.Spec.Group, version.Name, definition.Spec.Names.Plural)
			err := poll(ctx, s.process, func(ctx context.Context) error {
				_, err := get(ctx, path)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// A policyProbe is a set of objects with one name, which WaitForPolicies creates. Each call
// needs a new name, because the API server enforces a policy for up to a second after its
// deletion.
type policyProbe struct {
	*Server
	name string
}

// policyTimeout limits WaitForPolicies. Seconds are enough, also on a busy machine.
const policyTimeout = 2 * time.Minute

// parametersInUse is the name of a policy that matches nothing and stays. Without it, the API
// server stops its watch of ConfigMaps with the last policy that has one as its parameter, and
// never starts it again (kubernetes#130887).
const parametersInUse = "parameters-in-use"

// WaitForPolicies returns when the API server enforces every policy and webhook configuration
// that existed before the call. The API server observes each kind with a watch, in the order of
// writing. So WaitForPolicies creates one more object of each kind: a mutating policy with a
// parameter, a validating policy and a webhook, each for one ConfigMap that is only created in
// dry runs. Once these take effect, all earlier objects do. It deletes them afterwards. An
// older server has no mutating policies.
func (s *Server) WaitForPolicies(ctx context.Context) (err error) {
	probe := policyProbe{s, "policy-probe-" + utilrand.String(10)}
	defer func() { err = errors.Join(err, probe.deleteAll(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	type step = func(context.Context) error
	creations, checks := []step{probe.createValidating, probe.createWebhook},
		[]step{probe.checkValidating, probe.checkWebhook}
	if s.mutates {
		creations, checks = append(creations, probe.createMutating), append(checks, probe.checkMutating)
	}
	for _, create := range creations {
		if err := create(ctx); err != nil {
			return fmt.Errorf("creating a policy probe: %w", err)
		}
	}
	for _, check := range checks {
		if err := poll(ctx, s.process, check); err != nil {
			return err
		}
	}
	return nil
}

func (p policyProbe) checkMutating(ctx context.Context) error {
	made, err := p.dryRunCreate(ctx, "mutated")
	if err == nil && made.Data["mutated"] != "true" {
		return errors.New("the mutating policy is not in effect")
	}
	return err
}

func (p policyProbe) checkValidating(ctx context.Context) error {
	_, err := p.dryRunCreate(ctx, "validated")
	return checkRefusedBy(err, "ValidatingAdmissionPolicy '"+p.name+"'")
}

func (p policyProbe) checkWebhook(ctx context.Context) error {
	_, err := p.dryRunCreate(ctx, "called")
	return checkRefusedBy(err, "webhook \""+p.webhookName())
}

func (p policyProbe) webhookName() string { return p.name + ".testenv.invalid" }

// dryRunCreate creates a ConfigMap for one of the probe's policies, as a dry run.
func (p policyProbe) dryRunCreate(ctx context.Context, suffix string) (*corev1.ConfigMap, error) {
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + suffix}}
	return p.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, wanted,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// checkRefusedBy returns nil if err is a refusal that names the refuser.
func checkRefusedBy(err error, refuser string) error {
	switch {
	case err == nil:
		return fmt.Errorf("no refusal by %s yet", refuser)
	case strings.Contains(err.Error(), refuser):
		return nil
	}
	return err
}

func (p policyProbe) objectMeta() metav1.ObjectMeta { return metav1.ObjectMeta{Name: p.name} }

// matchConfigMap matches the creation of one ConfigMap in the namespace default.
func (p policyProbe) matchConfigMap(suffix string) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceDefault},
		},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{
			ResourceNames:      []string{p.name + "-" + suffix},
			RuleWithOperations: configMapCreation(),
		}},
	}
}

func configMapCreation() admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule: admissionv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
		},
	}
}

// createMutating creates a policy with a ConfigMap as its parameter, like the born-held policy:
// the API server watches parameters separately.
func (p policyProbe) createMutating(ctx context.Context) error {
	allow, ignore := admissionv1.AllowAction, admissionv1.Ignore
	client := p.client.AdmissionregistrationV1()
	_, err := p.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: p.objectMeta()}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: p.objectMeta(),
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			ParamKind:          &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			FailurePolicy:      &ignore,
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints:   p.matchConfigMap("mutated"),
			Mutations: []admissionv1.Mutation{{
				PatchType:          admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: `Object{data: {"mutated": "true"}}`},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: p.objectMeta(),
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: p.name,
			ParamRef: &admissionv1.ParamRef{
				Name: p.name, Namespace: metav1.NamespaceDefault, ParameterNotFoundAction: &allow,
			},
		},
	}, metav1.CreateOptions{})
	return err
}

func (p policyProbe) createValidating(ctx context.Context) error {
	client := p.client.AdmissionregistrationV1()
	_, err := client.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: p.objectMeta(),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: p.matchConfigMap("validated"),
			Validations:      []admissionv1.Validation{{Expression: "false"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: p.objectMeta(),
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: p.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	return err
}

// createWebhook creates a fail-closed webhook at a port without a listener.
func (p policyProbe) createWebhook(ctx context.Context) error {
	unreachable, none := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone
	condition := "request.name == '" + p.name + "-called'"
	wanted := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: p.objectMeta(),
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    p.webhookName(),
			ClientConfig:            admissionv1.WebhookClientConfig{URL: &unreachable},
			Rules:                   []admissionv1.RuleWithOperations{configMapCreation()},
			MatchConditions:         []admissionv1.MatchCondition{{Name: "policy-probe", Expression: condition}},
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	client := p.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	return err
}

func (p policyProbe) deleteAll(ctx context.Context) error {
	client, all := p.client.AdmissionregistrationV1(), metav1.DeleteOptions{}
	var failed error
	for _, err := range []error{
		client.ValidatingWebhookConfigurations().Delete(ctx, p.name, all),
		client.ValidatingAdmissionPolicyBindings().Delete(ctx, p.name, all),
		client.ValidatingAdmissionPolicies().Delete(ctx, p.name, all),
		client.MutatingAdmissionPolicyBindings().Delete(ctx, p.name, all),
		client.MutatingAdmissionPolicies().Delete(ctx, p.name, all),
		p.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Delete(ctx, p.name, all),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("deleting a policy probe: %w", err))
		}
	}
	return failed
}
