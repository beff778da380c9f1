//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// nodeImage is the node image that kind v0.33.0 published. KIND_NODE_IMAGE overrides it.
	nodeImage = "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed"
	namespace = "holdfast-system"
	// shortTimeout limits operations that take a moment on an idle machine. longTimeout limits
	// the start of pods and nodes.
	shortTimeout, longTimeout = 2 * time.Minute, 8 * time.Minute
)

// A kindCluster is a kind cluster. Its first three workers run etcd, the last one joins in the
// tests.
type kindCluster struct {
	name, kubeconfig string
	root, tools      string
	config           *rest.Config
	client           *kubernetes.Clientset
	etcd             *etcdUnits
}

// newKindCluster creates a cluster with a pod network, or uses the one of E2E_KUBECONFIG. It
// deletes a cluster that it created, unless E2E_KEEP is set.
func newKindCluster(t *testing.T) *kindCluster {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	c := &kindCluster{
		name: "holdfast-e2e", root: root, tools: filepath.Join(root, "bin"),
		kubeconfig: os.Getenv("E2E_KUBECONFIG"),
	}
	if c.kubeconfig == "" {
		c.create(t)
	}
	t.Cleanup(func() { // runs before the cluster is deleted
		if t.Failed() {
			c.saveEvidence(context.WithoutCancel(t.Context()), t)
		}
	})
	c.connect(t)
	c.kubectl(t, "apply", "-f", "flannel.yaml")
	c.loadImages(t) // while flannel starts
	c.kubectl(t, "-n", "kube-flannel", "wait", "--for=jsonpath={.status.numberReady}=5", "daemonset/flannel",
		"--timeout", longTimeout.String())
	c.waitFor(t, "5 Ready nodes with flannel's annotations", longTimeout, func(ctx context.Context) (bool, string) {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, n := range nodes.Items {
			if !conditionIs(&n, corev1.NodeReady, corev1.ConditionTrue) ||
				!conditionIs(&n, corev1.NodeNetworkUnavailable, corev1.ConditionFalse) ||
				strings.Contains(fmt.Sprint(n.Spec.Taints), "node.kubernetes.io/") ||
				n.Annotations["flannel.alpha.coreos.com/public-ip"] == "" {
				return false, describe(&n)
			}
		}
		return len(nodes.Items) == 5, "a node is missing"
	})
	c.etcd = &etcdUnits{c: c}
	return c
}

func (c *kindCluster) create(t *testing.T) {
	t.Helper()
	image := os.Getenv("KIND_NODE_IMAGE")
	if image == "" {
		image = nodeImage
	}
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if os.Getenv("E2E_KEEP") != "" {
		c.kubeconfig = filepath.Join(c.tools, "e2e.kubeconfig")
	}
	t.Cleanup(func() {
		if os.Getenv("E2E_KEEP") != "" {
			t.Logf("kept the cluster: E2E_KUBECONFIG=%s; delete it with: kind delete cluster --name %s", c.kubeconfig,
				c.name)
			return
		}
		c.delete(t)
	})
	c.delete(t) // a run that was interrupted leaves its cluster
	start := time.Now()
	c.run(t, c.tool("kind"), "create", "cluster", "--name", c.name, "--image", image, "--config", "cluster.yaml",
		"--kubeconfig", c.kubeconfig, "--wait", "0s")
	t.Logf("created the cluster in %s", time.Since(start).Round(time.Second))
}

// delete deletes the cluster, if it exists.
func (c *kindCluster) delete(t *testing.T) {
	t.Helper()
	for range 3 { // Docker gives up on a container that stops slowly
		_, err := c.tryRun(context.WithoutCancel(t.Context()), c.tool("kind"), "delete", "cluster", "--name",
			c.name, "--kubeconfig", c.kubeconfig)
		if err == nil {
			return
		}
		t.Logf("failed to delete the cluster: %v", err)
	}
}

