package guardpods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

const (
	// program is the path of the program in the image of the agent.
	program = "/holdfast-guard"
	// agentContainer is the name of the agent's container, to whose pod others may add containers.
	agentContainer = "agent"
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

// NewPod returns the guard pod of a decision. The agent is the pod of the agent on the same node:
// its image is already there. The policy holdfast-guards has every field of the pod: change both.
func NewPod(d guard.Decision, agent *corev1.Pod) *corev1.Pod {
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
				Name: "guard", Image: imageOf(agent), ImagePullPolicy: corev1.PullIfNotPresent,
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

// imageOf returns the image of the agent in one of its pods, empty if it has none.
func imageOf(agent *corev1.Pod) string {
	for _, c := range agent.Spec.Containers {
		if c.Name == agentContainer {
			return c.Image
		}
	}
	return ""
}
