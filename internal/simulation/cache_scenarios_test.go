package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// The watch of Nodes hangs at one replica when a Node registers. A member joins there, and its agent
// is silent. An autoscaler announces the end of that machine. The replica counts the member as healthy.
func TestF91MemberOnUncachedNode(t *testing.T) {
	for name, stalled := range map[string]bool{"watch works": false, "watch hangs": true} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				s.replicas[1].nodeWatchStalled = stalled
				h := s.addHost("n3")
				h.agent.silent = true
				s.addMemberOn(s.etcds[0], h, true)
				s.advance(10 * time.Second)
				s.editNode(h, func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
				})
				s.advance(time.Second)
				s.choices.next = func(int) int { return 1 } // replica 1 answers
				d := s.tryDelete(s.hosts[0])
				require.False(t, d.wasAllowed, d.answer)
			})
		})
	}
}
