package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// What is safe goes through, within the patience of the tools that ask (kubespray: ten times, three seconds apart).

func TestRollingReplacementDeletingTheNodeFirst(t *testing.T) {
	for name, size := range map[string]int{"three members": 3, "five members": 5} {
		t.Run(name, func(t *testing.T) {
			onStage(t, size, []int{size}, func(s *stage) {
				for i, name := range newNames(size) {
					s.patiently(s.hosts[i])
					s.dies(s.hosts[i])
					s.calm(10 * time.Second)
					s.removed(s.hosts[i])
					s.comes(name)
				}
				require.Len(t, s.etcds[0].left, size)
			})
		})
	}
}

func TestRollingReplacementGrowingFirst(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for i, name := range newNames(3) {
			s.comes(name)
			s.patiently(s.hosts[i])
			s.dies(s.hosts[i])
			s.calm(10 * time.Second)
			s.removed(s.hosts[i])
		}
	})
}

// Machines are replaced under the same name, as with Ansible's inventories.
func TestRollingReplacementUnderTheSameNames(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for i := range 3 {
			s.patiently(s.hosts[i])
			s.dies(s.hosts[i])
			s.calm(10 * time.Second)
			s.removed(s.hosts[i])
			s.comes(s.hosts[i].name)
		}
	})
}

// kubespray's remove-node: drain, member remove, reset, and only then the Node; agent and member are gone by then.
func TestRollingReplacementRemovingTheMemberFirst(t *testing.T) {
	for name, silent := range map[string]bool{"agents alive": false, "the agent dies with the reset": true} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 3, []int{3}, func(s *stage) {
				for i, name := range newNames(3) {
					s.removed(s.hosts[i])
					s.hosts[i].agent.silent = silent
					s.patiently(s.hosts[i])
					s.dies(s.hosts[i])
					s.comes(name)
				}
			})
		})
	}
}

func TestADeadMemberIsReplaced(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.dies(s.hosts[1])
		s.calm(time.Minute)
		s.refused(s.hosts[0], "quorum")
		s.patiently(s.hosts[1])
		s.calm(10 * time.Second)
		s.refused(s.hosts[0], "quorum")
		s.removed(s.hosts[1])
		s.comes("new")
		s.patiently(s.hosts[0])
	})
}

// Karpenter deletes the Node first, which stays by its finalizer until the machine is gone; the replacement is there
// before that.
func TestKarpentersOrder(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for i, name := range newNames(3) {
			h := s.hosts[i]
			s.edit(h, func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
			s.addHost(name)
			s.patiently(h)
			s.calm(30 * time.Second)
			require.True(t, s.try(h).passed, "a second DELETE of a Node that goes already")
			s.dies(h)
			s.edit(h, func(n *corev1.Node) { n.Finalizers = nil })
			s.calm(5 * time.Second)
			s.removed(h)
			s.joinsOn(s.etcds[0], s.hosts[3+i], true)
		}
	})
}

// What another plugin refused after us does not block for longer than its grant takes to settle.
func TestADeletionThatDidNotHappenIsForgotten(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		s.refused(s.hosts[1], "quorum")
		s.allowedWithin(s.hosts[1], 6*time.Minute)
	})
}

func TestTheSameNodeMayBeDeletedAgainAtOnce(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for range 5 {
			s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		}
		require.Equal(t, 1, s.grants(s.etcds[0]))
		s.patiently(s.hosts[0])
	})
}

// A kubelet that registers anew on the same machine is not a machine that is lost.
func TestAMachineThatRegistersAnewCountsAgain(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.vanish(s.hosts[0])
		s.calm(5 * time.Second)
		s.register(s.hosts[0])
		s.calm(5 * time.Second)
		s.refused(s.hosts[1], "given up")
		s.allowedWithin(s.hosts[1], 22*time.Minute)
	})
}

// vanish deletes the Node of a host without a question.
func (s *stage) vanish(h *host) {
	s.t.Helper()
	s.lose(h, s.known(h.name, h.node).bound[h.node])
	require.NoError(s.t, s.api.deleteNode(h.name))
	s.kubelets()
}

