package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// soon is the time limit for events that take milliseconds on an idle machine.
const soon = 30 * time.Second

// asAgent as the first argument makes the test binary an agent: a process that can be killed,
// without a second build.
const asAgent = "as-agent"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asAgent {
		os.Args = os.Args[1:]
		main()
	}
	os.Exit(m.Run())
}

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

// agentArgs returns the arguments of an agent without a health endpoint. As in the manifests, it
// holds new nodes itself if the policy does not.
func (f fixture) agentArgs(node, root string) []string {
	f.t.Helper()
	config, err := f.ServiceAccountConfig(f.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(f.t, err)
	args := []string{
		"run", "--node=" + node, "--kubeconfig=" + f.kubeconfig(config), "--host-root=" + root, "--health-listen=",
		"--trust-durable-subnet-file", "--log-format=text",
	}
	if !f.BornHeld() {
		args = append(args, "--hold-unrecorded")
	}
	return args
}

// startAgent runs `holdfast-agent run` for a node until the test ends. The agent must
// then end with exit code 0.
func (f fixture) startAgent(node, root string, flags ...string) *testlog.Buffer {
	f.t.Helper()
	args := append(f.agentArgs(node, root), flags...)
	log := &testlog.Buffer{}
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

// startProcess runs an agent like startAgent, in a process of its own.
func (f fixture) startProcess(node, root string) *process.Process {
	f.t.Helper()
	self, err := os.Executable()
	require.NoError(f.t, err)
	p, err := process.Start(process.Options{
		Name: node, Path: self, Args: append([]string{asAgent}, f.agentArgs(node, root)...),
		LogFile: filepath.Join(f.t.TempDir(), "log"),
	})
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("log of the agent of %s:\n%s", node, p.LogTail(60))
		}
		require.NoError(f.t, p.Kill())
	})
	return p
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

// patchNode changes a Node as its administrator.
func (f fixture) patchNode(name, body string) {
	f.t.Helper()
	nodes := f.Client().CoreV1().Nodes()
	_, err := nodes.Patch(f.t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	require.NoError(f.t, err)
}

func (f fixture) createRole(name string, rule rbacv1.PolicyRule) {
	f.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
	_, err := f.Client().RbacV1().ClusterRoles().Create(f.t.Context(), role, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

func (f fixture) bindRole(role string, subject rbacv1.Subject) {
	f.t.Helper()
	_, err := f.Client().RbacV1().ClusterRoleBindings().Create(f.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: subject.Name + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{subject},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

// patchCluster changes the spec of an EtcdCluster as the webhook does.
func (f fixture) patchCluster(cluster v1alpha1.ClusterID, spec map[string]any) {
	f.t.Helper()
	body, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(f.t, err)
	_, err = f.clusters.EtcdClusters.Patch(
		f.t.Context(), string(cluster), types.MergePatchType, body, metav1.PatchOptions{})
	require.NoError(f.t, err)
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
	f.patchCluster(cluster, map[string]any{"nonce": nonce})
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