func (c *kindCluster) connect(t *testing.T) {
	t.Helper()
	var err error
	c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	require.NoError(t, err)
	c.config.QPS, c.config.Burst = 100, 200
	c.config.WarningHandler = rest.NoWarnings{}
	c.client, err = kubernetes.NewForConfig(c.config)
	require.NoError(t, err)
	controlPlane, err := c.client.CoreV1().Nodes().List(t.Context(),
		metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	require.NoError(t, err)
	require.Len(t, controlPlane.Items, 1)
	c.name = strings.TrimSuffix(controlPlane.Items[0].Name, "-control-plane")
}

// loadImages loads images onto the nodes: Holdfast's, which `make images` builds, and that of
// the tests' own pods.
func (c *kindCluster) loadImages(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	c.run(t, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "echo"),
		"./echo")
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "Dockerfile"),
			[]byte("FROM scratch\nCOPY echo /echo\nENTRYPOINT [\"/echo\"]\n"), 0o600))
	c.run(t, "env", "DOCKER_BUILDKIT=0", "docker", "build", "-q", "-t", "holdfast-e2e-echo:v1", dir)
	version := c.version(t)
	c.run(t, c.tool("kind"), "load", "docker-image", "holdfast-agent:"+version, "holdfast-webhook:"+version,
		"kubectl-holdfast:"+version, "holdfast-e2e-echo:v1", "--name", c.name)
}

// version returns the tag of the images that the manifests and the chart name.
func (c *kindCluster) version(t *testing.T) string {
	t.Helper()
	chart, err := os.ReadFile(filepath.Join(c.root, "charts/holdfast/Chart.yaml"))
	require.NoError(t, err)
	_, version, found := strings.Cut(string(chart), "\nappVersion: ")
	require.True(t, found)
	version, _, _ = strings.Cut(version, "\n")
	return version
}

// worker returns the name of a worker, starting at 1.
func (c *kindCluster) worker(i int) string {
	return c.name + "-worker" + map[bool]string{true: "", false: string(rune('0' + i))}[i == 1]
}

func (c *kindCluster) controlPlane() string { return c.name + "-control-plane" }

// node reads a Node.
func (c *kindCluster) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return n
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	if c := readiness.FindCondition(n, kind); c != nil {
		return *c
	}
	return corev1.NodeCondition{Type: kind, Message: "(no such condition)"}
}

func conditionIs(n *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) bool {
	return condition(n, kind).Status == status
}

// saveEvidence saves the state of the cluster after a failure, and logs the directory.
func (c *kindCluster) saveEvidence(ctx context.Context, t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-e2e-"+time.Now().Format("150405")+"-")
	if err != nil {
		t.Logf("failed to save the state: %v", err)
		return
	}
	for file, args := range map[string][]string{
		"nodes.txt":        {"describe", "nodes"},
		"nodes.yaml":       {"get", "nodes", "-o", "yaml"},
		"pods.txt":         {"get", "pods", "-A", "-o", "wide"},
		"events.txt":       {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"etcdclusters.yml": {"get", "etcdclusters,etcdobservations", "-o", "yaml"},
		"agents.log": {
			"-n", namespace, "logs", "-l", "app.kubernetes.io/name=holdfast-agent", "--prefix",
			"--tail=-1", "--max-log-requests=20",
		},
		"webhook.log": {
			"-n", namespace, "logs", "-l", "app.kubernetes.io/name=holdfast-webhook", "--prefix",
			"--tail=-1",
		},
	} {
		out, err := c.tryRun(ctx, c.tool("kubectl"), args...)
		if err != nil {
			out += "\n" + err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(out), 0o600); err != nil {
			t.Logf("failed to save %s: %v", file, err)
		}
		if lines := strings.Split(strings.TrimSpace(out), "\n"); file == "agents.log" || file == "webhook.log" ||
			file == "events.txt" {
			t.Logf("end of %s:\n%s", file, strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	}
	t.Logf("saved the state in %s", dir)
}