// An etcd host need not be a Node: who takes the kubelet off and keeps the machine says so.
func TestAMachineThatStaysWithoutItsNodeIsSettledByHand(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		uid := s.hosts[0].node
		s.patiently(s.hosts[0])
		s.calm(40 * time.Minute)
		s.refused(s.hosts[1], "kubectl annotate --overwrite etcdcluster c1 holdfast.dev/settle="+string(uid))
		c, err := s.api.cluster("c1")
		require.NoError(t, err)
		s.settle(c, uid)
		s.calm(5 * time.Second)
		s.patiently(s.hosts[1])
	})
}

func TestASafeDeletionIsRefusedForAMomentOnly(t *testing.T) {
	for name, trouble := range map[string]struct{ begins, ends func(*stage) }{
		"an election": {
			func(s *stage) { s.memberOf(0).running, s.memberOf(1).running = false, false },
			func(s *stage) { s.memberOf(0).running, s.memberOf(1).running = true, true },
		},
		"the agents restart": {
			func(s *stage) {
				s.hosts[0].agent.silent, s.hosts[1].agent.silent, s.hosts[2].agent.silent = true, true, true
			},
			func(s *stage) {
				s.hosts[0].agent.silent, s.hosts[1].agent.silent, s.hosts[2].agent.silent = false, false, false
			},
		},
		"a certificate is renewed": {
			func(s *stage) {
				s.hosts[0].agent.blind, s.hosts[1].agent.blind, s.hosts[2].agent.blind = true, true, true
			},
			func(s *stage) {
				s.hosts[0].agent.blind, s.hosts[1].agent.blind, s.hosts[2].agent.blind = false, false, false
			},
		},
		"the label was taken off": {
			func(s *stage) { s.edit(s.hosts[2], func(n *corev1.Node) { n.Labels = nil }) },
			func(*stage) {},
		},
		"a watch hangs": {
			func(s *stage) { s.replicas[0].deafToClusters, s.replicas[1].deafToClusters = true, true },
			func(*stage) {},
		},
		"the webhook restarts": {
			func(s *stage) { s.restart(0); s.restart(1) },
			func(s *stage) { s.replicas[1].lead() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 3, []int{3}, func(s *stage) {
				trouble.begins(s)
				s.note()
				for range 3 {
					s.try(s.hosts[2])
					s.calm(3 * time.Second)
				}
				trouble.ends(s)
				s.note()
				s.allowedWithin(s.hosts[2], 21*time.Second)
			})
		})
	}
}

func (s *stage) memberOf(i int) *member { return s.etcds[0].of(s.hosts[i]) }

// Two clusters on the same machines: each is asked, and a safe one does not wait for the other.
func TestTwoClustersOnTheSameMachines(t *testing.T) {
	onStage(t, 4, []int{3, 3}, func(s *stage) { // the first on n0 n1 n2, the second on n1 n2 n3
		s.patiently(s.hosts[0])
		s.dies(s.hosts[0])
		s.calm(10 * time.Second)
		s.refused(s.hosts[1], "etcd cluster c1")
		s.patiently(s.hosts[3])
		s.dies(s.hosts[3])
		s.calm(10 * time.Second)
		s.refused(s.hosts[1], "etcd cluster c2")
		s.removed(s.hosts[0])
		s.removed(s.hosts[3])
		n := s.addHost("new")
		s.joinsOn(s.etcds[0], n, true)
		s.refused(s.hosts[1], "etcd cluster c2")
		s.joinsOn(s.etcds[1], n, true)
		s.patiently(s.hosts[1])
	})
}

// A cluster that nothing is known of is bound from announcements alone, and then guards.
func TestANewClusterIsGuardedWithinSeconds(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		require.NoError(t, s.api.deleteCluster("c1"))
		s.calm(10 * time.Second)
		s.patiently(s.hosts[0])
		s.refused(s.hosts[1], "quorum")
	})
}
