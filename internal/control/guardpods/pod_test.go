package guardpods

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// TestTolerations: a descheduler that evicts pods from cordoned nodes leaves a guard pod alone. A
// taint of the effect NoExecute does not delete it, and Karpenter drains it.
func TestTolerations(t *testing.T) {
	pod := NewPod(guard.Decision{Owner: &v1alpha1.EtcdCluster{}, On: &corev1.Node{}}, &corev1.Pod{})
	for _, test := range []struct {
		key        string
		effect     corev1.TaintEffect
		isTolerant bool
	}{
		{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule, true},
		{corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, true},
		{"karpenter.sh/disrupted", corev1.TaintEffectNoSchedule, false},
		{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule, false},
	} {
		isTolerant := false
		for _, toleration := range pod.Spec.Tolerations {
			isTolerant = isTolerant || (toleration.Effect == test.effect && (toleration.Key == "" || toleration.Key == test.key))
		}
		require.Equal(t, test.isTolerant, isTolerant, test.key)
	}
}
