//go:build e2e

package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// uninstall takes Holdfast off a cluster with one node held, one cordoned by an admin, and an annotation of a person's on an
// etcd node.
func uninstall(t *testing.T, c *cluster) {
	held, cordoned, etcdNode := c.worker(4), c.worker(3), c.worker(1)
	c.kubectl(t, "cordon", cordoned)
	c.kubectl(t, "annotate", "node", etcdNode, "example.org/mine=stays")
	c.newcomer(t, held)
	c.run(t, "env", "KUBECTL="+c.tool("kubectl"), "make", "-C", c.root, "--no-print-directory", "uninstall")
	c.flannelComes(t)

	for name, n := range c.nodes(t) {
		for key := range n.Annotations {
			require.NotContains(t, key, "holdfast.dev/", "an annotation stays on node %s", name)
			require.NotContains(t, []string{protect.ClusterAutoscalerAnnotation, protect.EscalatorAnnotation, protect.CastAIAnnotation, protect.KarpenterAnnotation}, key, "an annotation stays on node %s", name)
		}
		for key := range n.Labels {
			require.NotContains(t, key, "holdfast.dev/", "a label stays on node %s", name)
		}
		for _, found := range n.Status.Conditions {
			require.NotContains(t, []corev1.NodeConditionType{protect.EtcdMemberCondition, readiness.NetworkHeld}, found.Type, "a condition stays on node %s", name)
			require.NotContains(t, found.Reason, "Holdfast", "a condition stays on node %s", name)
		}
		require.Equal(t, name == cordoned, n.Spec.Unschedulable, "node %s", name)
	}
	require.Equal(t, "stays", c.node(t, etcdNode).Annotations["example.org/mine"])
	for _, kind := range []string{
		"validatingwebhookconfigurations", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "clusterroles", "clusterrolebindings", "customresourcedefinitions", "namespaces",
	} {
		require.NotContains(t, c.kubectl(t, "get", kind, "-o", "name"), "holdfast", "something of Holdfast stays")
	}
	require.NotContains(t, c.kubectl(t, "-n", "default", "get", "roles,rolebindings", "-o", "name"), "holdfast")

	c.until(t, held, "takes pods", long, func(n *corev1.Node) bool {
		return len(n.Spec.Taints) == 0 && conditionIs(n, corev1.NodeReady, corev1.ConditionTrue)
	})
	c.kubectl(t, "uncordon", cordoned)
	require.Contains(t, c.kubectl(t, "delete", "node", cordoned, "--dry-run=server"), "deleted (server dry run)")
	require.Empty(t, strings.TrimSpace(c.kubectl(t, "get", "pods", "-A", "-l", "app.kubernetes.io/part-of=holdfast", "-o", "name")))
}
