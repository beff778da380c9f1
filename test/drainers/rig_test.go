//go:build drainers

package drainers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/hostnet"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
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

// TestMain runs the tests in a network namespace where the kernel permits one, so that the
// addresses of the nodes identify hosts.
func TestMain(m *testing.M) {
	// The namespace has no connection to a module proxy.
	if err := fixture.DownloadModules(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
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
	if status, done := hostnet.Isolate(); done {
		os.Exit(status)
	}
	os.Exit(m.Run())
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

// newRig builds Holdfast and starts a kube-apiserver.
func newRig(t *testing.T, name string) *rig {
	t.Helper()
	agent, webhook, err := fixture.BuildPrograms(t.Context(), t.TempDir())
	require.NoError(t, err)
	r := &rig{t: t}
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

// startWorkload creates an ordinary pod on a node.
func (r *rig) startWorkload(node string) {
	r.t.Helper()
	r.createPod(namespace, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "workload-on-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.org/workload"}},
		},
	})
}

// createPod creates a pod as soon as its service account exists.
func (r *rig) createPod(namespace string, pod *corev1.Pod) {
	r.t.Helper()
	r.wait("pod "+pod.Name, func(ctx context.Context) error {
		_, err := r.core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// waitHealthy waits until this many members are reported healthy and bound.
func (r *rig) waitHealthy(members int) {
	r.t.Helper()
	r.wait("all members to be reported healthy", func(ctx context.Context) error {
		const format = "jsonpath={.items[0].status.healthy} of {.items[0].status.voters}"
		out, err := r.API.Kubectl(ctx, "get", "etcdclusters", "-o", format)
		if want := fmt.Sprintf("%d of %d", members, members); err == nil && out != want {
			err = fmt.Errorf("the summary has %q, want %q", out, want)
		}
		return err
	})
}

// waitForGuard waits for the guard pod of a node.
func (r *rig) waitForGuard(node string) {
	r.t.Helper()
	r.wait("the guard pod of "+node, func(ctx context.Context) error {
		_, err := r.core.CoreV1().Pods(guard.Namespace).Get(ctx, guard.Name(node), metav1.GetOptions{})
		return err
	})
}

// wait calls check until it returns nil, for at most patience.
func (r *rig) wait(what string, check func(context.Context) error) {
	r.t.Helper()
	var err error
	for begun := time.Now(); ; {
		if err = r.WaitUntil(r.t.Context(), what, check); err == nil || time.Since(begun) >= patience {
			break
		}
	}
	require.NoError(r.t, err)
}

// isUntouched returns an error unless nothing was taken from a node: the Node is not being deleted,
// all its pods are there, and its member runs.
func (r *rig) isUntouched(ctx context.Context, member int) error {
	name := r.nodeOf(member)
	node, err := r.core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var problems []string
	if node.DeletionTimestamp != nil {
		problems = append(problems, "the Node is being deleted")
	}
	for _, pod := range []struct{ namespace, name string }{
		{namespace, "workload-on-" + name}, {guard.Namespace, guard.Name(name)},
	} {
		p, err := r.core.CoreV1().Pods(pod.namespace).Get(ctx, pod.name, metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			problems = append(problems, fmt.Sprintf("pod %s is gone or being deleted (%v)", pod.name, err))
		}
	}
	if !r.etcd.Member(member).Running() {
		problems = append(problems, "the etcd member does not run")
	}
	if len(problems) > 0 {
		return fmt.Errorf("node %s: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// requireCalm requires that a check succeeds all the time while Holdfast refuses.
func (r *rig) requireCalm(check func(context.Context) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), calm)
	defer cancel()
	for ctx.Err() == nil {
		if err := check(ctx); ctx.Err() == nil {
			require.NoError(r.t, err)
		}
		_ = fixture.Wait(ctx, kubeletInterval) // the loop checks ctx
	}
}

// isGone reports whether a Node does not exist any more.
func (r *rig) isGone(ctx context.Context, node string) (bool, error) {
	_, err := r.core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// endMachine ends the machine of a member: its etcd and its agent.
func (r *rig) endMachine(member int) error {
	m := r.etcd.Member(member)
	return errors.Join(m.Kill(), r.ReplaceMachine(m.Node))
}

// replaceMember removes a member whose machine has ended from etcd, and adds one on a node.
func (r *rig) replaceMember(old int, node string) {
	r.t.Helper()
	ctx := r.t.Context()
	require.NoError(r.t, r.etcd.RemoveMember(ctx, r.etcd.Member(old)))
	r.addNode(node)
	made, err := r.etcd.AddLearner(ctx)
	require.NoError(r.t, err)
	require.NoError(r.t, r.etcd.Promote(ctx, made))
}

// waitForDeletion deletes an object as soon as the API server accepts that.
func (r *rig) waitForDeletion(o *unstructured.Unstructured) {
	r.t.Helper()
	r.wait("the deletion of "+o.GetKind()+" "+o.GetName()+" to be allowed", func(ctx context.Context) error {
		return r.client.Delete(ctx, o)
	})
}

// waitForEnd waits until an object is gone.
func (r *rig) waitForEnd(o *unstructured.Unstructured) {
	r.t.Helper()
	r.wait("the end of "+o.GetKind()+" "+o.GetName(), func(ctx context.Context) error {
		current, err := r.get(ctx, o)
		if err == nil && current != nil {
			status, reason, message := condition(current, "Deleting")
			err = fmt.Errorf("it exists; its condition Deleting is %s, %s: %s", status, reason, message)
		}
		return err
	})
}

// requireRefused requires that the API server refuses the deletion of an object with Holdfast's
// answer, and that nothing happens to the object and its node.
func (r *rig) requireRefused(o *unstructured.Unstructured, member int) {
	r.t.Helper()
	node := r.nodeOf(member)
	err := r.client.Delete(r.t.Context(), o)
	require.ErrorContains(r.t, err, "deleting node "+node+" would break quorum of etcd cluster")
	require.ErrorContains(r.t, err, o.GetName()+" stands for node "+node+": both have the provider ID ")
	r.requireCalm(func(ctx context.Context) error {
		current, err := r.get(ctx, o)
		if err == nil && (current == nil || current.GetDeletionTimestamp() != nil) {
			err = fmt.Errorf("%s %s is gone or being deleted", o.GetKind(), o.GetName())
		}
		return errors.Join(err, r.isUntouched(ctx, member))
	})
}

// requireQuorum makes a linearizable read.
func (r *rig) requireQuorum() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), fixture.Timeout)
	defer cancel()
	etcd, err := r.etcd.Client(ctx)
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, etcd.Close()) }()
	_, err = etcd.Get(ctx, "drainers")
	require.NoError(r.t, err)
}

