package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	testNode    = "n1"
	testCluster = v1alpha1.ClusterID("cdf818194e3a8c32")
	testMember  = v1alpha1.MemberID("3a1575389de83a83")
	testBoot    = "6f6b9d3c-1f2b-4c3f-9d3e-0a4f5a1d2e3f"
	// soon is the limit for what takes milliseconds on an idle machine.
	soon = 20 * time.Second
)

// testServer is a real API server for several agents.
type testServer struct {
	*apiserver.Server
	nodes typedcorev1.NodeInterface
}

func startTestServer(t *testing.T) testServer {
	t.Helper()
	server := apiserver.New(t)
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	crds := filepath.Join(root, "manifests", "base", "crd")
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-f", crds)
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "-f", crds)
	require.NoError(t, err)
	return testServer{server, server.Client().CoreV1().Nodes()}
}

func (s testServer) register(t *testing.T, n *corev1.Node) *corev1.Node {
	t.Helper()
	created, err := s.nodes.Create(t.Context(), n, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

func (s testServer) get(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := s.nodes.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return n
}

// until watches the Node until it is as wanted.
func (s testServer) until(t *testing.T, name, what string, wanted func(*corev1.Node) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	events, err := s.nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(t, err)
	defer events.Stop()
	var last *corev1.Node
	for e := range events.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok {
			if last = n; wanted(n) {
				return
			}
		}
	}
	require.Failf(t, "the node did not become as wanted", "%s; it is %+v", what, last)
}

// applyCluster creates the EtcdCluster, or writes a nonce, as the webhook's leader does.
func (s testServer) applyCluster(t *testing.T, nonce string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.json")
	require.NoError(t, os.WriteFile(path, []byte(`{
		"apiVersion": "holdfast.dev/v1alpha1", "kind": "EtcdCluster",
		"metadata": {"name": "`+string(testCluster)+`"}, "spec": {"ledger": 0, "nonce": "`+nonce+`"}}`), 0o600))
	_, err := s.Kubectl(t.Context(), "apply", "--server-side", "-f", path)
	require.NoError(t, err)
}

// allowObservations creates the EtcdObservations of nodes, as the webhook's leader does.
func (s testServer) allowObservations(t *testing.T, nodes ...string) {
	t.Helper()
	uid, err := s.Kubectl(t.Context(), "get", "etcdcluster", string(testCluster), "-o", "jsonpath={.metadata.uid}")
	require.NoError(t, err)
	for _, node := range nodes {
		path := filepath.Join(t.TempDir(), "observation.json")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{
			"apiVersion": "holdfast.dev/v1alpha1", "kind": "EtcdObservation", "cluster": %q, "node": %q,
			"metadata": {"name": %q, "ownerReferences": [
				{"apiVersion": "holdfast.dev/v1alpha1", "kind": "EtcdCluster", "name": %q, "uid": %q}]}}`,
			testCluster, node, v1alpha1.ObservationName(testCluster, node), testCluster, strings.TrimSpace(uid)), 0o600))
		_, err := s.Kubectl(t.Context(), "apply", "--server-side", "-f", path)
		require.NoError(t, err)
	}
}

// patchCluster applies a merge patch to the EtcdCluster or to a subresource of it, and returns the
// version that it wrote.
func (s testServer) patchCluster(t *testing.T, subresource, patch string) (version string) {
	t.Helper()
	args := []string{
		"patch", "etcdcluster", string(testCluster), "--type=merge", "-p", patch,
		"-o", "jsonpath={.metadata.resourceVersion}",
	}
	if subresource != "" {
		args = append(args, "--subresource="+subresource)
	}
	version, err := s.Kubectl(t.Context(), args...)
	require.NoError(t, err)
	return strings.TrimSpace(version)
}

// fixture is an agent at a real API server. The test plays the host.
type fixture struct {
	testServer
	t         *testing.T
	name      string
	agent     *Agent
	logs      func() string
	transport *brokenTransport

	mu          sync.Mutex // guards the host
	facts       readiness.Facts
	servers     []evidence.Server
	unknown     []string
	answer      evidence.Identity
	observation v1alpha1.Observation
	events      loop.Signal
	// shutdowns receives, for each shutdown that the agent allows, whether the Node is cordoned
	// then.
	shutdowns chan bool
}

// start runs an agent for the node until the test ends.
func start(t *testing.T, s testServer, name string, prepare func(*fixture)) *fixture {
	t.Helper()
	log, logs := recordLog(t)
	f := &fixture{
		testServer: s, t: t, name: name, logs: logs, events: loop.NewSignal(), transport: &brokenTransport{},
		facts: closedNetwork(), shutdowns: make(chan bool, 8),
	}
	if prepare != nil {
		prepare(f)
	}
	config := s.Admin()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { f.transport.next = next; return f.transport })
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	core, err := typedcorev1.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	clusters, err := NewClusters(config, client)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	f.agent, err = New(Config{
		Node: name, Nodes: core.Nodes(), Events: core.Events(metav1.NamespaceDefault), Clusters: clusters,
		Network: func(context.Context) readiness.Facts { f.mu.Lock(); defer f.mu.Unlock(); return f.facts },
		AllowShutdown: func() error {
			n, err := s.nodes.Get(ctx, name, metav1.GetOptions{})
			f.shutdowns <- err == nil && n.Spec.Unschedulable
			return err
		},
		Etcd: func(context.Context) evidence.Findings {
			f.mu.Lock()
			defer f.mu.Unlock()
			return evidence.Findings{Found: f.servers, Unknown: f.unknown}
		},
		Watch: func(ctx context.Context, notify func()) error {
			for loop.Wait(ctx, time.Hour, f.events) == nil {
				notify()
			}
			return context.Cause(ctx)
		},
		Identify: func(context.Context, evidence.Server) evidence.Identity {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.answer
		},
		Observe: func(context.Context, evidence.Server, evidence.Identity) v1alpha1.Observation {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.observation
		},
		ListMembers: func(context.Context, evidence.Server, evidence.Identity) ([]v1alpha1.MemberStatus, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.observation.Members, nil
		},
		StaticPods: true, Tick: 10 * time.Second, Log: log,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		if t.Failed() {
			t.Logf("the log of the agent of %s:\n%s", name, logs())
		}
	})
	return f
}

// host changes the host, and notifies the agent.
func (f *fixture) host(change func(*fixture)) {
	f.mu.Lock()
	change(f)
	f.mu.Unlock()
	f.events.Notify()
}

// awaitPasses waits until the agent has read the EtcdCluster in this version or a later one, and
// has made a complete pass of the node loop since.
func (f *fixture) awaitPasses(version string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		c, exists, _ := f.agent.clusters.clusters.get(string(testCluster))
		if !exists {
			return false
		}
		order, err := resourceversion.CompareResourceVersion(c.ResourceVersion, version)
		return err == nil && order >= 0
	}, soon, time.Millisecond)
	for range 2 { // The first pass may have begun earlier.
		began := time.Now()
		f.events.Notify()
		require.Eventually(f.t, func() bool {
			last, _ := f.agent.nodeLoop.lastPass.get()
			return last.After(began)
		}, soon, time.Millisecond)
	}
}

// requireLog waits until the log contains a text.
func (f *fixture) requireLog(text string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return strings.Contains(f.logs(), text) }, soon, 10*time.Millisecond, text)
}

// event waits for an event with this reason, and returns its message.
func (f *fixture) event(reason string) string {
	f.t.Helper()
	var message string
	require.Eventually(f.t, func() bool {
		list, err := f.Client().CoreV1().Events(metav1.NamespaceDefault).List(f.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + f.name + ",reason=" + reason,
		})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		message = list.Items[0].Message
		return true
	}, soon, 20*time.Millisecond, "event %s", reason)
	return message
}

// entries returns the published observations, by node.
func (f *fixture) entries() map[string]v1alpha1.Observation {
	f.t.Helper()
	clusters, err := f.agent.cfg.Clusters.List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	observations, err := f.agent.cfg.Clusters.ListObservations(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	found := map[string]v1alpha1.Observation{}
	for i := range observations.Items {
		for _, c := range clusters.Items {
			for _, o := range observation.Join(&c, []*v1alpha1.EtcdObservation{&observations.Items[i]}).Observations {
				found[o.Node] = o
			}
		}
	}
	return found
}

// closedNetwork returns the facts of a host whose network is not ready.
func closedNetwork() readiness.Facts {
	return readiness.Facts{
		BootID: testBoot, Subnet: readiness.SubnetFile{Presence: readiness.Absent, Path: "/run/flannel/subnet.env"},
		Conflist: readiness.Conflist{Presence: readiness.Absent, Directory: "/etc/cni/net.d"},
	}
}

// openNetwork returns the facts of a host whose network is ready.
func openNetwork() readiness.Facts {
	f := closedNetwork()
	f.Subnet = readiness.SubnetFile{
		Presence: readiness.Present, Volatile: readiness.Present,
		Subnet: "10.244.1.1/24", Network: "10.244.0.0/16", MTU: "1450",
	}
	f.Conflist = readiness.Conflist{
		Presence: readiness.Present, Path: "/etc/cni/net.d/10-flannel.conflist", Name: "cbr0",
		Plugins: []readiness.Plugin{{Type: "flannel", Executable: readiness.Present}},
	}
	return f
}

// bornHeld returns a Node as the born-held policy leaves it.
func bornHeld(name string) *corev1.Node {
	record := readiness.Record{State: readiness.Held, BootID: testBoot, Reason: readiness.NewNode}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{readiness.HoldAnnotation: record.Format()}},
		Spec:       corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: readiness.HeldByHoldfast},
		}},
	}
}

// foundMember returns a member as the scanner finds it.
func foundMember(pid int) evidence.FoundServer {
	return evidence.FoundServer{
		Server:   evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: pid},
		Identity: evidence.Identity{Ref: evidence.MemberRef{Cluster: testCluster, Member: testMember}},
	}
}

func status(n *corev1.Node, of corev1.NodeConditionType) corev1.ConditionStatus {
	return condition(n, of).Status
}

// hasReason returns a condition of the test: the Node is held for this reason.
func hasReason(reason string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return condition(n, readiness.NetworkHeld).Reason == reason }
}

// isHeld reports whether the Node explains that it is held.
func isHeld(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue }

func isReleased(n *corev1.Node) bool {
	r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && r.State == readiness.Released
}

// isFree reports whether nothing of a hold is left.
func isFree(n *corev1.Node) bool {
	return isReleased(n) && !n.Spec.Unschedulable && status(n, corev1.NodeNetworkUnavailable) == corev1.ConditionFalse &&
		status(n, readiness.NetworkHeld) == corev1.ConditionFalse
}

func patch(t *testing.T, nodes typedcorev1.NodeInterface, name, body string) {
	t.Helper()
	_, err := nodes.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	require.NoError(t, err)
}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// recordLog returns a logger, and a function that returns what the logger has written.
func recordLog(t *testing.T) (*slog.Logger, func() string) {
	t.Helper()
	lines := &latest[string]{}
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) {
		lines.mu.Lock()
		defer lines.mu.Unlock()
		lines.value += string(p)
	}), nil)), func() string { text, _ := lines.get(); return text }
}

type writerFunc func([]byte)

func (w writerFunc) Write(p []byte) (int, error) { w(p); return len(p), nil }

// elapse lets time pass in a bubble until all goroutines are blocked again.
func elapse(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, loop.Wait(t.Context(), d, nil))
	synctest.Wait()
}

// pause waits in a function that the agent calls, unless the context ends first.
func pause(ctx context.Context, d time.Duration) error { return loop.Wait(ctx, d, nil) }
