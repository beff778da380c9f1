package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// No agent runs here: a node that a kubelet registers is held, and nobody looks after it but the webhook's leader.
func TestLeaderWatchesHolds(t *testing.T) {
	c := &cluster{APIServer: testenv.NewInstalledAPIServer(t)}
	r := startReplica(t, c.APIServer, "webhook", "--agent-missing-after=2s", "--stuck-hold-after=6s", "--on-stuck-hold=release")
	r.waitReady(t)
	require.Eventually(t, func() bool { return c.leader(t) != "" }, soon, 50*time.Millisecond)
	node, _, err := c.AddNode(t.Context(), testenv.NodeSpec{Name: "n1", Ready: true})
	require.NoError(t, err)
	require.True(t, node.Spec.Unschedulable)

	require.Contains(t, c.event(t, node, readiness.AgentMissing), "kubectl uncordon n1 && ")
	require.Contains(t, c.event(t, node, readiness.EventGivenUp), "--on-stuck-hold=release")
	require.Eventually(t, func() bool {
		free, err := c.Client().CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.NoError(t, err)
		record, err := readiness.ParseRecord(free.Annotations[readiness.HoldAnnotation])
		require.NoError(t, err)
		for _, condition := range free.Status.Conditions {
			if condition.Type == corev1.NodeNetworkUnavailable && condition.Status != corev1.ConditionFalse {
				return false
			}
		}
		return !free.Spec.Unschedulable && record.State == readiness.Released && record.Reason == readiness.Overdue
	}, soon, 50*time.Millisecond)
	_, metrics := fetch(t, "http://"+r.metrics+"/metrics")
	require.Contains(t, metrics, "holdfast_webhook_holds_given_up_total 1")
	require.Contains(t, metrics, `holdfast_webhook_holds{state="overdue"} `)
	require.Contains(t, metrics, "holdfast_webhook_born_held_switched_off_total 0")
}
