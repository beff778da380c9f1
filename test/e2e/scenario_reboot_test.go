//go:build e2e

package e2e_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// goingDown reboots a worker as its admin does. The real logind waits for the agent, which has the node held while its
// kubelet still says that it is Ready: after the boot that kubelet is Ready again before any agent runs.
func goingDown(t *testing.T, c *cluster) {
	name := c.worker(4)
	c.ownBootID(t, name)
	was := c.node(t, name)
	require.Contains(t, c.on(t, name, "systemd-inhibit --list --no-legend --no-pager"), "holdfast", "the agent has asked logind to wait")
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	watch, err := c.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: was.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	started := []string{"inspect", "-f", "{{.State.StartedAt}}", name}
	before := c.run(t, "docker", started...)
	c.on(t, name, "systemctl reboot")
	held := false
	for event := range watch.ResultChan() {
		n, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		require.True(t, held || conditionIs(n, corev1.NodeReady, corev1.ConditionTrue), "it was not held while its kubelet lived:\n%s", describe(n))
		if record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation]); err == nil && record.State == readiness.Held {
			require.Equal(t, readiness.GoingDown, record.Reason)
			require.True(t, n.Spec.Unschedulable, describe(n))
			held = true
			break
		}
	}
	require.True(t, held, "the node went down and nobody held it")

	// Docker starts it again by itself, as a machine's firmware does.
	c.eventually(t, "node "+name+" has booted", long, func(ctx context.Context) (bool, string) {
		now, err := c.try(ctx, "docker", started...)
		return err == nil && now != before, now
	})
	c.released(t, name)
	require.NotEqual(t, was.Status.NodeInfo.BootID, c.node(t, name).Status.NodeInfo.BootID)
}
