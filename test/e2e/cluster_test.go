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

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	// nodeImage is what kind v0.33.0 published for itself; KIND_NODE_IMAGE is taken instead if it is set.
	nodeImage = "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed"
	namespace = "holdfast-system"
	// soon is for what takes a moment on a machine that does nothing else, long for pods and nodes that have to come up.
	soon, long = 2 * time.Minute, 8 * time.Minute
)

// cluster is a kind cluster. Its first three workers run etcd, the last one is there to join.
type cluster struct {
	name, kubeconfig string
	root, tools      string
	config           *rest.Config
	client           *kubernetes.Clientset
	etcd             *etcd
}

// newCluster makes a cluster with a pod network, or takes the one of E2E_KUBECONFIG. It is deleted in the end unless
// E2E_KEEP is set or it was there before.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	root, err := testenv.RepositoryRoot()
	require.NoError(t, err)
	c := &cluster{name: "holdfast-e2e", root: root, tools: filepath.Join(root, "bin"), kubeconfig: os.Getenv("E2E_KUBECONFIG")}
	if c.kubeconfig == "" {
		c.create(t)
	}
	t.Cleanup(func() { // runs before the cluster is deleted
		if t.Failed() {
			c.saveEvidence(context.WithoutCancel(t.Context()), t)
		}
	})
	c.connect(t)
	c.load(t)
	c.kubectl(t, "apply", "-f", "flannel.yaml")
	c.kubectl(t, "-n", "kube-flannel", "wait", "--for=jsonpath={.status.numberReady}=5", "daemonset/flannel", "--timeout", long.String())
	c.eventually(t, "all nodes are Ready, and flannel has written what it writes", long, func(ctx context.Context) (bool, string) {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, n := range nodes.Items {
			if !conditionIs(&n, corev1.NodeReady, corev1.ConditionTrue) || !conditionIs(&n, corev1.NodeNetworkUnavailable, corev1.ConditionFalse) ||
				strings.Contains(fmt.Sprint(n.Spec.Taints), "node.kubernetes.io/") || n.Annotations["flannel.alpha.coreos.com/public-ip"] == "" {
				return false, describe(&n)
			}
		}
		return len(nodes.Items) == 5, "not all have joined"
	})
	c.etcd = &etcd{c: c}
	return c
}

func (c *cluster) create(t *testing.T) {
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
			t.Logf("kept: E2E_KUBECONFIG=%s; delete it with: kind delete cluster --name %s", c.kubeconfig, c.name)
			return
		}
		for range 3 { // Docker gives up on a container whose end takes long
			_, err := c.try(context.WithoutCancel(t.Context()), c.tool("kind"), "delete", "cluster", "--name", c.name, "--kubeconfig", c.kubeconfig)
			if err == nil {
				return
			}
			t.Logf("the cluster is not deleted: %v", err)
		}
	})
	start := time.Now()
	c.run(t, c.tool("kind"), "create", "cluster", "--name", c.name, "--image", image, "--config", "cluster.yaml",
		"--kubeconfig", c.kubeconfig, "--wait", "0s")
	t.Logf("cluster created in %s", time.Since(start).Round(time.Second))
}

func (c *cluster) connect(t *testing.T) {
	t.Helper()
	var err error
	c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	require.NoError(t, err)
	c.config.QPS, c.config.Burst = 100, 200
	c.config.WarningHandler = rest.NoWarnings{}
	c.client, err = kubernetes.NewForConfig(c.config)
	require.NoError(t, err)
	controlPlane, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	require.NoError(t, err)
	require.Len(t, controlPlane.Items, 1)
	c.name = strings.TrimSuffix(controlPlane.Items[0].Name, "-control-plane")
}

// load brings the images onto the nodes: ours, which `make images` has built, and that of the tests' own pods.
func (c *cluster) load(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	c.run(t, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "echo"), "./echo")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY echo /echo\nENTRYPOINT [\"/echo\"]\n"), 0o600))
	c.run(t, "env", "DOCKER_BUILDKIT=0", "docker", "build", "-q", "-t", "holdfast-e2e-echo:v1", dir)
	c.run(t, c.tool("kind"), "load", "docker-image", "holdfast-agent:v0.1.0", "holdfast-webhook:v0.1.0", "holdfast-e2e-echo:v1", "--name", c.name)
}

// worker returns the name of a worker, from 1.
func (c *cluster) worker(i int) string {
	return c.name + "-worker" + map[bool]string{true: "", false: string(rune('0' + i))}[i == 1]
}

func (c *cluster) controlPlane() string { return c.name + "-control-plane" }

// node reads a Node.
func (c *cluster) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return n
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{Type: kind, Message: "(there is no such condition)"}
}

func conditionIs(n *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) bool {
	return condition(n, kind).Status == status
}
