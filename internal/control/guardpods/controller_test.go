package guardpods

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// TestController checks the lifecycle of guard pods, one step after another on one API server.
func TestController(t *testing.T) {
	f := newFixture(t)
	var nodes []*corev1.Node
	for i := range 3 {
		nodes = append(nodes, f.addEtcdNode(t, fmt.Sprintf("etcd-%d", i)))
	}
	c := f.addCluster(t, "c1", nodes...)
	f.patchNode(t, "etcd-2", `{"spec":{"unschedulable":true}}`)
	t.Run("pods not readable", func(t *testing.T) { testPodsNotReadable(t, f) })
	t.Run("seven nodes", func(t *testing.T) { testSevenNodes(t, f) })
	f.patchNode(t, "etcd-2", `{"spec":{"unschedulable":null}}`)
	stop := f.start(t, nil)
	for _, n := range nodes {
		f.waitForPod(t, n.Name, "")
	}
	t.Run("deleted by a user", func(t *testing.T) {
		old := f.pod(t, "etcd-0")
		require.NoError(t, f.admin.Delete(t.Context(), old.Name, metav1.DeleteOptions{}))
		f.waitForPod(t, "etcd-0", old.UID)
	})
	t.Run("F39 drained", func(t *testing.T) { testDrained(t, f, c, nodes[1]) })
	t.Run("F38 edited", func(t *testing.T) { testEdited(t, f) })
	t.Run("copied", func(t *testing.T) { testCopied(t, f) })
	t.Run("unlabelled namesake", func(t *testing.T) { testUnlabelledNamesake(t, f) })
	t.Run("ended", func(t *testing.T) { testEnded(t, f) })
	t.Run("opted out", func(t *testing.T) {
		f.patchNode(t, "etcd-0", `{"metadata":{"labels":{"holdfast.dev/drain-guard":"never"}}}`)
		f.waitUntilGone(t, "etcd-0")
		f.patchNode(t, "etcd-0", `{"metadata":{"labels":{"holdfast.dev/drain-guard":null}}}`)
		f.waitForPod(t, "etcd-0", "")
	})
	t.Run("F38 voters unknown", func(t *testing.T) {
		f.setVoters(t, c, nil)
		f.stays(t, "etcd-0", f.pod(t, "etcd-0").UID)
		f.setVoters(t, c, new(int32(3)))
	})
	t.Run("F75 announced, not bound", func(t *testing.T) {
		f.addEtcdNode(t, "etcd-9")
		f.patchNode(t, "etcd-9", `{"metadata":{"annotations":{"holdfast.dev/etcd":"[{\"cluster\":\"`+c.Name+
			`\",\"member\":\"9\"}]"}}}`)
		f.waitForPod(t, "etcd-9", "")
		f.patchNode(t, "etcd-9", `{"metadata":{"labels":{"holdfast.dev/drain-guard":"never"}}}`)
		f.waitUntilGone(t, "etcd-9")
	})
	stop()
	t.Run("F38 stale cache", func(t *testing.T) { testStaleCache(t, f) })
	stop = f.start(t, nil)
	t.Run("Node gone", func(t *testing.T) { testNodeGone(t, f) })
	t.Run("switched off", func(t *testing.T) {
		stop()
		stop = f.start(t, func(o *Options) { o.Off = true })
		for _, n := range nodes {
			f.waitUntilGone(t, n.Name)
		}
		stop()
	})
	t.Run("waiting", func(t *testing.T) { testWaiting(t, f) })
}

// testSevenNodes checks that guard pods appear without a tick, that they are what the policies
// permit, and that nothing is written afterwards.
func testSevenNodes(t *testing.T, f *fixture) {
	stop := f.start(t, func(o *Options) { o.Tick = time.Hour })
	defer stop()
	written := f.writes(t)
	var nodes []*corev1.Node
	for i := range 7 {
		nodes = append(nodes, f.addEtcdNode(t, fmt.Sprint("seven-", i)))
	}
	c := f.addCluster(t, "c7", nodes...)
	for _, n := range nodes {
		f.waitForPod(t, n.Name, "")
	}
	for _, n := range nodes {
		pod := f.pod(t, n.Name)
		require.Equal(t, n.Name, pod.Spec.NodeName)
		require.Equal(t, string(n.UID), pod.Annotations[guard.NodeUIDAnnotation])
		require.Equal(t, c.UID, metav1.GetControllerOf(pod).UID)
		require.Equal(t, f.image, pod.Spec.Containers[0].Image)
		require.Equal(t, []corev1.LocalObjectReference{{Name: "registry"}}, pod.Spec.ImagePullSecrets)
		require.Contains(t, pod.Annotations["kubernetes.io/description"], "It exists to be evicted")
		require.Empty(t, pod.Spec.Volumes)
		require.Empty(t, pod.Spec.PriorityClassName)
	}
	f.requireWrites(t, written+7)
	for i := range 2 { // Probes and observations change the object all the time.
		before := c.DeepCopy()
		c.Spec.Nonce = fmt.Sprint("nonce-", i)
		require.NoError(t, f.client.Patch(t.Context(), c, client.MergeFrom(before)))
		f.stays(t, "seven-0", f.pod(t, "seven-0").UID)
	}
	f.requireWrites(t, written+7)
}

