package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// guardPod returns a guard pod as the webhook creates it.
func guardPod(image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "holdfast-guard-etcd-1", Labels: map[string]string{"holdfast.dev/drain-guard": "true"},
		},
		Spec: corev1.PodSpec{
			NodeName: "etcd-1", HostNetwork: true, DNSPolicy: corev1.DNSDefault,
			Tolerations: []corev1.Toleration{
				{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
			TerminationGracePeriodSeconds: new(int64(1)),
			ServiceAccountName:            "holdfast-guard", AutomountServiceAccountToken: new(false),
			EnableServiceLinks: new(false), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "guard", Image: image, Command: []string{"/holdfast-guard"},
				SecurityContext: &corev1.SecurityContext{
					ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// testGuardPods checks what the token of the webhook can do to pods.
func testGuardPods(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "etcd-1")
	shipped := one[appsv1.DaemonSet](t, kustomized(t, "."), "DaemonSet", "holdfast-agent")
	image := shipped.Spec.Template.Spec.Containers[0].Image
	webhook, dry := serviceAccount(t, server, "holdfast-webhook", "").CoreV1(), []string{metav1.DryRunAll}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"guard pod":      {change: func(*corev1.Pod) {}},
		"other name":     {func(p *corev1.Pod) { p.Name = "holdfast-agent-x" }, "only pods whose names begin with"},
		"generated name": {func(p *corev1.Pod) { p.Name, p.GenerateName = "", "x-" }, "begin with holdfast-guard-"},
		"no label":       {func(p *corev1.Pod) { p.Labels = nil }, "must have the label holdfast.dev/drain-guard"},
		"no node":        {func(p *corev1.Pod) { p.Spec.NodeName = "" }, "must name its node"},
		"other image":    {container(func(c *corev1.Container) { c.Image = "example.org/x" }), "the image of the DaemonSet"},
		"other command":  {container(func(c *corev1.Container) { c.Command = []string{"/x"} }), "must run /holdfast-guard"},
		"no command":     {container(func(c *corev1.Container) { c.Command = nil }), "must run /holdfast-guard"},
		"arguments":      {container(func(c *corev1.Container) { c.Args = []string{"x"} }), "may not have args"},
		"environment":    {container(func(c *corev1.Container) { c.EnvFrom = secretEnv() }), "may not have envFrom"},
		"second container": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "x", Image: image})
		}, "must have one container"},
		"init container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "x", Image: image}}
		}, "may not have initContainers"},
		"volume": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"},
			}}}
		}, "may not have volumes"},
		"host PID":      {func(p *corev1.Pod) { p.Spec.HostPID = true }, "may not have hostPID"},
		"other account": {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "holdfast-agent" }, "the service account"},
		"token":         {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, "without a token"},
		"other profile": {rights(func(c *corev1.SecurityContext) {
			c.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		}), "without privileges"},
		"capability": {rights(func(c *corev1.SecurityContext) {
			c.Capabilities.Add = []corev1.Capability{"NET_RAW"}
		}), "without privileges"},
		"writable root": {rights(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = nil }), "without privileges"},
		"root":          {func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = nil }, "without privileges"},
		"root in the container": {
			rights(func(c *corev1.SecurityContext) { c.RunAsUser = new(int64(0)) }), "without privileges",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := guardPod(image)
			test.change(pod)
			_, err := webhook.Pods("holdfast-system").Create(t.Context(), pod, metav1.CreateOptions{DryRun: dry})
			requireVerdict(t, test.want, err)
		})
	}
	t.Run("deletion", func(t *testing.T) { testPodDeletion(t, server, webhook, image) })
}

// testPodDeletion checks that the webhook deletes guard pods only, and that the policies do not
// concern other users.
func testPodDeletion(t *testing.T, server *apiserver.Server, webhook typedcorev1.CoreV1Interface, image string) {
	pods := server.Client().CoreV1().Pods("holdfast-system")
	agent := guardPod("example.org/agent")
	agent.Name, agent.Labels, agent.Spec.Containers[0].Command = "agent", nil, nil
	for _, pod := range []*corev1.Pod{guardPod(image), agent} {
		_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := webhook.Pods("holdfast-system").Delete(t.Context(), "agent", now)
	requireVerdict(t, "only pods whose names begin with holdfast-guard-", err)
	require.NoError(t, webhook.Pods("holdfast-system").Delete(t.Context(), "holdfast-guard-etcd-1", now))
	require.NoError(t, pods.Delete(t.Context(), "agent", now))
}

// testEvictions checks which evictions need an answer of the webhook. No replica runs.
func testEvictions(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "etcd-1")
	evict := func(namespace, name string, options *metav1.DeleteOptions) error {
		return server.Client().CoreV1().Pods(namespace).EvictV1(t.Context(), &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, DeleteOptions: options,
		})
	}
	pods := map[string][]string{
		"holdfast-system": {"holdfast-guard-etcd-1", "holdfast-webhook-1", "holdfast-agent-1", "holdfast-guard"},
		"default":         {"holdfast-guard-etcd-1", "other"},
	}
	for namespace, names := range pods {
		for _, name := range names {
			pod := guardPod("example.org/x")
			pod.Name, pod.Spec.ServiceAccountName = name, "default"
			createAccount(t, server, namespace, "default")
			_, err := server.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			require.NoError(t, err)
		}
	}
	now := &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	dry := &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for namespace, names := range pods {
		for _, name := range names {
			if namespace == "holdfast-system" && name == "holdfast-guard-etcd-1" {
				for _, options := range []*metav1.DeleteOptions{now, dry, nil} {
					require.ErrorContains(t, evict(namespace, name, options), `failed calling webhook "guard-pods.holdfast.dev"`)
				}
				continue
			}
			require.NoError(t, evict(namespace, name, now), "%s/%s", namespace, name)
		}
	}
	// The body may not name another pod than the request.
	err := server.Client().CoreV1().RESTClient().Post().Namespace("holdfast-system").Resource("pods").
		Name("other").SubResource("eviction").
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-guard-etcd-1", Namespace: "holdfast-system"}}).
		Do(t.Context()).Error()
	require.ErrorContains(t, err, "name in URL does not match name in Eviction object")
	require.NoError(t, server.Client().CoreV1().Pods("holdfast-system").Delete(t.Context(), "holdfast-guard-etcd-1", *now))
}

// createAccount creates a service account, as the controller manager does for "default".
func createAccount(t *testing.T, server *apiserver.Server, namespace, name string) {
	t.Helper()
	_, err := server.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

func secretEnv() []corev1.EnvFromSource {
	return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "holdfast-webhook-tls"},
	}}}
}

func container(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
}

func rights(change func(*corev1.SecurityContext)) func(*corev1.Pod) {
	return container(func(c *corev1.Container) { change(c.SecurityContext) })
}
