package guardpods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

const (
	// agentSelector selects the pods of the agent.
	agentSelector = "app.kubernetes.io/name=holdfast-agent"
	// firstDelay and maxDelay limit how often guard pods are created on one node. steady is how
	// long the last one must have existed for the delays to begin again.
	firstDelay = time.Second
	maxDelay   = time.Minute
	steady     = 5 * time.Minute
)

// A creationPace is the pace of creations on one node.
type creationPace struct {
	retry     *loop.Retry
	notBefore time.Time
}

// paceCreation sets when a guard pod may be created on the node next.
func (c *controller) paceCreation(node string) {
	now := c.Now()
	maps.DeleteFunc(c.pace, func(_ string, p creationPace) bool { return now.Sub(p.notBefore) > steady })
	p := c.pace[node]
	if p.retry == nil {
		p.retry = loop.NewRetry(loop.Backoff(firstDelay, maxDelay))
	}
	delay := p.retry.Next()
	p.notBefore = now.Add(delay)
	c.pace[node] = p
	time.AfterFunc(delay, c.wake.Notify)
}

// execute executes one decision. A later round repeats what failed.
func (c *controller) execute(ctx context.Context, d guard.Decision) {
	var err error
	switch d.Action {
	case guard.Create:
		c.paceCreation(d.Node)
		err = c.create(ctx, d)
	case guard.Delete:
		err = c.remove(ctx, d.Existing, nil)
	case guard.Remove:
		err = c.remove(ctx, d.Existing, new(int64))
	case guard.Keep, guard.Wait:
		return
	}
	switch {
	case isEnding(err), apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return // The namespace or the pod goes away, or there is a newer one. A later round reads it.
	case err != nil:
		if c.logged.ChangedErrorKind(d.Pod, err) {
			c.Log.WarnContext(ctx, "failed to change a guard pod; retrying",
				"action", string(d.Action), "node", d.Node, "pod", d.Pod, "err", err)
		}
		return
	}
	c.logged.Changed(d.Pod, "")
	c.Log.InfoContext(ctx, "changed a guard pod",
		"action", string(d.Action), "node", d.Node, "pod", d.Pod, "reason", d.Why)
}

// create creates the guard pod of a node with the image of the agent there.
func (c *controller) create(ctx context.Context, d guard.Decision) error {
	agents, err := c.Pods.List(ctx, metav1.ListOptions{
		LabelSelector: agentSelector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.Node).String(),
	})
	if err != nil {
		return fmt.Errorf("listing the pods of the agent: %w", err)
	}
	i := slices.IndexFunc(agents.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && imageOf(&p) != ""
	})
	if i < 0 {
		return errors.New("the node has no pod of the agent") // whose image the guard pod would use
	}
	options := metav1.CreateOptions{FieldManager: apiaccess.WebhookFieldManager}
	_, err = c.Pods.Create(ctx, NewPod(d, &agents.Items[i]), options)
	return err
}

// remove deletes a pod, and not another one of the same name. Without a grace period, the default
// of the pod applies.
func (c *controller) remove(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	return c.Pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

// isEnding reports whether a pod was not created because its namespace is being deleted.
func isEnding(err error) bool { return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) }
