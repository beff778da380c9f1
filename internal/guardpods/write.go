package guardpods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/apiaccess"
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

// errNoAgent means that no pod of the agent runs on the node, whose image the guard pod would use.
var errNoAgent = errors.New("the node has no pod of the agent")

// A creationPace is the pace of creations on one node.
type creationPace struct {
	delay     time.Duration
	notBefore time.Time
}

// paceCreation sets when a guard pod may be created on the node next.
func (c *Controller) paceCreation(node string) {
	p, now := c.pace[node], c.Now()
	p.delay *= 2
	if p.delay == 0 || now.Sub(p.notBefore) > steady {
		p.delay = firstDelay
	}
	p.delay = min(p.delay, maxDelay)
	p.notBefore = now.Add(p.delay)
	c.pace[node] = p
}

// execute executes one decision. A later round repeats what failed.
func (c *Controller) execute(ctx context.Context, d guard.Decision) {
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
	case isEnding(err), isGone(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
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
func (c *Controller) create(ctx context.Context, d guard.Decision) error {
	agents, err := c.Pods.List(ctx, metav1.ListOptions{
		LabelSelector: agentSelector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.Node).String(),
	})
	if err != nil {
		return fmt.Errorf("listing the pods of the agent: %w", err)
	}
	i := slices.IndexFunc(agents.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp == nil && len(p.Spec.Containers) > 0
	})
	if i < 0 {
		return errNoAgent
	}
	options := metav1.CreateOptions{FieldManager: apiaccess.WebhookFieldManager}
	_, err = c.Pods.Create(ctx, newPod(d, &agents.Items[i]), options)
	return err
}

// remove deletes a pod, and not another one of the same name. Without a grace period, the default
// of the pod applies.
func (c *Controller) remove(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	return c.Pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

func isGone(err error) bool { return apierrors.IsNotFound(err) }

// isEnding reports whether a pod was not created because its namespace is being deleted.
func isEnding(err error) bool { return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) }

const (
	// program is the path of the program in the image of the agent.
	program = "/holdfast-guard"
	// account is the service account of guard pods. It has no permissions.
	account = "holdfast-guard"
	// user is the user of guard pods, which owns nothing.
	user = 65532
	// descriptionAnnotation is the annotation by which Kubernetes describes objects to people.
	descriptionAnnotation = "kubernetes.io/description"
	description           = "This pod does nothing. It exists to be evicted: a program that drains the node must evict " +
		"it, and Holdfast allows that only while the etcd cluster keeps quorum without the node. To drain the node without " +
		"that check, label it: kubectl label node NODE " + guard.NodeLabel + "=" + guard.Never
)

// newPod returns the guard pod of a decision. The agent is the pod of the agent on the same node:
// its image is already there.
func newPod(d guard.Decision, agent *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Pod, Namespace: guard.Namespace,
			Labels: map[string]string{
				"app.kubernetes.io/name": account, "app.kubernetes.io/part-of": "holdfast", guard.NodeLabel: "true",
			},
			Annotations: map[string]string{
				guard.NodeUIDAnnotation: string(d.On.UID), descriptionAnnotation: description,
			},
			// kubectl drain evicts a pod only if it has a controller. It leaves those of a DaemonSet.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: d.Owner.Name, UID: d.Owner.UID,
				Controller: new(true), BlockOwnerDeletion: new(false),
			}},
		},
		Spec: corev1.PodSpec{
			// The scheduler would have to find this node, and might not while it has no room.
			NodeName: d.Node,
			// The pod must not depend on the pod network, and must not use one of its addresses.
			HostNetwork: true, DNSPolicy: corev1.DNSDefault,
			// Without a toleration of NoExecute, a taint would delete the pod without an eviction. Without
			// that of the cordon, a descheduler would evict the pod from a node that is held. Karpenter does
			// not drain a pod that tolerates its own taint of the effect NoSchedule.
			Tolerations: []corev1.Toleration{
				{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{
					Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoSchedule,
				},
			},
			// It has no priority class: Karpenter and others drain pods of higher priority last, and
			// would move all other pods before they learn that the node has to stay.
			TerminationGracePeriodSeconds: new(int64(1)),
			ServiceAccountName:            account,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			ImagePullSecrets:              agent.Spec.ImagePullSecrets,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "guard", Image: agent.Spec.Containers[0].Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{program},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("8Mi"),
					},
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}
