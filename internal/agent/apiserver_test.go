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
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	testBoot = "6f6b9d3c-1f2b-4c3f-9d3e-0a4f5a1d2e3f"
	// soon is the bound for what takes milliseconds on an idle machine.
	soon = 20 * time.Second
)

// cluster is a real API server for several agents.
type cluster struct {
	*testenv.APIServer
	nodes typedcorev1.NodeInterface
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	server := testenv.NewAPIServer(t)
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	crd := filepath.Join(root, "manifests", "base", "crd", "holdfast.dev_etcdclusters.yaml")
	_, err = server.Kubectl(t.Context(), "apply", "--server-side", "-f", crd)
	require.NoError(t, err)
	_, err = server.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=30s", "-f", crd)
	require.NoError(t, err)
	return cluster{server, server.Client().CoreV1().Nodes()}
}

// rig is an agent on a host that the test plays, at a real API server.
type rig struct {
	cluster
	t     *testing.T
	name  string
	agent *Agent
	said  func() string
	fault *fault

	mu        sync.Mutex // guards the host
	facts     readiness.Facts
	sightings []protect.Sighting
	unknown   []string
	answer    protect.Answer
	seen      v1alpha1.Observation
	events    bell
	// letGo gets the Node's cordon as it was each time that the agent let the host go down.
	letGo chan bool
}

// fault stands between the agent and the API server and breaks what nothing real breaks at will.
type fault struct {
	mu     sync.Mutex
	broken func(*http.Request) int // the status to answer with, 0 to let through
	next   http.RoundTripper
}

func (f *fault) set(broken func(*http.Request) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = broken
}

func (f *fault) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	broken := f.broken
	f.mu.Unlock()
	if broken == nil {
		return f.next.RoundTrip(r)
	}
	status := broken(r)
	if status == 0 {
		return f.next.RoundTrip(r)
	}
	reason := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusConflict: metav1.StatusReasonConflict,
	}[status]
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"broken by the test","reason":%q,"code":%d}`, reason, status)
	recorded := &http.Response{
		StatusCode: status, Status: http.StatusText(status), Request: r, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: readCloser{strings.NewReader(body)}, ContentLength: int64(len(body)),
	}
	return recorded, nil
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// start runs an agent for the node until the test ends.
func start(t *testing.T, c cluster, name string, prepare func(*rig)) *rig {
	t.Helper()
	log, said := record(t)
	r := &rig{cluster: c, t: t, name: name, said: said, events: newBell(), fault: &fault{}, facts: closed(), letGo: make(chan bool, 8)}
	if prepare != nil {
		prepare(r)
	}
	config := c.Admin()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { r.fault.next = next; return r.fault })
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	core, err := typedcorev1.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	clusters, err := NewClusters(config, client)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r.agent, err = New(Config{
		Node: name, Nodes: core.Nodes(), Events: core.Events(metav1.NamespaceDefault), Clusters: clusters,
		Network: func(context.Context) readiness.Facts { r.mu.Lock(); defer r.mu.Unlock(); return r.facts },
		LetGo: func() error {
			n, err := c.nodes.Get(ctx, name, metav1.GetOptions{})
			r.letGo <- err == nil && n.Spec.Unschedulable
			return err
		},
		Etcd: func(context.Context) ([]protect.Sighting, []string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.sightings, r.unknown
		},
		Watch: func(ctx context.Context, notify func()) error {
			for {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-r.events:
					notify()
				}
			}
		},
		Identify: func(context.Context, protect.Sighting) protect.Answer {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.answer
		},
		Observe: func(context.Context, protect.Sighting, protect.Answer) v1alpha1.Observation {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.seen
		},
		StaticPods: true, Tick: 10 * time.Second, Log: log,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- r.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		if t.Failed() {
			t.Logf("the agent of %s said:\n%s", name, said())
		}
	})
	return r
}

// host changes the host, and lets the watch see it.
func (r *rig) host(change func(*rig)) {
	r.mu.Lock()
	change(r)
	r.mu.Unlock()
	r.events.ring()
}

func closed() readiness.Facts {
	return readiness.Facts{
		BootID: testBoot, Subnet: readiness.SubnetFile{Presence: readiness.Absent, Path: "/run/flannel/subnet.env"},
		Conflist: readiness.Conflist{Presence: readiness.Absent, Directory: "/etc/cni/net.d"},
	}
}

func open() readiness.Facts {
	f := closed()
	f.Subnet = readiness.SubnetFile{Presence: readiness.Present, Volatile: readiness.Present, Subnet: "10.244.1.1/24", Network: "10.244.0.0/16", MTU: "1450"}
	f.Conflist = readiness.Conflist{
		Presence: readiness.Present, Path: "/etc/cni/net.d/10-flannel.conflist", Name: "cbr0",
		Plugins: []readiness.Plugin{{Type: "flannel", Executable: readiness.Present}},
	}
	return f
}

// bornHeld is a Node as the born-held policy leaves it.
func bornHeld(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			readiness.HoldAnnotation: readiness.Record{State: readiness.Held, BootID: testBoot, Reason: readiness.NewNode}.Format(),
		}},
		Spec: corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: readiness.HeldByHoldfast},
		}},
	}
}

func (c cluster) register(t *testing.T, n *corev1.Node) *corev1.Node {
	t.Helper()
	made, err := c.nodes.Create(t.Context(), n, metav1.CreateOptions{})
	require.NoError(t, err)
	return made
}

// until waits for the Node to be as wanted, by watching it.
func (c cluster) until(t *testing.T, name, what string, wanted func(*corev1.Node) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	events, err := c.nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
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

func status(n *corev1.Node, of corev1.NodeConditionType) corev1.ConditionStatus {
	return condition(n, of).Status
}

func released(n *corev1.Node) bool {
	r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && r.State == readiness.Released
}

// told waits for an event of that reason and returns its message.
func (r *rig) told(reason string) string {
	r.t.Helper()
	var message string
	require.Eventually(r.t, func() bool {
		list, err := r.Client().CoreV1().Events(metav1.NamespaceDefault).List(r.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + r.name + ",reason=" + reason,
		})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		message = list.Items[0].Message
		return true
	}, soon, 20*time.Millisecond, "event %s", reason)
	return message
}

func patch(t *testing.T, nodes typedcorev1.NodeInterface, name, body string, sub ...string) {
	t.Helper()
	_, err := nodes.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
	require.NoError(t, err)
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// manifest writes a manifest to a file and returns its path.
func manifest(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "object.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
