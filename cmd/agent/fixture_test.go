package main

import (
	"bytes"
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
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// soon is the time limit for events that take milliseconds on an idle machine.
const soon = 30 * time.Second

// execute executes a command line without a change to klog, which all tests share.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	return commandLine{out, errOut, func(*slog.Logger) {}}.execute(ctx, args)
}

// fixture is a real API server with the shipped manifests, and agents with the rights of
// those manifests.
type fixture struct {
	*apiserver.Server
	t        *testing.T
	clusters *apiaccess.Clusters
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	server := apiserver.NewInstalled(t)
	client, err := rest.HTTPClientFor(server.Admin())
	require.NoError(t, err)
	clusters, err := apiaccess.NewClusters(server.Admin(), client)
	require.NoError(t, err)
	return fixture{server, t, clusters}
}

// fixtureTest is a test that shares the API server of others: one with the manifests
// takes seconds to start.
type fixtureTest struct {
	name string
	run  func(*testing.T, fixture)
}

// runTests runs the tests in their order.
func (f fixture) runTests(tests []fixtureTest) {
	for _, test := range tests {
		f.t.Run(test.name, func(t *testing.T) { test.run(t, f.with(t)) })
	}
}

// with returns the fixture for a subtest.
func (f fixture) with(t *testing.T) fixture {
	f.t = t
	return f
}

// agentLog is the log of an agent.
type agentLog struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *agentLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *agentLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

// waitForText waits until the log contains a text.
func (l *agentLog) waitForText(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(l.String(), text) }, soon, 10*time.Millisecond, text)
}

// agentArgs returns the arguments of an agent without a health endpoint. As in the manifests, it
// holds new nodes itself if the policy does not.
func (f fixture) agentArgs(node, kubeconfig, root string) []string {
	args := []string{
		"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + root, "--health-listen=",
		"--trust-durable-subnet-file", "--log-format=text",
	}
	if !f.BornHeld() {
		args = append(args, "--hold-unrecorded")
	}
	return args
}

// startAgent runs `holdfast-agent run` for a node until the test ends. The agent must
// then end with exit code 0.
func (f fixture) startAgent(node, root string, flags ...string) *agentLog {
	f.t.Helper()
	config, err := f.ServiceAccountConfig(f.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(f.t, err)
	args := append(f.agentArgs(node, f.kubeconfig(config), root), flags...)
	log := &agentLog{}
	ctx, cancel := context.WithCancel(f.t.Context())
	exitCode := make(chan int, 1)
	go func() { exitCode <- execute(ctx, args, io.Discard, log) }()
	f.t.Cleanup(func() {
		cancel()
		code := <-exitCode
		if f.t.Failed() {
			f.t.Logf("log of the agent of %s:\n%s", node, log)
		}
		require.Zero(f.t, code, "exit code after a normal end")
	})
	return log
}

// kubeconfig writes a kubeconfig file.
func (f fixture) kubeconfig(config *rest.Config) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	require.NoError(f.t, apiserver.WriteKubeconfig(path, config))
	return path
}

// addNode registers a node as its kubelet does. Its podCIDR is that of installFlannel.
func (f fixture) addNode(spec apiserver.NodeSpec) *corev1.Node {
	f.t.Helper()
	spec.PodCIDR = podCIDR
	node, _, err := f.AddNode(f.t.Context(), spec)
	require.NoError(f.t, err)
	return node
}

func (f fixture) node(name string) *corev1.Node {
	f.t.Helper()
	n, err := f.Client().CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return n
}

// waitFor watches a Node until it is as wanted. The state describes what is wanted.
func (f fixture) waitFor(name, state string, isWanted func(*corev1.Node) bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), soon)
	defer cancel()
	events, err := f.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(f.t, err)
	defer events.Stop()
	for e := range events.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && isWanted(n) {
			return
		}
	}
	require.Failf(f.t, "timed out waiting for a node", "%s: %s: %+v", name, state, f.node(name))
}

// kubectl runs kubectl, which must succeed.
func (f fixture) kubectl(args ...string) string {
	f.t.Helper()
	out, err := f.Kubectl(f.t.Context(), args...)
	require.NoError(f.t, err)
	return out
}

// observations returns the observations of the only EtcdCluster, by node.
func (f fixture) observations() map[string]v1alpha1.Observation {
	f.t.Helper()
	clusters, err := f.clusters.EtcdClusters.List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	all, err := f.clusters.Observations.List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	found := map[string]v1alpha1.Observation{}
	for i := range all.Items {
		for _, c := range clusters.Items {
			for _, o := range observation.Join(&c, []*v1alpha1.EtcdObservation{&all.Items[i]}).Observations {
				found[o.Node] = o
			}
		}
	}
	return found
}

// requestObservations writes a nonce as the webhook does, and waits for the observations
// of these nodes.
func (f fixture) requestObservations(cluster v1alpha1.ClusterID, nonce string, nodes ...string) {
	f.t.Helper()
	f.kubectl("patch", "etcdcluster", string(cluster), "--type=merge", "-p", `{"spec":{"nonce":"`+nonce+`"}}`)
	start := time.Now()
	require.Eventually(f.t, func() bool {
		found := f.observations()
		for _, node := range nodes {
			if found[node].Nonce != nonce {
				return false
			}
		}
		return true
		// An agent that the nonce does not wake publishes once a minute.
	}, soon, 5*time.Millisecond, "observations for %q", nonce)
	f.t.Logf("%d observations after %s", len(nodes), time.Since(start).Round(time.Millisecond))
}

// condition returns a condition of a Node, or an empty one.
func condition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	if c := readiness.FindCondition(n, of); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}

// writeHostFile writes a file below the root of a host, in one step.
func writeHostFile(t *testing.T, root, path, text string) {
	t.Helper()
	file := filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o755))
	require.NoError(t, os.Rename(file+".new", file))
}

// newHost returns the root of a host that has booted, without any configuration.
func newHost(t *testing.T, boot int) string {
	t.Helper()
	root := t.TempDir()
	setBootID(t, root, bootID(boot))
	return root
}

func setBootID(t *testing.T, root, id string) {
	t.Helper()
	writeHostFile(t, root, "/proc/sys/kernel/random/boot_id", id+"\n")
}

func bootID(i int) string { return fmt.Sprintf("6f6b9d3c-1f2b-4c3f-9d3e-%012d", i) }

// podCIDR contains the subnet of installFlannel.
const podCIDR = "10.244.1.0/24"

// installFlannel makes the host's network work. Like flannel, it writes the subnet file last.
func installFlannel(t *testing.T, root string) {
	t.Helper()
	installFlannelCNI(t, root)
	writeHostFile(t, root, "/run/flannel/subnet.env",
		"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
}

// installFlannelCNI writes the files of flannel's init containers.
func installFlannelCNI(t *testing.T, root string) {
	t.Helper()
	for _, plugin := range strings.Fields("flannel portmap bridge host-local loopback") {
		writeHostFile(t, root, "/opt/cni/bin/"+plugin, "#!/bin/sh\n")
	}
	writeHostFile(t, root, "/etc/cni/net.d/10-flannel.conflist", `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
		{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`)
}
