package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// These tests show that safe deletions succeed while the usual tools still retry
// (kubespray: ten times, three seconds apart).

func TestReplacementNodeFirst(t *testing.T) {
	for name, size := range map[string]int{"three members": 3, "five members": 5} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, size, []int{size}, func(s *scenario) {
				for i, name := range newHostNames(size) {
					s.deleteWithRetries(s.hosts[i])
					s.terminateHost(s.hosts[i])
					s.advance(10 * time.Second)
					s.removeMemberOn(s.hosts[i])
					s.addHostWithMember(name)
				}
				require.Len(t, s.etcds[0].removed, size)
			})
		})
	}
}

func TestReplacementGrowingFirst(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for i, name := range newHostNames(3) {
			s.addHostWithMember(name)
			s.deleteWithRetries(s.hosts[i])
			s.terminateHost(s.hosts[i])
			s.advance(10 * time.Second)
			s.removeMemberOn(s.hosts[i])
		}
	})
}

// Machines are replaced under the same names, as with Ansible inventories. A machine that its Node
// identifies as another one counts at once.
func TestReplacementSameNames(t *testing.T) {
	for name, limit := range map[string]time.Duration{
		"known machines": 30 * time.Second, "unknown machines": 22 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				for _, h := range s.hosts {
					if name == "unknown machines" {
						s.editNode(h, func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "" })
					}
				}
				for i := range 3 {
					s.deleteWithin(s.hosts[i], limit)
					s.terminateHost(s.hosts[i])
					s.advance(10 * time.Second)
					s.removeMemberOn(s.hosts[i])
					s.addHostWithMember(s.hosts[i].name)
				}
			})
		})
	}
}

// kubespray's remove-node drains the node, removes the member and resets the host before it
// deletes the Node. The agent and the member are gone by then.
func TestReplacementMemberFirst(t *testing.T) {
	for name, silent := range map[string]bool{"agents running": false, "agents stopped by the reset": true} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				for i, name := range newHostNames(3) {
					s.removeMemberOn(s.hosts[i])
					s.hosts[i].agent.silent = silent
					s.deleteWithRetries(s.hosts[i])
					s.terminateHost(s.hosts[i])
					s.addHostWithMember(name)
				}
			})
		})
	}
}

func TestDeadMember(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.terminateHost(s.hosts[1])
		s.advance(time.Minute)
		s.requireRefused(s.hosts[0], breaksQuorum)
		s.deleteWithRetries(s.hosts[1])
		s.advance(10 * time.Second)
		s.requireRefused(s.hosts[0], breaksQuorum)
		s.removeMemberOn(s.hosts[1])
		s.addHostWithMember("new")
		s.deleteWithRetries(s.hosts[0])
	})
}

// Karpenter deletes the Node first. A finalizer keeps the Node until the machine is gone,
// and the replacement exists before that.
func TestKarpenterOrder(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for i, name := range newHostNames(3) {
			h := s.hosts[i]
			s.editNode(h, func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
			s.addHost(name)
			s.deleteWithRetries(h)
			s.advance(30 * time.Second)
			require.True(t, s.tryDelete(h).wasAllowed, "second DELETE of a Node that is being deleted")
			s.terminateHost(h)
			s.editNode(h, func(n *corev1.Node) { n.Finalizers = nil })
			s.advance(5 * time.Second)
			s.removeMemberOn(h)
			s.addMemberOn(s.etcds[0], s.hosts[3+i], true)
		}
	})
}

// A deletion that another plugin refuses blocks others only until its grant ends.
func TestAbandonedDeletion(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		s.requireRefused(s.hosts[1], breaksQuorum)
		s.deleteWithin(s.hosts[1], 6*time.Minute)
	})
}

func TestRepeatedDeletion(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for range 5 {
			s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		}
		require.Equal(t, 1, s.grantCountOf(s.etcds[0]))
		s.deleteWithRetries(s.hosts[0])
	})
}

// A kubelet that registers again on the same machine shows that the machine is not lost.
func TestRegisteredAgain(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.deleteNodeDirectly(s.hosts[0])
		s.advance(5 * time.Second)
		s.registerNode(s.hosts[0])
		s.advance(5 * time.Second)
		s.requireRefused(s.hosts[1], countsLostMember)
		s.deleteWithin(s.hosts[1], 22*time.Minute)
	})
}

// TestF84RegisteredAgainUnseen: a Node is deleted without a review, and the kubelet registers
// again. Its agent has not reported yet, so the new Node has no label. Meanwhile another voter
// stops.
func TestF84RegisteredAgainUnseen(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		h := s.hosts[0]
		s.deleteNodeDirectly(h)
		s.advance(20 * time.Second) // the leader writes the grant
		h.agent.silent = true
		s.registerNode(h)
		s.memberOnHost(1).running = false
		s.recordSnapshot()
		s.requireRefused(h, requiresLabel)
		h.agent.silent = false
		s.advance(10 * time.Second)
		s.requireRefused(h, breaksQuorum)
	})
	runDrainScenario(t, func(s *scenario) {
		h := s.hosts[0]
		s.memberOnHost(1).running = false
		h.agent.silent = true
		s.deleteNodeDirectly(h)
		s.registerNode(h)
		s.advance(20 * time.Second)
		s.requireNotDrained(s.beginDrain(h, rebootsMachine), breaksQuorum)
	})
}

