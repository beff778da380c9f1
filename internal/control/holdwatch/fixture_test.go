package holdwatch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// timeout limits every wait. No test measures it.
	timeout      = time.Minute
	pollInterval = 10 * time.Millisecond
	namespace    = "holdfast-system"
)

// fixture is an API server with Holdfast's manifests. It runs no agent and no webhook; tests start
// watchers.
type fixture struct {
	*apiserver.Server
	t *testing.T
}

// testWatcher is a watcher with the webhook's permissions. The test controls its checks and clock.
type testWatcher struct {
	*fixture
	*watcher
	isLeading   bool
	freeze      func()
	cache       cache.Cache
	registry    *prometheus.Registry
	clockOffset time.Duration
	events      []recordedEvent
	// requests is the number of the watcher's requests, without those of its cache.
	requests int
}

// watcherTransport is an http.RoundTripper that counts requests.
type watcherTransport func(*http.Request) (*http.Response, error)

func (c watcherTransport) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

type recordedEvent struct{ about, reason, message string }

// startLeader starts a watcher that leads and whose clock is wrong by offset.
func (f *fixture) startLeader(offset time.Duration, change ...func(*Options)) *testWatcher {
	f.t.Helper()
	w := f.startFollower(offset, change...)
	w.isLeading = true
	return w
}

// startFollower starts a watcher that does not lead until the test sets isLeading.
func (f *fixture) startFollower(offset time.Duration, change ...func(*Options)) *testWatcher {
	f.t.Helper()
	config, err := f.ServiceAccountConfig(f.t.Context(), namespace, "holdfast-webhook", "")
	require.NoError(f.t, err)
	w := &testWatcher{fixture: f, registry: prometheus.NewRegistry(), clockOffset: offset}
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return watcherTransport(func(r *http.Request) (*http.Response, error) {
			w.requests++
			return next.RoundTrip(r)
		})
	})
	core, err := kubernetes.NewForConfig(counted)
	require.NoError(f.t, err)
	scheme := runtime.NewScheme()
	require.NoError(f.t, corev1.AddToScheme(scheme))
	informers, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
	})
	require.NoError(f.t, err)
	_, err = informers.GetInformer(f.t.Context(), &corev1.Node{}, cache.BlockUntilSynced(false))
	require.NoError(f.t, err)
	w.cache = informers
	o := Options{
		Nodes: core.CoreV1().Nodes(),
		LiveNodes: func(ctx context.Context) ([]*corev1.Node, error) {
			list, err := core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			live := make([]*corev1.Node, len(list.Items))
			for i := range list.Items {
				live[i] = &list.Items[i]
			}
			return live, nil
		},
		ConfigMaps: core.CoreV1().ConfigMaps(namespace),
		Timeouts:   readiness.HoldLimits{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: namespace},
		RecordEvent: func(about *corev1.ObjectReference, eventType, reason, message string) {
			require.Equal(f.t, corev1.EventTypeWarning, eventType)
			require.NotEmpty(f.t, about.UID)
			w.events = append(w.events, recordedEvent{about.Kind + " " + about.Name, reason, message})
		},
		Log: slog.New(slog.NewTextHandler(f.t.Output(), nil)), Registerer: w.registry,
		Now: func() time.Time { return time.Now().Add(w.clockOffset) },
	}
	for _, c := range change {
		c(&o)
	}
	w.watcher = newWatcher(o)
	ctx, cancel := context.WithCancel(f.t.Context())
	var g errgroup.Group
	g.Go(func() error { return informers.Start(ctx) })
	w.freeze = func() {
		cancel()
		require.NoError(f.t, g.Wait())
	}
	f.t.Cleanup(w.freeze)
	require.True(f.t, informers.WaitForCacheSync(ctx))
	return w
}

func releasing(o *Options) { o.Timeouts.Release = true }

// cachedNodes returns the Nodes of the cache.
func (w *testWatcher) cachedNodes(ctx context.Context) ([]*corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := w.cache.List(ctx, list); err != nil {
		return nil, err
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// checkNodesTimes waits for the cache and checks all nodes, n times.
func (w *testWatcher) checkNodesTimes(n int) {
	w.t.Helper()
	for range n {
		w.waitForCache()
		require.NoError(w.t, w.check())
	}
}

// check checks all nodes once.
func (w *testWatcher) check() error {
	nodes, err := w.cachedNodes(w.t.Context())
	require.NoError(w.t, err)
	return w.checkNodes(w.t.Context(), world.World{Nodes: nodes, IsLeading: w.isLeading})
}

// advance moves the watcher's clock forward, with checks before and after.
func (w *testWatcher) advance(d time.Duration) {
	w.t.Helper()
	w.checkNodesTimes(1)
	w.clockOffset += d
	w.checkNodesTimes(2)
}

// waitForCache waits until the cache has the Nodes of the API server.
func (w *testWatcher) waitForCache() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		live, err := w.Client().CoreV1().Nodes().List(w.t.Context(), metav1.ListOptions{})
		require.NoError(w.t, err)
		cached, err := w.cachedNodes(w.t.Context())
		require.NoError(w.t, err)
		versions := map[string]string{}
		for _, n := range cached {
			versions[n.Name] = n.ResourceVersion
		}
		for _, n := range live.Items {
			if versions[n.Name] != n.ResourceVersion {
				return false
			}
		}
		return len(cached) == len(live.Items)
	}, timeout, pollInterval)
}

