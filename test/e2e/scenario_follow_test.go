//go:build e2e

package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// following stops, disables and starts a member. It is one all the while, and so the marks stay; they come back if somebody
// takes them.
func following(t *testing.T, c *cluster) {
	name := c.worker(2)
	c.on(t, name, "systemctl stop etcd")
	c.until(t, name, "says that its member is down", soon, func(n *corev1.Node) bool {
		require.True(t, marked(n) || condition(n, protect.EtcdMemberCondition).Status == corev1.ConditionTrue, describe(n))
		return marked(n) && n.Annotations[protect.AnnouncementAnnotation] != "" && c.summary(t) == 2
	})
	c.on(t, name, "systemctl disable etcd 2>/dev/null")
	c.kubectl(t, "annotate", "node", name, protect.KarpenterAnnotation+"-", protect.ClusterAutoscalerAnnotation+"-")
	c.until(t, name, "has its marks back, with etcd stopped and disabled", soon, marked)
	c.on(t, name, "systemctl enable etcd 2>/dev/null; systemctl start etcd")
	c.healthy(t, 3)
	require.True(t, marked(c.node(t, name)))
}

// summary is the number of healthy voters that people see.
func (c *cluster) summary(t *testing.T) int32 {
	t.Helper()
	if healthy := c.etcdCluster(t).Status.Healthy; healthy != nil {
		return *healthy
	}
	return -1
}

// learner adds a fourth member as kubespray does, by way of a learner, and takes it off again. An annotation that somebody
// had set before is not ours, and is there after all.
func learner(t *testing.T, c *cluster) {
	name := c.worker(4)
	c.kubectl(t, "annotate", "node", name, protect.KarpenterAnnotation+"=true")
	c.etcd.ctl(t, 1, "member add etcd4 --learner --peer-urls=https://"+c.etcd.address(t, 4)+":2380")
	c.etcd.layOut(t, 4, "existing", 1, 2, 3, 4)
	c.on(t, name, "systemctl start etcd")
	n := c.until(t, name, "is protected for its learner", soon, func(n *corev1.Node) bool {
		return marked(n) && n.Annotations[protect.AnnouncementAnnotation] != ""
	})
	require.NotContains(t, n.Annotations[protect.MarksAnnotation], protect.KarpenterAnnotation)
	c.healthy(t, 3)

	id := c.etcd.id(t, 4)
	c.etcd.promote(t, 1, id)
	c.healthy(t, 4)
	c.etcd.ctl(t, 1, "member remove "+id)
	c.healthy(t, 3)
	c.on(t, name, "systemctl disable --now etcd 2>/dev/null; rm -rf /var/lib/etcd")
	n = c.until(t, name, "is an ordinary node again", long, func(n *corev1.Node) bool {
		return n.Labels[protect.EtcdMemberLabel] == "" && n.Annotations[protect.ClusterAutoscalerAnnotation] == ""
	})
	require.Equal(t, "true", n.Annotations[protect.KarpenterAnnotation], "it was set by a person")
	c.kubectl(t, "annotate", "node", name, protect.KarpenterAnnotation+"-")
	c.until(t, name, "has nothing of ours left", soon, unmarked)
}