// completeNode writes what the kubelet of a node writes, and the basic files of its host.
func (r *rig) completeNode(name, ip string) {
	r.t.Helper()
	require.NoError(r.t, r.WriteHostFile(name, "etc/hostname", name+"\n", 0o644))
	boot, err := os.ReadFile(filepath.Join(r.HostRoot(name), fakehost.BootIDFile))
	require.NoError(r.t, err)
	r.wait("the status of node "+name, func(ctx context.Context) error {
		node, err := r.core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		node.Status.NodeInfo.BootID = strings.TrimSpace(string(boot))
		node.Status.NodeInfo.SystemUUID, node.Status.NodeInfo.OperatingSystem = node.Status.NodeInfo.BootID, "linux"
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady
		})
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
		_, err = r.core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// runKubelets removes pods that are being deleted, as the kubelet of their node does when their
// containers have ended.
func (r *rig) runKubelets() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var kubelets sync.WaitGroup
	kubelets.Go(func() {
		for fixture.Wait(ctx, kubeletInterval) == nil {
			pods, err := r.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				if p.DeletionTimestamp != nil {
					options := metav1.DeleteOptions{
						GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
					}
					_ = r.core.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, options) // retried
				}
			}
		}
	})
	r.t.Cleanup(func() { cancel(); kubelets.Wait() })
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

// applyDefinitions applies the CustomResourceDefinitions of a directory of a tool's module.
func (r *rig) applyDefinitions(tool, module string, dirs ...string) {
	r.t.Helper()
	root, err := moduleDir(tool, module)
	require.NoError(r.t, err)
	args := []string{"apply", "--server-side"}
	for _, dir := range dirs {
		args = append(args, "-f", filepath.Join(root, dir))
	}
	out, err := r.API.Kubectl(r.t.Context(), args...)
	require.NoError(r.t, err, "%s", out)
	out, err = r.API.Kubectl(r.t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crds", "--all")
	require.NoError(r.t, err, "%s", out)
}

// create creates an object of YAML, as soon as its kind is served.
func (r *rig) create(format string, args ...any) *unstructured.Unstructured {
	r.t.Helper()
	made := &unstructured.Unstructured{}
	require.NoError(r.t, yaml.Unmarshal(fmt.Appendf(nil, format, args...), made))
	r.wait("the creation of "+made.GetKind()+" "+made.GetName(), func(ctx context.Context) error {
		return r.client.Create(ctx, made)
	})
	return made
}

// patch changes an object with a merge patch.
func (r *rig) patch(o *unstructured.Unstructured, patch string) {
	r.t.Helper()
	require.NoError(r.t, r.client.Patch(r.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// get returns the current version of an object, or nil if it is gone.
func (r *rig) get(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	current := o.DeepCopy()
	err := r.client.Get(ctx, client.ObjectKeyFromObject(o), current)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

// condition returns the status, reason and message of a condition.
func condition(o *unstructured.Unstructured, of string) (status, reason, message string) {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		fields, ok := c.(map[string]any)
		if ok && fields["type"] == of {
			return fmt.Sprint(fields["status"]), fmt.Sprint(fields["reason"]), fmt.Sprint(fields["message"])
		}
	}
	return "", "", ""
}
