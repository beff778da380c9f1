//go:build e2e

package e2e_test

import (
	"context"
	"errors"
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
	// crowd is the number of pods that wait for a node, and late of those that wait after its reboot.
	// More take longer to start than the rest of the scenario.
	crowd, late = 10, 5
	// bootUnit gives a node its own boot ID. Otherwise the nodes of kind have that of their
	// machine.
	bootUnit = `[Unit]
Before=containerd.service kubelet.service
DefaultDependencies=no
After=local-fs.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'cat /proc/sys/kernel/random/uuid > /run/e2e-boot-id; \
  mount --bind /run/e2e-boot-id /proc/sys/kernel/random/boot_id'

[Install]
WantedBy=multi-user.target
`
	// deploymentTemplate is a Deployment whose pods can run on one node only.
	deploymentTemplate = `apiVersion: apps/v1
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

// scenarioJoin lets a worker join without flannel. A crowd of pods waits for that node.
func scenarioJoin(t *testing.T, c *kindCluster) {
	name := c.worker(4)
	c.deploy(t, "peer", c.worker(1), 1)
	c.ownBootID(t, name)
	c.excludeFlannel(t, name)
	c.resetNode(t, name)
	c.kubectl(t, "delete", "node", name)
	c.deploy(t, "crowd", name, crowd)
	before, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	c.runOn(t, name, "systemctl restart e2e-boot-id")
	c.startKubelets(t, name)
	c.waitForHold(t, name, readiness.WaitingForCNI)
	c.requireNoAppPods(t, name, "crowd", crowd)

	c.restoreFlannel(t)
	c.waitForRelease(t, name)
	c.requireHeldUntilRelease(t, name, before.ResourceVersion)
	c.requirePodTraffic(t, "crowd", crowd)

	boot := c.node(t, name).Status.NodeInfo.BootID
	c.excludeFlannel(t, name)
	c.run(t, "docker", "restart", "--time=60", name)
	n := c.waitForHold(t, name, readiness.WaitingForFlannel)
	require.NotEqual(t, boot, n.Status.NodeInfo.BootID)
	c.deploy(t, "late", name, late)
	c.requireNoAppPods(t, name, "late", late)
	c.restoreFlannel(t)
	c.waitForRelease(t, name)
	c.requirePodTraffic(t, "late", late)
	c.requirePodTraffic(t, "crowd", crowd)
	c.kubectl(t, "delete", "deployment", "late", "crowd", "--cascade=foreground")
}

func (c *kindCluster) deploy(t *testing.T, name, node string, replicas int) {
	t.Helper()
	file := t.TempDir() + "/deployment.yaml"
	write(t, file, fmt.Sprintf(deploymentTemplate, name, replicas, name, name, node))
	c.kubectl(t, "apply", "-f", file)
}

// ownBootID gives a node its own boot ID, which changes at each boot.
func (c *kindCluster) ownBootID(t *testing.T, name string) {
	t.Helper()
	file := t.TempDir() + "/unit"
	write(t, file, bootUnit)
	c.run(t, "docker", "cp", file, name+":/etc/systemd/system/e2e-boot-id.service")
	// Otherwise a process that ignores SIGTERM delays a reboot by systemd's default of 90 s.
	c.runOn(t, name, `mkdir -p /etc/systemd/system.conf.d
		printf '[Manager]\nDefaultTimeoutStopSec=15s\n' > /etc/systemd/system.conf.d/e2e.conf
		systemctl daemon-reload; systemctl enable e2e-boot-id 2>/dev/null`)
}

// requireNoAppPods checks that only pods of DaemonSets run on a held node, and that the
// application's pods wait.
func (c *kindCluster) requireNoAppPods(t *testing.T, name, app string, waiting int) {
	t.Helper()
	c.waitFor(t, "the scheduler to try all pods of "+app, shortTimeout, func(ctx context.Context) (bool, string) {
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return false, err.Error()
		}
		observed := 0
		for _, p := range pods.Items {
			require.Empty(t, p.Spec.NodeName, "pod %s is bound to a held node", p.Name)
			for _, found := range p.Status.Conditions {
				if found.Type == corev1.PodScheduled && found.Reason == corev1.PodReasonUnschedulable {
					observed++
				}
			}
		}
		return observed == waiting, fmt.Sprintf("%d of %d", observed, waiting)
	})
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	require.NoError(t, err)
	for _, p := range pods.Items {
		owned := len(p.OwnerReferences) == 1 && p.OwnerReferences[0].Kind == "DaemonSet"
		require.True(t, owned || p.CreationTimestamp.Time.Before(c.node(t, name).CreationTimestamp.Time) ||
			p.Labels["app"] == "crowd",
			"pod %s/%s is on a held node", p.Namespace, p.Name)
	}
}

// requireHeldUntilRelease watches all versions of a Node since its registration, and checks
// that it was held in each of them until its release.
func (c *kindCluster) requireHeldUntilRelease(t *testing.T, name, since string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), shortTimeout)
	defer cancel()
	watch, err := c.client.CoreV1().Nodes().Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: since})
	require.NoError(t, err)
	defer watch.Stop()
	versions, born := 0, time.Time{}
	for event := range watch.ResultChan() {
		n, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		if holdState(n) != readiness.Held {
			require.Equal(t, readiness.Released, holdState(n))
			t.Logf("held in all %d versions from its creation to its release after %s", versions,
				time.Since(born).Round(time.Second))
			return
		}
		if versions == 0 {
			born = n.CreationTimestamp.Time
			require.True(t, conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue), describe(n))
		}
		versions++
		require.True(t, n.Spec.Unschedulable, describe(n))
	}
	require.FailNow(t, "the watch ended before the release")
}

// requirePodTraffic waits until all pods of an application run. It checks traffic from one of
// them to a pod on another node, and back.
func (c *kindCluster) requirePodTraffic(t *testing.T, app string, want int) {
	t.Helper()
	c.waitForRollout(t, "default", "deployment/"+app)
	c.waitForRollout(t, "default", "deployment/peer")
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(),
		metav1.ListOptions{LabelSelector: "app in (peer, " + app + ")"})
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
		c.waitFor(t, "a pod of "+from+" to reach one of "+to, shortTimeout, func(ctx context.Context) (bool, string) {
			out, err := c.tryRun(ctx, c.tool("kubectl"), "get", "--raw",
				"/api/v1/namespaces/default/pods/"+named[from]+":8080/proxy/?ask="+ip[to]+":8080")
			return err == nil && strings.TrimSpace(out) == "hello", out
		})
	}
}

// scenarioMarker lets a worker join with the label of kubespray's workers: its network works,
// but it waits for the marker of the last role.
func scenarioMarker(t *testing.T, c *kindCluster) {
	name := c.worker(4)
	const flags, label = "/var/lib/kubelet/kubeadm-flags.env", "--node-labels=e2e.example.org/built-by=kubespray"
	c.resetNode(t, name)
	c.kubectl(t, "delete", "node", name)
	c.runOn(t, name, `sed -i 's|="|="`+label+` |' `+flags)
	c.startKubelets(t, name)
	c.waitForNode(t, name, "to have its network and wait for kubespray", longTimeout, func(n *corev1.Node) bool {
		return conditionIs(n, corev1.NodeReady, corev1.ConditionTrue) && holdState(n) == readiness.Held &&
			n.Spec.Unschedulable &&
			condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForNetworkPlugin
	})
	c.runOn(t, name,
		"mkdir -p /run/holdfast; echo 00000000-0000-4000-8000-000000000000 > /run/holdfast/network_plugin.done")
	c.requireUnchanged(t, name, "held despite the marker of an earlier boot",
		func(n *corev1.Node) bool { return holdState(n) == readiness.Held && n.Spec.Unschedulable })
	c.runOn(t, name, "cat /proc/sys/kernel/random/boot_id > /run/holdfast/network_plugin.done")
	c.waitForRelease(t, name)
	c.runOn(t, name, `sed -i 's|`+label+` ||' `+flags)
	c.kubectl(t, "label", "node", name, "e2e.example.org/built-by-")
}

// requireUnchanged checks a Node while writes of another field wake its agent again and again.
func (c *kindCluster) requireUnchanged(t *testing.T, name, what string, check func(*corev1.Node) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		c.kubectl(t, "annotate", "--overwrite", "node", name, "example.org/woken="+time.Now().Format("150405.000"))
		n := c.node(t, name)
		require.True(t, check(n), "node %s is not %s\n%s", name, what, describe(n))
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.kubectl(t, "annotate", "node", name, "example.org/woken-")
			return
		}
	}
}

// scenarioReboot reboots a worker. The real logind waits for the agent, which holds the node
// while its kubelet is still Ready. After the boot, that kubelet is Ready again before an agent
// runs.
func scenarioReboot(t *testing.T, c *kindCluster) {
	name := c.worker(4)
	c.ownBootID(t, name)
	was := c.node(t, name)
	require.Contains(t, c.runOn(t, name, "systemd-inhibit --list --no-legend --no-pager"), "holdfast",
		"the agent must delay the shutdown")
	ctx, cancel := context.WithTimeout(t.Context(), longTimeout)
	defer cancel()
	watch, err := c.client.CoreV1().Nodes().Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: was.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	require.NoError(t, c.reboot(t.Context(), name))
	held := false
	for event := range watch.ResultChan() {
		n, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		require.True(t, held || conditionIs(n, corev1.NodeReady, corev1.ConditionTrue),
			"not held while its kubelet was Ready:\n%s", describe(n))
		if record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation]); err == nil &&
			record.State == readiness.Held {
			require.Equal(t, readiness.RecordReason(readiness.GoingDown), record.Reason)
			require.True(t, n.Spec.Unschedulable, describe(n))
			held = true
			break
		}
	}
	require.True(t, held, "the node went down without being held")
	c.waitForRelease(t, name)
	require.NotEqual(t, was.Status.NodeInfo.BootID, c.node(t, name).Status.NodeInfo.BootID)
}

// reboot reboots a node, and returns when it boots. Docker restarts the container, like a machine's
// firmware.
func (c *kindCluster) reboot(ctx context.Context, node string) error {
	started := []string{"inspect", "-f", "{{.State.StartedAt}}", node}
	before, err := c.tryRun(ctx, "docker", started...)
	if err != nil {
		return err
	}
	if _, err := c.tryRun(ctx, "docker", "exec", node, "systemctl", "reboot"); err != nil {
		return err
	}
	return poll(ctx, "node "+node+" to boot", func(ctx context.Context) error {
		now, err := c.tryRun(ctx, "docker", started...)
		if err == nil && now == before {
			err = errors.New("it has not restarted")
		}
		return err
	})
}