// deleteNodeDirectly deletes the Node of a host without a review.
func (s *scenario) deleteNodeDirectly(h *simulatedHost) {
	s.t.Helper()
	s.addLoss(h, s.knowledgeAbout(h.name, h.node).bound[h.node])
	require.NoError(s.t, s.api.deleteNode(h.name))
	s.syncKubelets()
}

// An etcd host need not be a Node. An operator who removes the kubelet but keeps the
// machine settles the grant.
func TestMachineWithoutNode(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		uid := s.hosts[0].node
		s.deleteWithRetries(s.hosts[0])
		s.advance(40 * time.Minute)
		s.requireRefused(s.hosts[1], "kubectl annotate --overwrite etcdcluster c1 holdfast.dev/settle="+string(uid))
		c, err := s.api.cluster("c1")
		require.NoError(t, err)
		s.settleGrant(c, uid)
		s.advance(5 * time.Second)
		s.deleteWithRetries(s.hosts[1])
	})
}

func TestTemporaryRefusal(t *testing.T) {
	for name, trouble := range map[string]struct{ begins, ends func(*scenario) }{
		"election": {
			func(s *scenario) { s.memberOnHost(0).running, s.memberOnHost(1).running = false, false },
			func(s *scenario) { s.memberOnHost(0).running, s.memberOnHost(1).running = true, true },
		},
		"agent restart": {
			func(s *scenario) {
				s.hosts[0].agent.silent, s.hosts[1].agent.silent, s.hosts[2].agent.silent = true, true, true
			},
			func(s *scenario) {
				s.hosts[0].agent.silent, s.hosts[1].agent.silent, s.hosts[2].agent.silent = false, false, false
			},
		},
		"certificate renewal": {
			func(s *scenario) {
				s.hosts[0].agent.blind, s.hosts[1].agent.blind, s.hosts[2].agent.blind = true, true, true
			},
			func(s *scenario) {
				s.hosts[0].agent.blind, s.hosts[1].agent.blind, s.hosts[2].agent.blind = false, false, false
			},
		},
		"removed label": {
			func(s *scenario) { s.editNode(s.hosts[2], func(n *corev1.Node) { n.Labels = nil }) },
			func(*scenario) {},
		},
		"stalled watch": {
			func(s *scenario) { s.replicas[0].clusterWatchStalled, s.replicas[1].clusterWatchStalled = true, true },
			func(*scenario) {},
		},
		"webhook restart": {
			func(s *scenario) { s.restartReplica(0); s.restartReplica(1) },
			func(s *scenario) { s.replicas[1].startLeading() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				trouble.begins(s)
				s.recordSnapshot()
				for range 3 {
					s.tryDelete(s.hosts[2])
					s.advance(3 * time.Second)
				}
				trouble.ends(s)
				s.recordSnapshot()
				s.deleteWithin(s.hosts[2], 21*time.Second)
			})
		})
	}
}

func (s *scenario) memberOnHost(i int) *simulatedMember { return s.etcds[0].memberOn(s.hosts[i]) }

// Both clusters on the same machines must agree, and one does not wait for the other.
func TestTwoClusters(t *testing.T) {
	runScenario(t, 4, []int{3, 3}, func(s *scenario) { // c1 on n0 n1 n2, c2 on n1 n2 n3
		s.deleteWithRetries(s.hosts[0])
		s.terminateHost(s.hosts[0])
		s.advance(10 * time.Second)
		s.requireRefused(s.hosts[1], namesC1)
		s.deleteWithRetries(s.hosts[3])
		s.terminateHost(s.hosts[3])
		s.advance(10 * time.Second)
		s.requireRefused(s.hosts[1], namesC2)
		s.removeMemberOn(s.hosts[0])
		s.removeMemberOn(s.hosts[3])
		n := s.addHost("new")
		s.addMemberOn(s.etcds[0], n, true)
		s.requireRefused(s.hosts[1], namesC2)
		s.addMemberOn(s.etcds[1], n, true)
		s.deleteWithRetries(s.hosts[1])
	})
}

// The leader binds a new cluster from announcements alone. After that the cluster is
// protected.
func TestNewCluster(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		require.NoError(t, s.api.deleteCluster("c1"))
		s.advance(10 * time.Second)
		s.deleteWithRetries(s.hosts[0])
		s.requireRefused(s.hosts[1], breaksQuorum)
	})
}
