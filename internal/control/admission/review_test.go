package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// An agent that has not found out whether its node holds a member has not reported.
func TestAgentSilent(t *testing.T) {
	for status, isSilent := range map[corev1.ConditionStatus]bool{
		"": true, corev1.ConditionUnknown: true, corev1.ConditionFalse: false, corev1.ConditionTrue: false,
	} {
		node := etcdNode()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if status != "" {
			node.Status.Conditions = append(node.Status.Conditions,
				corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: status})
		}
		req, _, err := newRequest(review{node: node}, false, time.Now())
		require.NoError(t, err)
		require.Equal(t, isSilent, req.AgentSilent, "condition %q", status)
	}
}
