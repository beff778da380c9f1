package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestFirstSearch checks what the Node carries while the local disks are searched for the first
// time since the agent started.
func TestFirstSearch(t *testing.T) {
	reported := func() *corev1.Node { // by an earlier agent
		n := bornHeld(testNode)
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse})
		return n
	}
	for name, c := range map[string]struct {
		node        *corev1.Node
		searchTakes time.Duration
		unread      []string
		after       time.Duration
		member      corev1.ConditionStatus
	}{
		"goes on": {node: bornHeld(testNode), searchTakes: time.Minute, after: 20 * time.Second},
		"goes on, reported": {
			node: reported(), searchTakes: time.Minute, after: 20 * time.Second, member: corev1.ConditionFalse,
		},
		"has ended": {
			node: bornHeld(testNode), searchTakes: time.Minute, after: 3 * time.Minute,
			member: corev1.ConditionFalse,
		},
		"takes long": {
			node: bornHeld(testNode), searchTakes: time.Hour, after: 10 * time.Minute,
			member: corev1.ConditionUnknown,
		},
		"takes long, reported": {
			node: reported(), searchTakes: time.Hour, after: 10 * time.Minute, member: corev1.ConditionUnknown,
		},
		"incomplete": {
			node: reported(), unread: []string{"a disk"}, after: 20 * time.Second, member: corev1.ConditionUnknown,
		},
		"hold is explained": {node: bornHeld(testNode), searchTakes: time.Hour, after: startGrace + slowTick},
		"ended during a grace": {
			node: bornHeld(testNode), searchTakes: searchGrace, after: searchGrace + 2*scanInterval,
			member: corev1.ConditionFalse,
		},
	} {
		t.Run(name, func(t *testing.T) {
			prepare := func(f *bubbleFixture) { f.searchTakes, f.unread = c.searchTakes, c.unread }
			inBubble(t, c.node, prepare, func(f *bubbleFixture) {
				elapse(f.t, c.after)
				n := f.node()
				require.Equal(f.t, c.member, status(n, observation.EtcdMemberCondition))
				require.Equal(f.t, corev1.ConditionTrue, status(n, readiness.NetworkHeld))
				require.Zero(f.t, f.searches.Load(), "no member is missed")
			})
		})
	}
}
