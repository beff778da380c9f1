package world

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsHeartbeat(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"time of a condition": {func(n *corev1.Node) {
			n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "2", metav1.NewTime(time.Now())
		}, true},
		"condition": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"label":     {func(n *corev1.Node) { n.Labels = map[string]string{"holdfast.dev/hold": "never"} }, false},
		"cordon":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"address":   {func(n *corev1.Node) { n.Status.Addresses = []corev1.NodeAddress{{Address: "10.0.0.2"}} }, false},
		"other UID": {func(n *corev1.Node) { n.UID = "v" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1"}}
			before.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			after := before.DeepCopy()
			c.change(after)
			require.Equal(t, c.want, isHeartbeat(before, after))
		})
	}
	require.False(t, isHeartbeat(nil, &corev1.Node{}), "registered")
	require.False(t, isHeartbeat(&corev1.Node{}, nil), "deleted")
}

func TestIsLeading(t *testing.T) {
	elected := make(chan struct{})
	l := Loop{Elected: elected}
	require.False(t, l.isLeading())
	close(elected)
	require.True(t, l.isLeading())
}
