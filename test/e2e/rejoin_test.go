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

// strip makes a node one that has never been in a cluster, as far as its network goes: its kubelet is stopped, its pods are
// gone, and so is what flannel has left on the disk.
func (c *cluster) strip(t *testing.T, name string) {
	t.Helper()
	c.on(t, name, `systemctl stop kubelet
		for attempt in 1 2 3 4 5; do
			crictl --timeout 60s rmp --force --all > /dev/null 2>&1 || true
			[ -n "$(crictl --timeout 60s pods -q)" ] || break
			sleep 1
		done
		[ -z "$(crictl --timeout 60s pods -q)" ]
		for link in cni0 flannel.1; do ip link delete $link 2>/dev/null || true; done
		rm -rf /run/flannel/subnet.env /etc/cni/net.d/10-flannel.conflist /opt/cni/bin/flannel /var/lib/cni`)
	// A pod that the API server still has would go on where it was, and not install flannel's plugin again.
	c.kubectl(t, "-n", "kube-flannel", "delete", "pods", "--field-selector", "spec.nodeName="+name, "--force", "--grace-period=0")
}

// join starts the kubelets of nodes that were stripped and deleted, and waits until their Nodes are there.
func (c *cluster) join(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.on(t, name, "systemctl start kubelet")
	}
	for _, name := range names {
		c.until(t, name, "registers", long, func(*corev1.Node) bool { return true })
	}
}

// back brings nodes that were deleted into the cluster again, and etcd's books in order.
func (c *cluster) back(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.strip(t, name)
	}
	c.join(t, names...)
	for _, name := range names {
		c.released(t, name)
	}
	c.wholeWebhook(t)
	c.settle(t)
}

// released waits until a node has been released, and can take pods.
func (c *cluster) released(t *testing.T, name string) {
	t.Helper()
	c.until(t, name, "is released", long, func(n *corev1.Node) bool {
		return state(n) == readiness.Released && !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 &&
			conditionIs(n, corev1.NodeReady, corev1.ConditionTrue) && conditionIs(n, readiness.NetworkHeld, corev1.ConditionFalse)
	})
}

// waits waits until a node is held for this reason.
func (c *cluster) waits(t *testing.T, name, reason string) *corev1.Node {
	t.Helper()
	return c.until(t, name, "is held, "+reason, long, func(n *corev1.Node) bool {
		held := condition(n, readiness.NetworkHeld)
		return state(n) == readiness.Held && n.Spec.Unschedulable && held.Status == corev1.ConditionTrue && held.Reason == reason
	})
}

// state is that of a Node's hold record, empty if there is none that can be read.
func state(n *corev1.Node) readiness.State {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	if err != nil {
		return ""
	}
	return record.State
}

// flannelKeepsOff has flannel run on all nodes but this one, where its pod goes if there is one.
func (c *cluster) flannelKeepsOff(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, "-n", "kube-flannel", "patch", "daemonset", "flannel", "--type=json", "-p", fmt.Sprintf(
		`[{"op":"replace","path":"/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/values","value":[%q]}]`, name))
	c.eventually(t, "flannel leaves node "+name, long, func(ctx context.Context) (bool, string) {
		pods, err := c.client.CoreV1().Pods("kube-flannel").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items) == 0, "its pod is still there"
	})
}

// flannelComes lets flannel run everywhere.
func (c *cluster) flannelComes(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-f", "flannel.yaml")
}

// newcomer has a worker join anew while flannel keeps off it, and waits until it is held for that.
func (c *cluster) newcomer(t *testing.T, name string) {
	t.Helper()
	c.flannelKeepsOff(t, name)
	c.strip(t, name)
	c.kubectl(t, "delete", "node", name)
	c.join(t, name)
	c.waits(t, name, readiness.WaitingForCNI)
}
