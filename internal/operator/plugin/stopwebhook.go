package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// webhookName is the name of the webhook's Deployment, and the value of its pods' label.
	webhookName  = "holdfast-webhook"
	podNameLabel = "app.kubernetes.io/name"
	// podsEndWithin is how long the replicas may take to end. Kubernetes gives them 30 s by default.
	podsEndWithin = 2 * time.Minute
	// startWithin bounds the attempts to start the webhook again, also after an interruption.
	startWithin = 30 * time.Second
	scalePoll   = 500 * time.Millisecond
)

// isUnrecorded reports whether the webhook refused a deletion only because it could not read or
// write what it needs. With an override it refuses for no other reason.
func isUnrecorded(err error) bool { return removalOf("", nil, err).Reason == quorum.CannotDecide }

// A webhookStop stops all replicas of the webhook, and starts as many again.
type webhookStop struct {
	*session
	replicas int32
}

// newWebhookStop reads how many replicas the webhook has, and checks the rights of the user.
func (s *session) newWebhookStop(ctx context.Context) (*webhookStop, error) {
	right := authorizationv1.ResourceAttributes{
		Group: appsv1.GroupName, Resource: "deployments", Subresource: "scale", Namespace: guard.Namespace, Name: webhookName,
	}
	get, patch := right, right
	get.Verb, patch.Verb = "get", "patch"
	err := s.requireRights(ctx, []authorizationv1.ResourceAttributes{
		get, patch, {Verb: "list", Resource: "pods", Namespace: guard.Namespace},
	})
	if err != nil {
		return nil, err
	}
	scale := &autoscalingv1.Scale{}
	if err := s.kube.SubResource("scale").Get(ctx, webhookDeployment(), scale); err != nil {
		return nil, fmt.Errorf("reading the replicas of deployment %s: %w", webhookName, err)
	}
	if scale.Spec.Replicas == 0 {
		return nil, fmt.Errorf("deployment %s has no replicas already; if no other person is doing this, repeat the "+
			"command without --stop-webhook", webhookName)
	}
	return &webhookStop{session: s, replicas: scale.Spec.Replicas}, nil
}

// offerWebhookStop asks whether to stop the webhook. With --yes there is no user to ask.
func (s *session) offerWebhookStop(ctx context.Context) (*webhookStop, error) {
	if s.yes {
		return nil, errors.New("to stop the webhook for the deletion, add --stop-webhook")
	}
	stop, err := s.newWebhookStop(ctx)
	if err != nil {
		return nil, fmt.Errorf("the webhook cannot be stopped for the deletion: %w", err)
	}
	for _, effect := range stop.effects() {
		fmt.Fprintln(s.Out, effect)
	}
	if err := s.confirm(ctx); err != nil {
		return nil, errors.New("the webhook was not stopped")
	}
	return stop, nil
}

// effects describes what happens while no replica runs.
func (w webhookStop) effects() []string {
	return []string{
		fmt.Sprintf("If the webhook answers and cannot record the deletion, it is stopped meanwhile: deployment %s is "+
			"scaled to 0 replicas, the label of the node removed, the node deleted, and the deployment scaled to %d again.",
			webhookName, w.replicas),
		"While no replica runs, usually for less than a minute:\n" +
			"- no other node with the label of etcd can be deleted or drained\n" +
			"- Nodes without that label, Machines without Holdfast's hook and NodeClaims that are not registered are " +
			"deleted without a review, also if they have etcd\n" +
			"- holds without an agent do not end, and no label, hook or guard pod is restored",
		"No grant records the deletion with your name. The webhook writes a tombstone when it runs and can write.",
		"If this command is killed, start the webhook yourself: " + w.startCommand(w.kubectl()),
	}
}

// commands returns the kubectl commands that stop the webhook before those of a deletion, and
// start it after them.
func (w webhookStop) commands(deletion ...string) []string {
	stop := []string{
		fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=0", guard.Namespace, webhookName),
		fmt.Sprintf("kubectl -n %s wait --for=delete pod -l %s=%s --timeout=%s",
			guard.Namespace, podNameLabel, webhookName, podsEndWithin),
	}
	return append(append(stop, deletion...), w.startCommand("kubectl"))
}

func (w webhookStop) startCommand(kubectl string) string {
	return fmt.Sprintf("%s -n %s scale deployment %s --replicas=%d", kubectl, guard.Namespace, webhookName, w.replicas)
}

// during stops the webhook, calls do, and starts the webhook again, whatever happens.
func (w webhookStop) during(ctx context.Context, do func(context.Context) error) (err error) {
	err = w.scale(ctx, 0)
	if isRefused(err) {
		return fmt.Errorf("stopping the webhook: %w", err)
	}
	defer func() { err = errors.Join(err, w.start(context.WithoutCancel(ctx))) }()
	if err != nil { // The request may have had an effect.
		return fmt.Errorf("stopping the webhook: %w", err)
	}
	fmt.Fprintf(w.Out, "deployment %s: stopped; waiting for its pods to end\n", webhookName)
	if err := w.waitForPods(ctx); err != nil {
		return err
	}
	return do(ctx)
}

func (w webhookStop) start(ctx context.Context) error {
	var failed error
	err := wait.PollUntilContextTimeout(ctx, scalePoll, startWithin, true, func(ctx context.Context) (bool, error) {
		failed = w.scale(ctx, w.replicas)
		if isRefused(failed) {
			return false, errors.New("the API server refuses it")
		}
		return failed == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the webhook is still stopped; start it: %s\n%w", w.startCommand(w.kubectl()),
			errors.Join(failed, err))
	}
	fmt.Fprintf(w.Out, "deployment %s: scaled to %d again\n", webhookName, w.replicas)
	return nil
}

// isRefused reports whether the API server has refused a request, and would refuse it again.
func isRefused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

func (w webhookStop) scale(ctx context.Context, replicas int32) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	return w.kube.SubResource("scale").Patch(ctx, webhookDeployment(), patch, fieldOwner,
		client.WithSubResourceBody(&autoscalingv1.Scale{}))
}

// waitForPods waits until no replica is left that could answer.
func (w webhookStop) waitForPods(ctx context.Context) error {
	var left int
	var failed error
	err := wait.PollUntilContextTimeout(ctx, scalePoll, podsEndWithin, true, func(ctx context.Context) (bool, error) {
		pods := &corev1.PodList{}
		failed = w.kube.List(ctx, pods, client.InNamespace(guard.Namespace),
			client.MatchingLabels{podNameLabel: webhookName})
		left = len(pods.Items)
		return failed == nil && left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the pods of the webhook have ended, %d are left: %w", left, errors.Join(failed, err))
	}
	return nil
}

func webhookDeployment() *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: guard.Namespace, Name: webhookName}}
}
