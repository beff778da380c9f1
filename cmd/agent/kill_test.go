package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// killingProxy is a proxy between an agent and the API server. It kills the agent at one
// of its writes to the Node: before the API server has received the write, or after, when
// the agent has no response yet.
type killingProxy struct {
	next   http.Handler
	before bool

	mu sync.Mutex // guards the fields below
	// Number of writes to pass on; negative after the write at which the agent is killed.
	left   int
	agent  *process.Process
	killed bool
}

func (p *killingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/nodes/") || !p.countWrite() {
		p.next.ServeHTTP(w, r)
		return
	}
	if !p.before {
		p.next.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = p.agent.Kill() == nil
}

// countWrite returns true for the write at which the agent is killed.
func (p *killingProxy) countWrite() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left--
	return p.left == -1
}

func (p *killingProxy) hasReachedWrite() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left < 0
}

func (p *killingProxy) hasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// start serves the agent of a node on loopback. It uses plain HTTP, over which client-go
// sends no token.
func (p *killingProxy) start(f fixture, node string) string {
	f.t.Helper()
	config, err := f.ServiceAccountConfig(f.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(f.t, err)
	target, err := url.Parse(config.Host)
	require.NoError(f.t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(f.t, err)
	p.next = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		// The agent is dead and reads no response.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {},
	}
	server := httptest.NewServer(p)
	f.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// startAgentProcess starts an agent in a process of its own, behind the proxy.
func (f fixture) startAgentProcess(node, root string, p *killingProxy) *process.Process {
	f.t.Helper()
	self, err := os.Executable()
	require.NoError(f.t, err)
	dir := f.t.TempDir()
	process, err := process.Start(process.Options{
		Name: "agent", Path: self, Env: []string{agentEnv + "=1"}, Dir: dir, LogFile: filepath.Join(dir, "log"),
		Args: f.agentArgs(node, f.kubeconfig(&rest.Config{Host: p.start(f, node)}), root),
	})
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		require.NoError(f.t, process.Kill())
		if f.t.Failed() {
			f.t.Logf("log of the agent of %s:\n%s", node, process.LogTail(20))
		}
	})
	return process
}

// watchForEarlyRelease watches a Node from its creation. wasEarly returns whether a held
// Node was open before the call of allow.
func (f fixture) watchForEarlyRelease(name string) (allow func(), wasEarly func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0"}
	events, err := f.Client().CoreV1().Nodes().Watch(ctx, options)
	require.NoError(f.t, err)
	var mu sync.Mutex
	isAllowed, early, ended := false, false, make(chan struct{})
	go func() {
		defer close(ended)
		wasHeld := false
		for e := range events.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				continue
			}
			mu.Lock()
			early = early || wasHeld && !n.Spec.Unschedulable && !isAllowed
			mu.Unlock()
			wasHeld = wasHeld || n.Spec.Unschedulable
		}
	}()
	f.t.Cleanup(func() { cancel(); events.Stop(); <-ended })
	allow = func() { mu.Lock(); defer mu.Unlock(); isAllowed = true }
	wasEarly = func() bool { mu.Lock(); defer mu.Unlock(); return early }
	return allow, wasEarly
}

// TestKillDuringHold runs a hold from its beginning to its end, and kills the agent with
// SIGKILL at its first write. It repeats this with the second write and so on, until the
// agent makes no further write. Each time another agent starts, and must reach the same
// end.
func TestKillDuringHold(t *testing.T) {
	f := newFixture(t)
	// It puts a taint back between the two writes of a release.
	_, err := f.StartControllers("node-lifecycle-controller")
	require.NoError(t, err)
	rebooted := readiness.Record{State: readiness.Released, BootID: bootID(8), Reason: readiness.NetworkReady}.Format()
	for name, createNode := range map[string]func(*testing.T, string){
		"born held": func(t *testing.T, node string) {
			f.with(t).addNode(apiserver.NodeSpec{Name: node, BootID: bootID(9)})
		},
		"held after a reboot": func(t *testing.T, node string) {
			_, err := apiserver.RegisterNode(t.Context(), f.Admin(), apiserver.NodeSpec{
				Name: node, BootID: bootID(9), PodCIDR: podCIDR, Annotations: map[string]string{readiness.HoldAnnotation: rebooted},
			})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{true, false} {
				writes := 0
				node := func() string { return fmt.Sprintf("%s-%t-%d", strings.ReplaceAll(name, " ", "-"), before, writes) }
				for f.killAtWrite(t, node(), writes, before, createNode) {
					writes++
				}
				require.GreaterOrEqual(t, writes, 3, "a hold needs at least: begin or explain, end, conditions")
			}
		})
	}
}

// killAtWrite returns whether the agent made the write at which it is to be killed.
func (f fixture) killAtWrite(
	t *testing.T, node string, writes int, before bool, createNode func(*testing.T, string),
) (reached bool) {
	t.Run(fmt.Sprintf("write %d, before=%t", writes+1, before), func(t *testing.T) {
		f := f.with(t)
		root := newHost(t, 9)
		createNode(t, node)
		allow, wasEarly := f.watchForEarlyRelease(node)
		p := &killingProxy{before: before, left: writes}
		p.mu.Lock()
		p.agent = f.startAgentProcess(node, root, p)
		p.mu.Unlock()
		startSecond := func() { f.startAgentProcess(node, root, &killingProxy{left: 1 << 20}) }
		require.Eventually(t, func() bool { return p.hasKilled() || isHeldNode(f.node(node)) }, soon, 5*time.Millisecond)
		// Read this once: a write can be visible before the agent that made it is dead.
		hasSecond := p.hasKilled()
		if hasSecond {
			startSecond()
			f.waitFor(node, "held", isHeldNode)
		}
		require.False(t, wasEarly(), "the node was released before its network worked")
		allow()
		installFlannel(t, root)
		// In this state the agent has nothing left to write. An agent that starts with
		// open gates can release the node before it has searched for etcd. Until then the
		// marks for autoscalers stay.
		isDone := func(n *corev1.Node) bool {
			_, marked := n.Annotations[autoscaler.ClusterAutoscaler]
			return isReleasedNode(n) && etcdCondition(n).Status == corev1.ConditionFalse &&
				len(controllerTaints(n)) == 0 && !marked
		}
		require.Eventually(t, func() bool {
			return p.hasKilled() && !hasSecond || isDone(f.node(node))
		}, soon, 5*time.Millisecond)
		if reached = p.hasReachedWrite(); reached {
			require.Eventually(t, p.hasKilled, soon, 5*time.Millisecond)
		}
		if reached && !hasSecond {
			startSecond()
		}
		f.waitFor(node, "released", isDone)
	})
	return reached
}
