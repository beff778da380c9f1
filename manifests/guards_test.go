package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/guardpods"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// guardPod returns the guard pod that the webhook creates beside a pod of the agent.
func guardPod(agent corev1.PodSpec) *corev1.Pod {
	return guardpods.NewPod(guard.Decision{
		Node: "etcd-1", Pod: guard.Name("etcd-1"),
		On:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "etcd-1", UID: "node-uid"}},
		Owner: &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "cdf818194e3a8c32", UID: "cluster-uid"}},
	}, &corev1.Pod{Spec: agent})
}

// agentSpec returns the pods of the shipped DaemonSet.
func agentSpec(t *testing.T) corev1.PodSpec {
	t.Helper()
	return one[appsv1.DaemonSet](t, shipped(t), "DaemonSet", "holdfast-agent").Spec.Template.Spec
}

// testGuardPods checks what the token of the webhook can do to pods, with what the API server adds.
// testGuardFields changes every field.
func testGuardPods(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "etcd-1")
	agent := agentSpec(t)
	webhook, dry := serviceAccount(t, server, "holdfast-webhook", "").CoreV1(), []string{metav1.DryRunAll}
	const value = "a guard pod may not have this value of "
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"guard pod":      {change: func(*corev1.Pod) {}},
		"pull policy":    {change: container(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullAlways })},
		"node selector":  {change: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }},
		"generated name": {func(p *corev1.Pod) { p.Name, p.GenerateName = "", "x-" }, "begin with holdfast-guard-"},
		"other image":    {container(func(c *corev1.Container) { c.Image = "example.org/x" }), "the image of the DaemonSet"},
		"environment":    {container(func(c *corev1.Container) { c.EnvFrom = secretEnv() }), value + "containers.envFrom"},
		"storage": {container(func(c *corev1.Container) { // testGuardFields adds other keys
			c.Resources.Limits[corev1.ResourceEphemeralStorage] = resource.MustParse("1Ti")
		}), "limits.ephemeral-storage"},
		"zone":     {change: func(p *corev1.Pod) { p.Labels[corev1.LabelTopologyZone] = "eu-1a" }},
		"no label": {func(p *corev1.Pod) { p.Labels = nil }, "labels.holdfast.dev/drain-guard"},
		"system priority": {func(p *corev1.Pod) {
			p.Spec.PriorityClassName = "system-node-critical"
		}, value + "spec.priority"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := guardPod(agent)
			test.change(pod)
			_, err := webhook.Pods("holdfast-system").Create(t.Context(), pod, metav1.CreateOptions{DryRun: dry})
			requireVerdict(t, test.want, err)
		})
	}
	t.Run("pods of kubelets", func(t *testing.T) { testMirrorPods(t, server) })
	t.Run("deletion", func(t *testing.T) { testPodDeletion(t, server, webhook, agent) })
}

// testMirrorPods checks that no kubelet creates a pod in the namespace. It could take the name of
// the guard pod of another node, or with the labels of the webhook its reviews.
func testMirrorPods(t *testing.T, server *apiserver.Server) {
	node, kubelet, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker"})
	require.NoError(t, err)
	t.Cleanup(func() { remove(t, server, "worker") })
	for namespace, want := range map[string]string{
		"holdfast-system": "a kubelet may not create pods in the namespace holdfast-system", "default": "",
	} {
		_, err := clientOf(t, kubelet).CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "holdfast-guard-etcd-1", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true),
				}},
			},
			Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		requireVerdict(t, want, err)
	}
}