func testDrained(t *testing.T, f *fixture, c *v1alpha1.EtcdCluster, node *corev1.Node) {
	old := f.pod(t, node.Name)
	f.patchNode(t, node.Name, `{"spec":{"unschedulable":true}}`)
	f.stays(t, node.Name, old.UID)
	grants := func(grants ...v1alpha1.Grant) {
		before := c.DeepCopy()
		c.Spec.Grants = grants
		require.NoError(t, f.client.Patch(t.Context(), c, client.MergeFrom(before)))
	}
	grants(v1alpha1.Grant{
		Node: node.Name, NodeUID: node.UID, Members: []v1alpha1.MemberID{"a1"},
		Drain: &v1alpha1.Door{Time: metav1.Now()},
	})
	require.NoError(t, f.admin.Delete(t.Context(), old.Name, metav1.DeleteOptions{}))
	f.waitUntilGone(t, node.Name)
	f.stays(t, node.Name, "")
	f.patchNode(t, node.Name, `{"spec":{"unschedulable":null}}`)
	f.waitForPod(t, node.Name, "") // before the grant has ended
	grants()
}

func testEdited(t *testing.T, f *fixture) {
	old := map[string]types.UID{}
	for node, patch := range map[string]string{
		"etcd-0": `{"metadata":{"labels":null}}`,
		"etcd-1": `{"metadata":{"ownerReferences":null}}`,
		"etcd-2": `{"metadata":{"annotations":{"holdfast.dev/node-uid":"other"}}}`,
	} {
		pod := f.waitForPod(t, node, "")
		old[node] = pod.UID
		_, err := f.admin.Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	for node, uid := range old {
		again := f.waitForPod(t, node, uid)
		require.Contains(t, again.Labels, guard.NodeLabel)
		require.NotNil(t, metav1.GetControllerOf(again))
	}
}

// testCopied checks that a copy that takes the name of the guard pod of another node is removed,
// and that other copies are left alone. One copy is on no node, for example from a backup: it must
// not keep other guard pods from being created.
func testCopied(t *testing.T, f *fixture) {
	original := f.pod(t, "etcd-0")
	copyOf := func(name, node string) *corev1.Pod {
		pod := original.DeepCopy()
		pod.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences}
		pod.Spec.NodeName = node
		made, err := f.admin.Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		return made
	}
	copyOf(guard.Name("old-node"), "")
	f.stays(t, "etcd-0", original.UID)
	require.NoError(t, f.admin.Delete(t.Context(), original.Name, metav1.DeleteOptions{}))
	f.waitForPod(t, "etcd-0", original.UID)

	other := copyOf("copy-of-guard", "etcd-0")
	copyOf(guard.Name("no-such-node"), "etcd-0")
	f.waitUntilGone(t, "no-such-node")
	_, err := f.admin.Get(t.Context(), other.Name, metav1.GetOptions{})
	require.NoError(t, err)
}

