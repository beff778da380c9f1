package guardpods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

const (
	soon = time.Minute
	poll = 10 * time.Millisecond
	// tick is the tick of the Controller in tests.
	tick = 200 * time.Millisecond
	// webhookAccount is the user name of the webhook.
	webhookAccount = "system:serviceaccount:holdfast-system:holdfast-webhook"
)

// fixture is a kube-apiserver with Holdfast installed, without agents and webhook. A stub of the
// kubelet runs all pods of the namespace.
type fixture struct {
	*apiserver.Server
	client client.Client // of the webhook
	admin  typedcorev1.PodInterface
	image  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Server: apiserver.NewInstalled(t)}
	f.admin = f.Server.Client().CoreV1().Pods(guard.Namespace)
	webhook, err := f.ServiceAccountConfig(t.Context(), guard.Namespace, "holdfast-webhook", "")
	require.NoError(t, err)
	f.client, err = client.New(webhook, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	// An injector puts its container in front, as in addAgent.
	agents, err := f.Server.Client().AppsV1().DaemonSets(guard.Namespace).Patch(t.Context(), "holdfast-agent",
		types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/template/spec/containers/0",
			"value":{"name":"injected","image":"injected"}}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	f.image = agents.Spec.Template.Spec.Containers[1].Image
	ctx, cancel := context.WithCancel(t.Context())
	var kubelet sync.WaitGroup
	kubelet.Go(func() { f.runKubelet(ctx) })
	t.Cleanup(func() {
		cancel()
		kubelet.Wait()
	})
	return f
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	objects := runtime.NewScheme()
	require.NoError(t, errors.Join(corev1.AddToScheme(objects), v1alpha1.AddToScheme(objects)))
	return objects
}

// runKubelet ends pods that are deleted, as the kubelet of their node does.
func (f *fixture) runKubelet(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := f.admin.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
				_ = f.admin.Delete(ctx, pod.Name, metav1.DeleteOptions{
					GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
				})
			}
		}
	}
}

// addEtcdNode registers a Node in a zone with the label of etcd and a pod of the agent. The API
// server copies the zone to the pods of the node.
func (f *fixture) addEtcdNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node, err := apiserver.RegisterNode(t.Context(), f.Admin(), apiserver.NodeSpec{
		Name: name, Ready: true, Labels: map[string]string{
			observation.EtcdMemberLabel: observation.EtcdMemberLabelValue,
			corev1.LabelTopologyZone:    "eu-1a", corev1.LabelTopologyRegion: "eu-1",
		},
	})
	require.NoError(t, err)
	f.addAgent(t, name)
	return node
}

func (f *fixture) addAgent(t *testing.T, node string) {
	t.Helper()
	_, err := f.admin.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "holdfast-agent-" + node, Labels: map[string]string{"app.kubernetes.io/name": "holdfast-agent"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "holdfast-agent",
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
			Containers: []corev1.Container{
				{Name: "injected", Image: "injected"}, {Name: agentContainer, Image: f.image},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (f *fixture) removeAgent(t *testing.T, node string) {
	t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	require.NoError(t, f.admin.Delete(t.Context(), "holdfast-agent-"+node, now))
}

// addCluster creates an EtcdCluster with one voter on each node.
func (f *fixture) addCluster(t *testing.T, name string, nodes ...*corev1.Node) *v1alpha1.EtcdCluster {
	t.Helper()
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i, n := range nodes {
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{
			MemberID: v1alpha1.MemberID(fmt.Sprintf("a%d", i)), Node: n.Name, NodeUID: n.UID,
		})
	}
	require.NoError(t, f.client.Create(t.Context(), c))
	f.setVoters(t, c, new(int32(len(nodes))))
	return c
}

func (f *fixture) setVoters(t *testing.T, c *v1alpha1.EtcdCluster, voters *int32) {
	t.Helper()
	before := c.DeepCopy()
	c.Status.Voters = voters
	require.NoError(t, f.client.Status().Patch(t.Context(), c, client.MergeFrom(before)))
}

// start runs a Controller with the permissions of the webhook until the test ends. The returned
// function stops it earlier.
func (f *fixture) start(t *testing.T, change func(*Options)) (stop func()) {
	t.Helper()
	return f.startCached(t, cache.Options{}, change)
}

// startCached runs a Controller with a cache of its own.
func (f *fixture) startCached(t *testing.T, cacheOptions cache.Options, change func(*Options)) (stop func()) {
	t.Helper()
	config, err := f.ServiceAccountConfig(t.Context(), guard.Namespace, "holdfast-webhook", "")
	require.NoError(t, err)
	typed, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	objects := scheme(t)
	cacheOptions.Scheme = objects
	cached, err := cache.New(config, cacheOptions)
	require.NoError(t, err)
	direct, err := client.New(config, client.Options{Scheme: objects})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	store, err := clusterstore.New(ctx, clusterstore.Options{
		Client: direct, Reader: direct, Cache: cached, Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	o := Options{
		Store: store, Pods: typed.CoreV1().Pods(guard.Namespace), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Registerer: prometheus.NewRegistry(), Tick: tick,
	}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	require.NoError(t, err)
	guards, err := world.Loop{Store: store, Log: o.Log}.Runnables(c)
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = cached.Start(ctx) })
	running.Go(func() { _ = guards[0].Start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// pod returns the guard pod of a node, or nil.
func (f *fixture) pod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pod, err := f.admin.Get(t.Context(), guard.Name(node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return pod
}

// waitForPod waits until the node has a guard pod other than the one with this UID.
func (f *fixture) waitForPod(t *testing.T, node string, other types.UID) (pod *corev1.Pod) {
	t.Helper()
	require.Eventually(t, func() bool {
		pod = f.pod(t, node)
		return pod != nil && pod.UID != other && pod.DeletionTimestamp == nil
	}, soon, poll, "node %s", node)
	return pod
}

func (f *fixture) waitUntilGone(t *testing.T, node string) {
	t.Helper()
	require.Eventually(t, func() bool { return f.pod(t, node) == nil }, soon, poll, "node %s", node)
}

// stays checks over several ticks that the guard pod of a node stays as it is.
func (f *fixture) stays(t *testing.T, node string, want types.UID) {
	t.Helper()
	for end := time.Now().Add(3 * tick); time.Now().Before(end); {
		uid := types.UID("")
		if pod := f.pod(t, node); pod != nil {
			uid = pod.UID
		}
		require.Equal(t, want, uid, "node %s", node)
		require.NoError(t, loop.Wait(t.Context(), poll, nil))
	}
}

func (f *fixture) patchNode(t *testing.T, node, patch string) {
	t.Helper()
	_, err := f.Server.Client().CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// releaseNode removes the label of a Node, as its agent does.
func (f *fixture) releaseNode(t *testing.T, node string) {
	t.Helper()
	config, err := f.ServiceAccountConfig(t.Context(), guard.Namespace, "holdfast-agent", node)
	require.NoError(t, err)
	agent, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = agent.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// requireWrites requires this number of requests of the webhook's account that change pods. The API
// server records a request after its answer.
func (f *fixture) requireWrites(t *testing.T, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return f.writes(t) >= want }, soon, poll)
	require.Equal(t, want, f.writes(t))
}

// writes returns the number of requests of the webhook's account that change pods.
func (f *fixture) writes(t *testing.T) int {
	t.Helper()
	requests, err := f.Requests(webhookAccount)
	require.NoError(t, err)
	n := 0
	for _, r := range requests {
		if r.Resource == "pods" && r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" {
			n++
		}
	}
	return n
}
