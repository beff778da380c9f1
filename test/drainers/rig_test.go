//go:build drainers

package drainers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// namespace is the namespace of the workloads and of Cluster API's objects.
	namespace = "default"
	// calm is how long nothing may happen while Holdfast refuses. The programs retry within it
	// several times.
	calm = 20 * time.Second
	// patience is the longest time between a change of the verdict and its effect. Karpenter retries
	// a refused deletion after up to a minute.
	patience = 3 * time.Minute
	// kubeletInterval is the interval at which pods that are being deleted are removed.
	kubeletInterval = 200 * time.Millisecond
)

func TestMain(m *testing.M) {
	// The network namespace of the tests has no connection to a module proxy.
	for tool, modules := range map[string][]string{
		"karpenter":   {"sigs.k8s.io/karpenter"},
		"cluster-api": {"sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api/api"},
	} {
		for _, module := range modules {
			if _, err := moduleDir(tool, module); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	os.Exit(fixture.RunTests(m.Run))
}

// moduleDir returns the directory of a module's source, in the version of a tool.
func moduleDir(tool, module string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join("..", "..", "tools", tool)
	out, err := cmd.Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		return "", fmt.Errorf("downloading module %s: %w: %s", module, err, out)
	}
	return found.Dir, nil
}

// A rig is a cluster with an etcd cluster of three members outside Kubernetes.
type rig struct {
	*fixture.Environment
	t      *testing.T
	core   kubernetes.Interface
	client client.Client
	etcd   *etcd.Cluster

	mu sync.Mutex // guards nodes
	// nodes are the names of the nodes by the number of their member, starting at 1.
	nodes []string
}

// newRig starts a kube-apiserver.
func newRig(t *testing.T, name string) *rig {
	t.Helper()
	agent, webhook := fixture.BuiltPrograms()
	r, err := &rig{t: t}, error(nil)
	r.Environment, err = fixture.New(fixture.Options{
		Name: name, Out: t.Output(), Agent: agent, Webhook: webhook,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close(context.WithoutCancel(t.Context()), !t.Failed())) })
	require.NoError(t, r.Start(t.Context(), "serviceaccount-controller"))
	admin := r.API.Admin()
	admin.WarningHandler = rest.NoWarnings{}
	r.core, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	r.client, err = client.New(admin, client.Options{})
	require.NoError(t, err)
	r.runKubelets()
	return r
}

// nodeOf returns the node of member i.
func (r *rig) nodeOf(i int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[i-1]
}

// addNode adds a node for the next member.
func (r *rig) addNode(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = append(r.nodes, name)
}

// startEtcd starts a member on each of these nodes.
func (r *rig) startEtcd(nodes ...string) {
	r.t.Helper()
	for _, n := range nodes {
		r.addNode(n)
	}
	var err error
	r.etcd, err = r.StartEtcd(r.t.Context(), etcd.Options{Members: len(nodes), Node: r.nodeOf})
	require.NoError(r.t, err)
}

// startHoldfast installs Holdfast with components, and starts the webhooks, and an agent with its
// pod on each node. The nodes are older, so Holdfast does not hold them.
func (r *rig) startHoldfast(components ...string) {
	r.t.Helper()
	require.NoError(r.t, r.Install(r.t.Context(), components...))
	require.NoError(r.t, r.StartWebhooks(r.t.Context(), r.machineFlags()...))
	for _, n := range r.nodes {
		r.startAgent(n)
	}
	r.waitHealthy(len(r.nodes))
	for _, n := range r.nodes {
		r.waitForGuard(n)
	}
}

// machineFlags returns the flags that the components for machines add to the webhook.
func (r *rig) machineFlags() []string {
	r.t.Helper()
	webhook, err := r.core.AppsV1().Deployments(fixture.Namespace).Get(
		r.t.Context(), "holdfast-webhook", metav1.GetOptions{})
	require.NoError(r.t, err)
	return slices.DeleteFunc(webhook.Spec.Template.Spec.Containers[0].Args, func(arg string) bool {
		return arg != "--cluster-api" && arg != "--karpenter"
	})
}

// startAgent starts the agent of a node, and creates the pod that it would be. The leader copies
// the image of that pod.
func (r *rig) startAgent(node string) {
	r.t.Helper()
	ctx := r.t.Context()
	require.NoError(r.t, r.StartAgent(ctx, node))
	set, err := r.core.AppsV1().DaemonSets(fixture.Namespace).Get(ctx, "holdfast-agent", metav1.GetOptions{})
	require.NoError(r.t, err)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "agent-of-" + node, Labels: set.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet")),
			},
		},
		Spec: set.Spec.Template.Spec,
	}
	pod.Spec.NodeName = node
	r.createPod(fixture.Namespace, pod)
}

// startProgram starts a program of bin/. It stops before the API server.
func (r *rig) startProgram(name string, env []string, args ...string) *process.Process {
	r.t.Helper()
	path, err := process.Binary(name)
	require.NoError(r.t, err)
	p, err := process.Start(process.Options{
		Name: name, Path: path, Args: args, LogFile: filepath.Join(r.Dir, name+".log"),
		Env: append([]string{"KUBECONFIG=" + r.API.Kubeconfig(), "HOME=" + r.Dir}, env...),
	})
	require.NoError(r.t, err)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("end of the log of %s:\n%s", name, p.LogTail(30))
		}
		require.NoError(r.t, p.Kill())
	})
	return p
}
