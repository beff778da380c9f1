package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// startedAnew ends an agent and starts the next one, as every update does.
func startedAnew(t *testing.T, c cluster) {
	const told = "has 1 voter, 1 healthy, and may lose 0 more"
	c.register(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "updated-1"}})
	c.leader(t, "anew")
	_, err := c.Kubectl(t.Context(), "patch", "etcdcluster", string(testCluster), "--subresource=status", "--type=merge", "-p",
		`{"status":{"voters":1,"healthy":1,"quorum":1,"mayLose":0}}`)
	require.NoError(t, err)
	t.Run("the first", func(t *testing.T) {
		start(t, c, "updated-1", holdsMember)
		c.until(t, "updated-1", "told of its cluster", func(n *corev1.Node) bool {
			return marked(n) && strings.Contains(condition(n, protect.EtcdMemberCondition).Message, told)
		})
	})
	before, err := c.nodes.Get(t.Context(), "updated-1", metav1.GetOptions{})
	require.NoError(t, err)

	t.Run("the next writes nothing", func(t *testing.T) {
		r := start(t, c, "updated-1", holdsMember)
		require.Eventually(t, func() bool { return strings.Contains(r.said(), told) }, soon, 10*time.Millisecond, "it decides with what the EtcdClusters say")
		after, err := c.nodes.Get(t.Context(), "updated-1", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, before.ResourceVersion, after.ResourceVersion)
	})

	t.Run("it waits no longer than it has to", func(t *testing.T) {
		r := start(t, c, "updated-1", func(r *rig) {
			holdsNothing(r)
			r.fault.set(func(req *http.Request) int {
				if strings.Contains(req.URL.Path, "etcdclusters") {
					return http.StatusForbidden
				}
				return 0
			})
		})
		require.Eventually(t, func() bool { return strings.Contains(r.said(), "etcd membership decided") }, 2*newcomer+r.agent.cfg.Tick, 10*time.Millisecond)
		after, err := c.nodes.Get(t.Context(), "updated-1", metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, isMember(after), "what cannot be read unprotects nothing")
	})
}
