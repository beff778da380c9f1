//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// resetNode resets the network of a node to that of a new one: it stops the kubelet and deletes
// the pods and flannel's files.
func (c *kindCluster) resetNode(t *testing.T, name string) {
	t.Helper()
	c.runOn(t, name, `systemctl stop kubelet
		for attempt in 1 2 3 4 5; do
			crictl --timeout 60s rmp --force --all > /dev/null 2>&1 || true
			[ -n "$(crictl --timeout 60s pods -q)" ] || break
			sleep 1
		done
		[ -z "$(crictl --timeout 60s pods -q)" ]
		for link in cni0 flannel.1; do ip link delete $link 2>/dev/null || true; done
		rm -rf /run/flannel/subnet.env /etc/cni/net.d/10-flannel.conflist /opt/cni/bin/flannel /var/lib/cni`)
	// A pod that still exists in the API would continue, and not install flannel's plugin
	// again.
	c.kubectl(t, "-n", "kube-flannel", "delete", "pods", "--field-selector", "spec.nodeName="+name, "--force",
		"--grace-period=0")
}

// startKubelets starts the kubelets of nodes that were reset and deleted, and waits for their
// Nodes.
func (c *kindCluster) startKubelets(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.runOn(t, name, "systemctl start kubelet")
	}
	for _, name := range names {
		c.waitForNode(t, name, "to register", longTimeout, func(*corev1.Node) bool { return true })
	}
}

// rejoin adds deleted nodes to the cluster again. Their grants can be resolved by hand a few
// minutes after the deletion, so a later scenario does that (resolveGrants).
func (c *kindCluster) rejoin(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.resetNode(t, name)
	}
	c.startKubelets(t, names...)
	for _, name := range names {
		c.waitForRelease(t, name)
	}
	c.waitForWebhook(t)
}

// waitForRelease waits until a node is released and accepts pods.
func (c *kindCluster) waitForRelease(t *testing.T, name string) {
	t.Helper()
	c.waitForNode(t, name, "to be released", longTimeout, func(n *corev1.Node) bool {
		return holdState(n) == readiness.Released && !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 &&
			conditionIs(n, corev1.NodeReady, corev1.ConditionTrue) &&
			conditionIs(n, readiness.NetworkHeld, corev1.ConditionFalse)
	})
}

// waitForHold waits until a node is held for the given reason.
func (c *kindCluster) waitForHold(t *testing.T, name, reason string) *corev1.Node {
	t.Helper()
	return c.waitForNode(t, name, "to be held: "+reason, longTimeout, func(n *corev1.Node) bool {
		held := condition(n, readiness.NetworkHeld)
		return holdState(n) == readiness.Held && n.Spec.Unschedulable && held.Status == corev1.ConditionTrue &&
			held.Reason == reason
	})
}

// holdState returns the state in a Node's hold record, or "" without a valid record.
func holdState(n *corev1.Node) readiness.State {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	if err != nil {
		return ""
	}
	return record.State
}

// excludeFlannel removes flannel from a node and keeps it off that node.
func (c *kindCluster) excludeFlannel(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, "-n", "kube-flannel", "patch", "daemonset", "flannel", "--type=json", "-p", fmt.Sprintf(
		`[{"op":"replace","path":"/spec/template/spec/affinity/nodeAffinity/`+
			`requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/`+
			`matchExpressions/0/values","value":[%q]}]`,
		name))
	c.waitFor(t, "flannel to leave node "+name, longTimeout, func(ctx context.Context) (bool, string) {
		pods, err := c.client.CoreV1().Pods("kube-flannel").List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items) == 0, "its pod still exists"
	})
}

// restoreFlannel runs flannel on all nodes.
func (c *kindCluster) restoreFlannel(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-f", "flannel.yaml")
}

// joinHeld resets a worker and lets it join again without flannel, and waits until it is held.
func (c *kindCluster) joinHeld(t *testing.T, name string) {
	t.Helper()
	c.excludeFlannel(t, name)
	c.resetNode(t, name)
	c.kubectl(t, "delete", "node", name)
	c.startKubelets(t, name)
	c.waitForHold(t, name, readiness.WaitingForCNI)
}
