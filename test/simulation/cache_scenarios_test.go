package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// The watch of Nodes hangs at one replica when a Node registers. A member joins there, and its
// agent is silent. An autoscaler announces the end of that machine. The replica counts the member
// as healthy.
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
				require.False(s.t, d.wasAllowed, d.answer)
			})
		})
	}
}

// TestF96ClusterWatchHangs: the watches of EtcdClusters hang. A member joins on a node whose agent
// is silent, and the node is deleted.
func TestF96ClusterWatchHangs(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.replicas[0].clusterWatchStalled, s.replicas[1].clusterWatchStalled = true, true
		s.advance(3 * time.Minute)
		h := s.addHost("n3")
		h.agent.silent = true
		s.addMemberOn(s.etcds[0], h, true)
		s.advance(90 * time.Second) // the leader probes once a minute
		n, err := s.api.node(h.name)
		require.NoError(s.t, err)
		require.True(s.t, observation.IsLabelled(n))
		s.editNode(h, func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) })
		s.requireRefused(h, requiresLabel)
	})
}