// eventMessages returns the messages of the events about an object with this reason.
func (w *testWatcher) eventMessages(about, reason string) (messages []string) {
	for _, e := range w.events {
		if e.about == about && e.reason == reason {
			messages = append(messages, e.message)
		}
	}
	return messages
}

// metric returns a metric of the watcher as an integer, for a state or without one.
func (w *testWatcher) metric(name, state string) int {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, family := range families {
		if family.GetName() != "holdfast_webhook_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == state {
				return int(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			}
		}
	}
	require.Fail(w.t, "metric not found", "%s %s", name, state)
	return 0
}

// createHeldNode registers a Node like its kubelet does, so that the shipped policy holds it. The
// Node is deleted when the test ends.
func (f *fixture) createHeldNode(name string) *corev1.Node {
	f.t.Helper()
	node, _, err := f.AddNode(f.t.Context(), apiserver.NodeSpec{Name: name, Ready: true})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { f.deleteNode(name) })
	return node
}

// drain records a drain of the held node, as a review of the webhook does.
func (f *fixture) drain(n *corev1.Node) {
	value, err := readiness.WithDrain(n, time.Now())
	require.NoError(f.t, err)
	f.setRecord(n.Name, value)
}

func (f *fixture) deleteNode(name string) {
	err := f.Client().CoreV1().Nodes().Delete(context.WithoutCancel(f.t.Context()), name, metav1.DeleteOptions{})
	require.True(f.t, err == nil || apierrors.IsNotFound(err), err)
}

func (f *fixture) node(name string) *corev1.Node {
	f.t.Helper()
	node, err := f.Client().CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return node
}

// runAgent makes some decisions of a node's agent, with the agent's permissions. The gates are
// open or closed.
func (f *fixture) runAgent(name string, open bool) *corev1.Node {
	f.t.Helper()
	facts := readiness.Facts{Conflist: readiness.Conflist{Presence: readiness.Absent, Directory: "/etc/cni/net.d"}}
	if open {
		facts.Conflist = readiness.Conflist{
			Presence: readiness.Present, Path: "/etc/cni/net.d/10.conflist", Name: "x",
			Plugins: []readiness.Plugin{{Type: "ptp", Executable: readiness.Present}},
		}
	}
	return f.runAgentWithFacts(name, facts)
}

func (f *fixture) runAgentWithFacts(name string, facts readiness.Facts) *corev1.Node {
	f.t.Helper()
	config, err := f.ServiceAccountConfig(f.t.Context(), namespace, "holdfast-agent", name)
	require.NoError(f.t, err)
	core, err := kubernetes.NewForConfig(config)
	require.NoError(f.t, err)
	node := f.node(name)
	facts.BootID = node.Status.NodeInfo.BootID
	for range 3 {
		d := readiness.Decide(node, facts, readiness.Policy{}, time.Now())
		node, err = nodepatch.NewWriter(core.CoreV1().Nodes()).Apply(f.t.Context(), node, desiredState(d))
		require.NoError(f.t, err)
	}
	return node
}

// shutDown lets the agent hold its node for a shutdown of the host.
func (f *fixture) shutDown(name string) {
	f.t.Helper()
	down := f.runAgentWithFacts(name, readiness.Facts{GoingDown: true})
	require.Equal(f.t, readiness.RecordReason(readiness.GoingDown), record(f.t, down).Reason)
}

// reportBoot lets the kubelet report a boot.
func (f *fixture) reportBoot(name, id string) {
	f.t.Helper()
	f.patch(name, `{"status":{"nodeInfo":{"bootID":"`+id+`"}}}`, "status")
}

// setRecord writes the record of a hold.
func (f *fixture) setRecord(name, value string) {
	f.t.Helper()
	f.patch(name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, readiness.HoldAnnotation, value))
}

// uncordon does that as another client than Holdfast.
func (f *fixture) uncordon(name string) {
	f.t.Helper()
	f.patch(name, `{"spec":{"unschedulable":null}}`)
}

// patch writes a patch to a Node as kubectl does.
func (f *fixture) patch(name, body string, subresources ...string) {
	f.t.Helper()
	_, err := f.Client().CoreV1().Nodes().Patch(f.t.Context(), name, types.StrategicMergePatchType, []byte(body),
		metav1.PatchOptions{FieldManager: "kubectl-patch"}, subresources...)
	require.NoError(f.t, err)
}

// runShell runs a command line in a shell, with only kubectl in its PATH.
func (f *fixture) runShell(line string) {
	f.t.Helper()
	shell := exec.CommandContext(f.t.Context(), "/bin/sh", "-c", line)
	kubectl, err := process.Binary("kubectl")
	require.NoError(f.t, err)
	shell.Env = []string{"PATH=" + filepath.Dir(kubectl), "KUBECONFIG=" + f.Kubeconfig(), "HOME=" + f.t.TempDir()}
	out, err := shell.CombinedOutput()
	require.NoError(f.t, err, "%s\n%s", line, out)
}

// commandsIn returns the command lines in a message.
func commandsIn(message string) (lines []string) {
	for i, part := range strings.Split(message, "`") {
		if i%2 == 1 {
			lines = append(lines, part)
		}
	}
	return lines
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	if c := readiness.FindCondition(node, kind); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}

func record(t *testing.T, node *corev1.Node) readiness.Record {
	t.Helper()
	r, err := readiness.ParseRecord(node.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	return r
}

// parameter returns the policy's parameter, nil if there is none.
func (f *fixture) parameter() *corev1.ConfigMap {
	f.t.Helper()
	found, err := f.Client().CoreV1().ConfigMaps(namespace).Get(f.t.Context(), Parameter, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(f.t, err)
	return found
}