// testPodDeletion checks that the webhook deletes guard pods only, and that the policies do not
// concern other users.
func testPodDeletion(t *testing.T, server *apiserver.Server, webhook typedcorev1.CoreV1Interface, spec corev1.PodSpec) {
	pods := server.Client().CoreV1().Pods("holdfast-system")
	agent := guardPod(spec)
	agent.Name, agent.Labels, agent.Spec.Containers[0].Command = "agent", nil, nil
	for _, pod := range []*corev1.Pod{guardPod(spec), agent} {
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
			pod := guardPod(agentSpec(t))
			pod.Namespace, pod.Name, pod.Spec.ServiceAccountName = namespace, name, "default"
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

// testGuardDefaults checks that a guard pod is accepted with everything that the API server adds to
// it in clusters of different settings, and with what a user sets for the agent.
func testGuardDefaults(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "etcd-1")
	admin := server.Client()
	webhook := serviceAccount(t, server, "holdfast-webhook", "").CoreV1().Pods("holdfast-system")
	// created returns the guard pod as it is created, when the API server knows the setting.
	created := func(isKnown func(*corev1.Pod) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
			made, err := webhook.Create(t.Context(), guardPod(agentSpec(t)), options)
			require.NoError(t, err)
			return isKnown(made)
		}, soon, poll)
	}
	t.Run("default priority class", func(t *testing.T) {
		class := &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "highest"}, Value: 1_000_000_000, GlobalDefault: true,
		}
		_, err := admin.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{})
		require.NoError(t, err)
		created(func(p *corev1.Pod) bool { return *p.Spec.Priority == class.Value })
		require.NoError(t, admin.SchedulingV1().PriorityClasses().Delete(t.Context(), "highest", metav1.DeleteOptions{}))
		created(func(p *corev1.Pod) bool { return *p.Spec.Priority == 0 })
	})
	t.Run("limit range", func(t *testing.T) {
		limits := admin.CoreV1().LimitRanges("holdfast-system")
		defaults := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}
		_, err := limits.Create(t.Context(), &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Name: "default"},
			Spec: corev1.LimitRangeSpec{
				Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Default: defaults}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		created(func(p *corev1.Pod) bool { return p.Annotations["kubernetes.io/limit-ranger"] != "" })
		require.NoError(t, limits.Delete(t.Context(), "default", metav1.DeleteOptions{}))
		created(func(p *corev1.Pod) bool { return p.Annotations["kubernetes.io/limit-ranger"] == "" })
	})
	t.Run("secrets of the account", func(t *testing.T) {
		patch := func(secrets string) {
			_, err := admin.CoreV1().ServiceAccounts("holdfast-system").Patch(t.Context(), "holdfast-guard",
				types.MergePatchType, []byte(`{"imagePullSecrets":`+secrets+`}`), metav1.PatchOptions{})
			require.NoError(t, err)
		}
		patch(`[{"name":"registry"}]`)
		created(func(p *corev1.Pod) bool { return len(p.Spec.ImagePullSecrets) == 1 })
		patch("null")
		created(func(p *corev1.Pod) bool { return len(p.Spec.ImagePullSecrets) == 0 })
	})
	t.Run("settings of the agent", func(t *testing.T) { testAgentSettings(t, server, webhook) })
}

// testAgentSettings checks that a guard pod has the image and the Secrets of the agent's DaemonSet.
func testAgentSettings(t *testing.T, server *apiserver.Server, webhook typedcorev1.PodInterface) {
	agents := server.Client().AppsV1().DaemonSets("holdfast-system")
	patch := func(text string) {
		_, err := agents.Patch(t.Context(), "holdfast-agent", types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"spec":`+text+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	shipped, other, agent := agentSpec(t), agentSpec(t), agentSpec(t)
	patch(`{"imagePullSecrets":[{"name":"mine"}],"containers":[{"name":"agent","image":"example.org/agent:v2"}]}`)
	agent.Containers[0].Image, other.Containers[0].Image = "example.org/agent:v2", "example.org/agent:v2"
	agent.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
	other.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "other"}}
	create := func(agent corev1.PodSpec) error {
		_, err := webhook.Create(t.Context(), guardPod(agent), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.Eventually(t, func() bool { return create(agent) == nil }, soon, poll)
	requireVerdict(t, "the image of the DaemonSet holdfast-agent, example.org/agent:v2", create(shipped))
	requireVerdict(t, "the imagePullSecrets of the DaemonSet", create(other))
	patch(`{"imagePullSecrets":null,"containers":[{"name":"agent","image":"` + shipped.Containers[0].Image + `"}]}`)
	require.Eventually(t, func() bool { return create(shipped) == nil }, soon, poll)
}
