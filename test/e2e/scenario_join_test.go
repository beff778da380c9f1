//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// bootUnit gives a node a boot ID of its own: the nodes of kind share their machine's.
	bootUnit = `[Unit]
Before=containerd.service kubelet.service
DefaultDependencies=no
After=local-fs.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'cat /proc/sys/kernel/random/uuid > /run/e2e-boot-id; mount --bind /run/e2e-boot-id /proc/sys/kernel/random/boot_id'

[Install]
WantedBy=multi-user.target
`
	// crowd is pods that can run on one node only, and wait for it; peer is one on another node.
	crowd = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: default}
spec:
  replicas: %d
  selector:
    matchLabels: {app: %s}
  template:
    metadata:
      labels: {app: %s}
    spec:
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      nodeSelector: {kubernetes.io/hostname: %s}
      containers:
      - name: echo
        image: holdfast-e2e-echo:v1
`
)

// joining has a worker join while flannel keeps off it. Fifty pods wait for that node alone.
func joining(t *testing.T, c *cluster) {
	name := c.worker(4)
	c.deploy(t, "peer", c.worker(1), 1)
	c.ownBootID(t, name)
	c.flannelKeepsOff(t, name)
	c.strip(t, name)
	c.kubectl(t, "delete", "node", name)
	c.deploy(t, "crowd", name, 50)
	before, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	c.on(t, name, "systemctl restart e2e-boot-id")
	c.join(t, name)
	c.waits(t, name, readiness.WaitingForCNI)
	c.alone(t, name, "crowd", 50)

	c.flannelComes(t)
	c.released(t, name)
	c.neverOpenBefore(t, name, before.ResourceVersion)
	c.talk(t, "crowd", 50)

	boot := c.node(t, name).Status.NodeInfo.BootID
	c.flannelKeepsOff(t, name)
	c.run(t, "docker", "restart", "--time=60", name)
	n := c.waits(t, name, readiness.WaitingForFlannel)
	require.NotEqual(t, boot, n.Status.NodeInfo.BootID)
	c.deploy(t, "late", name, 10)
	c.alone(t, name, "late", 10)
	c.flannelComes(t)
	c.released(t, name)
	c.talk(t, "late", 10)
	c.talk(t, "crowd", 50)
	c.kubectl(t, "delete", "deployment", "late", "crowd", "--cascade=foreground")
}

func (c *cluster) deploy(t *testing.T, name, node string, replicas int) {
	t.Helper()
	file := t.TempDir() + "/deployment.yaml"
	write(t, file, fmt.Sprintf(crowd, name, replicas, name, name, node))
	c.kubectl(t, "apply", "-f", file)
}

// ownBootID gives a node a boot ID of its own, a new one at each boot.
func (c *cluster) ownBootID(t *testing.T, name string) {
	t.Helper()
	file := t.TempDir() + "/unit"
	write(t, file, bootUnit)
	c.run(t, "docker", "cp", file, name+":/etc/systemd/system/e2e-boot-id.service")
	// What does not end when it is told to would hold a reboot up for a minute and a half, systemd's default.
	c.on(t, name, `mkdir -p /etc/systemd/system.conf.d
		printf '[Manager]\nDefaultTimeoutStopSec=15s\n' > /etc/systemd/system.conf.d/e2e.conf
		systemctl daemon-reload; systemctl enable e2e-boot-id 2>/dev/null`)
}

// alone checks that a held node has none but the pods of its DaemonSets, and that those of the application wait.
func (c *cluster) alone(t *testing.T, name, app string, waiting int) {
	t.Helper()
	c.eventually(t, "the scheduler has looked at all pods of "+app, soon, func(ctx context.Context) (bool, string) {
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return false, err.Error()
		}
		looked := 0
		for _, p := range pods.Items {
			require.Empty(t, p.Spec.NodeName, "pod %s is bound although its node is held", p.Name)
			for _, seen := range p.Status.Conditions {
				if seen.Type == corev1.PodScheduled && seen.Reason == corev1.PodReasonUnschedulable {
					looked++
				}
			}
		}
		return looked == waiting, fmt.Sprintf("at %d of %d", looked, waiting)
	})
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	require.NoError(t, err)
	for _, p := range pods.Items {
		owned := len(p.OwnerReferences) == 1 && p.OwnerReferences[0].Kind == "DaemonSet"
		require.True(t, owned || p.CreationTimestamp.Time.Before(c.node(t, name).CreationTimestamp.Time) || p.Labels["app"] == "crowd",
			"pod %s/%s is on a held node", p.Namespace, p.Name)
	}
}

// neverOpenBefore reads what the API server told of the node since it registered: it was held in every version of it until
// it was released.
func (c *cluster) neverOpenBefore(t *testing.T, name, since string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	watch, err := c.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: since})
	require.NoError(t, err)
	defer watch.Stop()
	versions, born := 0, time.Time{}
	for event := range watch.ResultChan() {
		n, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		if state(n) != readiness.Held {
			require.Equal(t, readiness.Released, state(n))
			t.Logf("born held, and held in all %d versions until it was released after %s", versions, time.Since(born).Round(time.Second))
			return
		}
		if versions == 0 {
			born = n.CreationTimestamp.Time
			require.True(t, conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue), describe(n))
		}
		versions++
		require.True(t, n.Spec.Unschedulable, describe(n))
	}
	require.FailNow(t, "the watch ended before the node was released")
}

// talk waits until all pods of an application run, and has one of them reach a pod on another node, and be reached.
func (c *cluster) talk(t *testing.T, app string, want int) {
	t.Helper()
	c.rolledOut(t, "default", "deployment/"+app)
	c.rolledOut(t, "default", "deployment/peer")
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app in (peer, " + app + ")"})
	require.NoError(t, err)
	ip, named := map[string]string{}, map[string]string{}
	running := 0
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			ip[p.Labels["app"]], named[p.Labels["app"]] = p.Status.PodIP, p.Name
			running++
		}
	}
	require.Equal(t, want+1, running)
	for from, to := range map[string]string{app: "peer", "peer": app} {
		c.eventually(t, "a pod of "+from+" reaches one of "+to, soon, func(ctx context.Context) (bool, string) {
			out, err := c.try(ctx, c.tool("kubectl"), "get", "--raw", "/api/v1/namespaces/default/pods/"+named[from]+":8080/proxy/?ask="+ip[to]+":8080")
			return err == nil && strings.TrimSpace(out) == "hello", out
		})
	}
}

// marker has a worker join that kubespray builds, by its label: its network works, and it waits for the last role.
func marker(t *testing.T, c *cluster) {
	name := c.worker(4)
	const flags, label = "/var/lib/kubelet/kubeadm-flags.env", "--node-labels=e2e.example.org/built-by=kubespray"
	c.strip(t, name)
	c.kubectl(t, "delete", "node", name)
	c.on(t, name, `sed -i 's|="|="`+label+` |' `+flags)
	c.join(t, name)
	c.until(t, name, "has its network, and waits for kubespray", long, func(n *corev1.Node) bool {
		return conditionIs(n, corev1.NodeReady, corev1.ConditionTrue) && state(n) == readiness.Held && n.Spec.Unschedulable &&
			condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForNetworkPlugin
	})
	c.on(t, name, "mkdir -p /run/holdfast; echo 00000000-0000-4000-8000-000000000000 > /run/holdfast/network_plugin.done")
	c.stays(t, name, "is held, whatever an earlier boot's marker says", func(n *corev1.Node) bool { return state(n) == readiness.Held && n.Spec.Unschedulable })
	c.on(t, name, "cat /proc/sys/kernel/random/boot_id > /run/holdfast/network_plugin.done")
	c.released(t, name)
	c.on(t, name, `sed -i 's|`+label+` ||' `+flags)
	c.kubectl(t, "label", "node", name, "e2e.example.org/built-by-")
}

// stays checks a Node for longer than the agent takes to look again without any event.
func (c *cluster) stays(t *testing.T, name, what string, check func(*corev1.Node) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		n := c.node(t, name)
		require.True(t, check(n), "node %s no longer %s\n%s", name, what, describe(n))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