// testUnlabelledNamesake has a pod on another node, with the name of a guard pod and without the
// label by which the cache selects.
func testUnlabelledNamesake(t *testing.T, f *fixture) {
	_, err := f.admin.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: guard.Name("etcd-8")},
		Spec: corev1.PodSpec{
			NodeName: "etcd-1", ServiceAccountName: "holdfast-agent", Containers: []corev1.Container{{Name: "c", Image: "x"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.addCluster(t, "c8", f.addEtcdNode(t, "etcd-7"), f.addEtcdNode(t, "etcd-8"))
	f.waitForPod(t, "etcd-7", "")
	require.Eventually(t, func() bool {
		p := f.pod(t, "etcd-8")
		return p != nil && p.Spec.NodeName == "etcd-8"
	}, soon, poll)
}

// testEnded checks that a pod that has ended is replaced, and not more often than once in a while.
func testEnded(t *testing.T, f *fixture) {
	end := func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
		_, err := f.admin.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	began, pod := time.Now(), f.pod(t, "seven-0")
	for range 3 {
		end(pod)
		pod = f.waitForPod(t, "seven-0", pod.UID)
	}
	require.Greater(t, time.Since(began), firstDelay+2*firstDelay)
}

// testStaleCache checks that a cache that lacks an EtcdCluster removes no guard pod, even if the
// Node has no label.
func testStaleCache(t *testing.T, f *fixture) {
	f.releaseNode(t, "etcd-1")
	empty := map[client.Object]cache.ByObject{
		&v1alpha1.EtcdCluster{}: {Label: labels.SelectorFromSet(labels.Set{"no": "such"})},
	}
	stop := f.startCached(t, cache.Options{ByObject: empty}, nil)
	defer stop()
	f.stays(t, "etcd-1", f.pod(t, "etcd-1").UID)
}

// testNodeGone deletes a Node that its agent has released, while the leader still has its binding.
func testNodeGone(t *testing.T, f *fixture) {
	f.releaseNode(t, "etcd-2")
	f.stays(t, "etcd-2", f.pod(t, "etcd-2").UID)
	require.NoError(t, f.Server.Client().CoreV1().Nodes().Delete(t.Context(), "etcd-2", metav1.DeleteOptions{}))
	f.waitUntilGone(t, "etcd-2")
}

// testWaiting checks that a guard pod waits for the agent of its node, and for the update of the
// agent, and that a namespace that is being deleted causes neither an error nor a pod.
func testWaiting(t *testing.T, f *fixture) {
	old, without := f.addEtcdNode(t, "old-0"), f.addEtcdNode(t, "without-0")
	current := f.image
	f.image = "holdfast-agent:old"
	f.removeAgent(t, old.Name)
	f.addAgent(t, old.Name)
	f.removeAgent(t, without.Name)
	f.addCluster(t, "c9", old, without)
	var log testlog.Buffer
	f.start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "the node has no pod of the agent") &&
			strings.Contains(log.String(), "a guard pod must have the image of the DaemonSet holdfast-agent")
	}, soon, poll)
	f.image = current
	f.addAgent(t, without.Name)
	f.waitForPod(t, without.Name, "")
	require.Nil(t, f.pod(t, old.Name))

	// The namespace controller does not run, so the namespace stays.
	namespaces := f.Server.Client().CoreV1().Namespaces()
	require.NoError(t, namespaces.Delete(t.Context(), guard.Namespace, metav1.DeleteOptions{}))
	before := strings.Count(log.String(), "level=WARN")
	require.NoError(t, f.admin.Delete(t.Context(), guard.Name(without.Name), metav1.DeleteOptions{}))
	f.waitUntilGone(t, without.Name)
	f.stays(t, without.Name, "")
	require.Equal(t, before, strings.Count(log.String(), "level=WARN"), log.String())
}

// testPodsNotReadable denies the reads of guard pods from the start, and then again. Meanwhile, the
// metric must show that, and no pod may be created.
func testPodsNotReadable(t *testing.T, f *fixture) {
	pods := &deniedPods{isDenied: true}
	var ahead atomic.Int64
	registry := prometheus.NewRegistry()
	var log testlog.Buffer
	stop := f.start(t, func(o *Options) {
		pods.PodInterface, o.Pods, o.Registerer = o.Pods, pods, registry
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	waitForStates := func(want map[string]float64) {
		t.Helper()
		require.Eventually(t, func() bool { return maps.Equal(want, podsByState(t, registry)) }, soon, poll,
			"%v", podsByState(t, registry))
	}
	denied := map[string]float64{"present": 0, "missing": 0, "closed": 1, "defective": 0, "unknown": 2}
	known := map[string]float64{"present": 2, "missing": 0, "closed": 1, "defective": 0, "unknown": 0}
	waitForStates(denied)
	f.stays(t, "etcd-0", "")
	pods.set(false)
	waitForStates(known)

	failures := func() int { return strings.Count(log.String(), "failed to follow objects") }
	require.Equal(t, 1, failures(), log.String())
	pods.set(true)
	// The informer waits before it reads again.
	require.Eventually(t, func() bool { return failures() == 2 }, 2*soon, poll)
	f.stays(t, "etcd-0", f.pod(t, "etcd-0").UID)
	require.Equal(t, known, podsByState(t, registry), "reads failed only for a moment")
	ahead.Store(int64(3 * time.Minute)) // The watch may hang.
	waitForStates(denied)
	require.NoError(t, f.admin.Delete(t.Context(), guard.Name("etcd-0"), metav1.DeleteOptions{}))
	f.waitUntilGone(t, "etcd-0")
	f.stays(t, "etcd-0", "")
	require.Equal(t, 2, failures(), log.String())
	pods.set(false)
	require.Eventually(t, func() bool { return f.pod(t, "etcd-0") != nil }, 2*soon, poll)
	waitForStates(known)
	stop()
}

// deniedPods are the pods of an account that may lose the permission to list and to watch them.
type deniedPods struct {
	typedcorev1.PodInterface
	mu       sync.Mutex // guards the fields below
	isDenied bool
	open     watch.Interface
}

// set also ends the open watch, as the API server does after some minutes.
func (p *deniedPods) set(isDenied bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isDenied = isDenied
	if p.open != nil {
		p.open.Stop()
	}
}

func (p *deniedPods) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDenied {
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
	}
	return p.PodInterface.List(ctx, o)
}

func (p *deniedPods) Watch(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDenied {
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
	}
	p.open, err = p.PodInterface.Watch(ctx, o)
	return p.open, err
}

// podsByState returns the values of the metric.
func podsByState(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	states := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			states[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return states
}
