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

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// beAnAgent in the environment makes the test binary the agent: a process of its own that can be killed.
const beAnAgent = "HOLDFAST_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(beAnAgent) != "" {
		os.Exit(command(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// executioner stands between an agent and the API server and kills the agent at one of its writes to the Node: before the
// server has it, or after, when the agent has not heard of it.
type executioner struct {
	next   http.Handler
	before bool

	mu     sync.Mutex // guards what follows
	left   int        // how many writes are to be let through; -1 as soon as the one is there at which it is killed
	victim *testenv.Process
	killed bool
}

func (e *executioner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/nodes/") || !e.due() {
		e.next.ServeHTTP(w, r)
		return
	}
	if !e.before {
		e.next.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.killed = e.victim.Kill() == nil
}

func (e *executioner) due() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left--
	return e.left == -1
}

func (e *executioner) struck() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left < 0
}

// proxy serves the agent of a node on loopback in plain HTTP, over which client-go sends no token.
func (s site) proxy(e *executioner, node string) string {
	s.t.Helper()
	config, err := s.ServiceAccountConfig(s.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(s.t, err)
	target, err := url.Parse(config.Host)
	require.NoError(s.t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(s.t, err)
	e.next = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {}, // the agent is dead: nobody listens
	}
	server := httptest.NewServer(e)
	s.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// launch starts an agent in a process of its own, with the executioner before the API server.
func (s site) launch(node, root string, e *executioner) *testenv.Process {
	s.t.Helper()
	dir := s.t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(s.t, testenv.WriteKubeconfig(kubeconfig, &rest.Config{Host: s.proxy(e, node)}))
	self, err := os.Executable()
	require.NoError(s.t, err)
	process, err := testenv.StartProcess(testenv.ProcessOptions{
		Name: "agent", Path: self, Env: []string{beAnAgent + "=1"}, Dir: dir, LogFile: filepath.Join(dir, "log"), Args: []string{
			"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + root, "--health-listen=", "--trust-durable-subnet-file",
		},
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		require.NoError(s.t, process.Kill())
		if s.t.Failed() {
			s.t.Logf("the agent of %s said:\n%s", node, process.LogTail(20))
		}
	})
	return process
}

// watched follows a Node from its creation on and says whether it ever was open before it might.
func (s site) watched(name string) (mayOpen func(), tooEarly func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	events, err := s.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: "0"})
	require.NoError(s.t, err)
	var mu sync.Mutex
	may, early, ended := false, false, make(chan struct{})
	go func() {
		defer close(ended)
		held := false
		for e := range events.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				continue
			}
			mu.Lock()
			early = early || held && !n.Spec.Unschedulable && !may
			mu.Unlock()
			held = held || n.Spec.Unschedulable
		}
	}()
	s.t.Cleanup(func() { cancel(); events.Stop(); <-ended })
	return func() { mu.Lock(); defer mu.Unlock(); may = true }, func() bool { mu.Lock(); defer mu.Unlock(); return early }
}

// TestAgentIsKilledAtEveryPointOfAHold runs a hold from its beginning to its end, again and again, and kills the agent with
// SIGKILL at its first write, its second, until there is none left. Another agent is started each time, and comes to the
// same end.
func TestAgentIsKilledAtEveryPointOfAHold(t *testing.T) {
	s := startSite(t)
	_, err := s.StartControllers("node-lifecycle-controller") // which puts a taint back between the two writes of a release
	require.NoError(t, err)
	rebooted := readiness.Record{State: readiness.Released, BootID: bootID(8), Reason: readiness.NetworkReady}.Format()
	for name, prepare := range map[string]func(*testing.T, string){
		"born held": func(t *testing.T, node string) {
			_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: node, BootID: bootID(9)})
			require.NoError(t, err)
		},
		"held after a reboot": func(t *testing.T, node string) {
			_, err := testenv.RegisterNode(t.Context(), s.Admin(), testenv.NodeSpec{
				Name: node, BootID: bootID(9), Annotations: map[string]string{readiness.HoldAnnotation: rebooted},
			})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{true, false} {
				writes := 0
				for s.killAt(t, fmt.Sprintf("%s-%t-%d", strings.ReplaceAll(name, " ", "-"), before, writes), writes, before, prepare) {
					writes++
				}
				require.GreaterOrEqual(t, writes, 3, "a hold that is begun or explained, ended, and its conditions")
			}
		})
	}
}

// killAt says whether there was such a write.
func (s site) killAt(t *testing.T, node string, writes int, before bool, prepare func(*testing.T, string)) (killed bool) {
	t.Run(fmt.Sprintf("write %d, before the server has it: %t", writes+1, before), func(t *testing.T) {
		s.t = t
		root := t.TempDir()
		put(t, root, "/proc/sys/kernel/random/boot_id", bootID(9)+"\n", 0o444)
		prepare(t, node)
		mayOpen, tooEarly := s.watched(node)
		e := &executioner{before: before, left: writes}
		e.mu.Lock()
		e.victim = s.launch(node, root, e)
		e.mu.Unlock()
		held := func(n *corev1.Node) bool {
			return n.Spec.Unschedulable && is(n, readiness.NetworkHeld).Status == corev1.ConditionTrue
		}
		dead := func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.killed }
		require.Eventually(t, func() bool { return dead() || held(s.node(node)) }, soon, 5*time.Millisecond)
		again := dead() // asked once: a write may show before the agent that made it is dead
		if again {
			s.launch(node, root, &executioner{left: 1 << 20})
			s.until(node, "held", held)
		}
		require.False(t, tooEarly(), "it was open before its network was there")
		mayOpen()
		flannel(t, root)
		// Nothing is left to write then. An agent that starts with its gates open may release before it has looked for etcd, and
		// until it has, the marks for autoscalers stay.
		ended := func(n *corev1.Node) bool {
			r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
			_, marked := n.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"]
			return err == nil && r.State == readiness.Released && !n.Spec.Unschedulable && is(n, readiness.NetworkHeld).Status == corev1.ConditionFalse &&
				is(n, corev1.NodeNetworkUnavailable).Status != corev1.ConditionTrue && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionFalse &&
				len(leftovers(n)) == 0 && !marked
		}
		require.Eventually(t, func() bool { return dead() && !again || ended(s.node(node)) }, soon, 5*time.Millisecond)
		if killed = e.struck(); killed {
			require.Eventually(t, dead, soon, 5*time.Millisecond)
		}
		if killed && !again {
			s.launch(node, root, &executioner{left: 1 << 20})
		}
		s.until(node, "released", ended)
	})
	return killed
}
