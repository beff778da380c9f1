package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/agent"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// soon is the bound for what takes milliseconds on an idle machine.
const soon = 30 * time.Second

// command is a command line in a process that is not its own.
func command(ctx context.Context, args []string, out, errOut io.Writer) int {
	return program{out: out, errOut: errOut, bridge: func(*slog.Logger) {}}.command(ctx, args)
}

// site is a real API server with the shipped manifests, and agents with the rights that those give them.
type site struct {
	*testenv.APIServer
	t        *testing.T
	clusters *agent.Clusters
}

func startSite(t *testing.T) site {
	t.Helper()
	server := testenv.NewInstalledAPIServer(t)
	client, err := rest.HTTPClientFor(server.Admin())
	require.NoError(t, err)
	clusters, err := agent.NewClusters(server.Admin(), client)
	require.NoError(t, err)
	return site{server, t, clusters}
}

// transcript is what an agent writes to its standard error.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

// run is `agent run` for a node until the test ends, which it must do in good order.
func (s site) run(node, root string, flags ...string) *transcript {
	s.t.Helper()
	config, err := s.ServiceAccountConfig(s.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(s.t, err)
	kubeconfig := filepath.Join(s.t.TempDir(), "kubeconfig")
	require.NoError(s.t, testenv.WriteKubeconfig(kubeconfig, config))
	args := append([]string{
		"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + root, "--health-listen=",
		"--trust-durable-subnet-file", "--log-format=text",
	}, flags...)
	said := &transcript{}
	ctx, cancel := context.WithCancel(s.t.Context())
	status := make(chan int, 1)
	go func() { status <- command(ctx, args, io.Discard, said) }()
	s.t.Cleanup(func() {
		cancel()
		code := <-status
		if s.t.Failed() {
			s.t.Logf("the agent of %s said:\n%s", node, said)
		}
		require.Zero(s.t, code, "an agent that is asked to end has not failed")
	})
	return said
}

func (s site) node(name string) *corev1.Node {
	s.t.Helper()
	n, err := s.Client().CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return n
}

// until waits for a Node to be as wanted, by watching it.
func (s site) until(name, what string, wanted func(*corev1.Node) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	events, err := s.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(s.t, err)
	defer events.Stop()
	for e := range events.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && wanted(n) {
			return
		}
	}
	require.Failf(s.t, "the node did not become as wanted", "%s: %s: %+v", name, what, s.node(name))
}

// entries are the observations in the one EtcdCluster there is, by node.
func (s site) entries() map[string]v1alpha1.Observation {
	s.t.Helper()
	list, err := s.clusters.List(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	found := map[string]v1alpha1.Observation{}
	for _, c := range list.Items {
		for _, o := range c.Status.Observations {
			found[o.Node] = o
		}
	}
	return found
}

// ask writes a nonce as the webhook does and waits for the answers of these nodes.
func (s site) ask(cluster v1alpha1.ClusterID, nonce string, nodes ...string) {
	s.t.Helper()
	_, err := s.Kubectl(s.t.Context(), "patch", "etcdcluster", string(cluster), "--type=merge", "-p", `{"spec":{"nonce":"`+nonce+`"}}`)
	require.NoError(s.t, err)
	began := time.Now()
	require.Eventually(s.t, func() bool {
		found := s.entries()
		for _, node := range nodes {
			if found[node].Nonce != nonce {
				return false
			}
		}
		return true
	}, 5*time.Second, 5*time.Millisecond, "answers to %q", nonce) // a member that hangs costs 1.5 s of it
	s.t.Logf("%d answers after %s", len(nodes), time.Since(began).Round(time.Millisecond))
}

func is(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// put places a file into a host.
func put(t *testing.T, root, path, text string, mode os.FileMode) {
	t.Helper()
	at := filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at+".new", []byte(text), mode))
	require.NoError(t, os.Rename(at+".new", at))
}

// flannel makes the host's network work, subnet file last, as flannel and its init containers do.
func flannel(t *testing.T, root string) {
	t.Helper()
	flannelButSubnet(t, root)
	put(t, root, "/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", 0o644)
}

// flannelButSubnet is what flannel's init containers leave.
func flannelButSubnet(t *testing.T, root string) {
	t.Helper()
	for _, plugin := range strings.Fields("flannel portmap bridge host-local loopback") {
		put(t, root, "/opt/cni/bin/"+plugin, "#!/bin/sh\n", 0o755)
	}
	put(t, root, "/etc/cni/net.d/10-flannel.conflist", `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
		{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}`, 0o644)
}

func bootID(i int) string { return fmt.Sprintf("6f6b9d3c-1f2b-4c3f-9d3e-%012d", i) }
