//go:build e2e

package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// people drain, cordon and uncordon a worker, after a hold and during one.
func people(t *testing.T, c *cluster) {
	name := c.worker(4)
	c.kubectl(t, "drain", name, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=5m")
	c.kubectl(t, "-n", namespace, "delete", "pod", "-l", "app.kubernetes.io/name=holdfast-agent", "--field-selector", "spec.nodeName="+name)
	c.rolledOut(t, namespace, "daemonset/holdfast-agent")
	c.stays(t, name, "is drained, by an admin", func(n *corev1.Node) bool { return n.Spec.Unschedulable && state(n) == readiness.Released })
	c.kubectl(t, "uncordon", name)
	c.released(t, name)

	t.Log("uncordoned while it is held")
	c.newcomer(t, name)
	c.kubectl(t, "uncordon", name)
	c.until(t, name, "is open in both subresources", soon, func(n *corev1.Node) bool {
		return state(n) == readiness.Overridden && !n.Spec.Unschedulable && !conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue) &&
			conditionIs(n, readiness.NetworkHeld, corev1.ConditionFalse)
	})
	c.stays(t, name, "is open, by hand", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && !conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue)
	})

	t.Log("drained while it is held, to stay so")
	c.newcomer(t, name)
	c.kubectl(t, "annotate", "node", name, readiness.KeepCordonedAnnotation+"=repairs")
	c.kubectl(t, "drain", name, "--ignore-daemonsets", "--force", "--timeout=5m")
	require.Equal(t, readiness.Held, state(c.node(t, name)))
	c.flannelComes(t)
	c.until(t, name, "is handed over to whoever drained it", long, func(n *corev1.Node) bool {
		return state(n) == readiness.Released && n.Spec.Unschedulable && conditionIs(n, corev1.NodeReady, corev1.ConditionTrue)
	})
	c.stays(t, name, "is cordoned", func(n *corev1.Node) bool { return n.Spec.Unschedulable })
	c.kubectl(t, "annotate", "node", name, readiness.KeepCordonedAnnotation+"-")
	c.kubectl(t, "uncordon", name)
	c.released(t, name)
}
