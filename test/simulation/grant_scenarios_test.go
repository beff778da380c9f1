package simulation

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestF9LostLearner(t *testing.T) {
	for name, order := range map[string][2]int{"learner first": {3, 0}, "learner second": {0, 3}} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 4, []int{3}, func(s *scenario) {
				m := s.addMemberOn(s.etcds[0], s.hosts[3], false)
				s.commit(s.requireAllowed(s.hosts[order[0]]))
				s.requireRefused(s.hosts[order[1]], breaksQuorum)
				require.True(t, s.etcds[0].promote(m))
				s.recordSnapshot()
				s.requireRefused(s.hosts[order[1]], breaksQuorum)
			})
		})
	}
}

func TestLossIsCounted(t *testing.T) {
	runScenario(t, 4, []int{4}, func(s *scenario) {
		s.memberOnHost(3).running = false
		s.recordSnapshot()
		s.requireRefused(s.hosts[0], breaksQuorum)
		s.deleteWithRetries(s.hosts[3])
	})
	runScenario(t, 4, []int{3}, func(s *scenario) {
		_, ok := s.etcds[0].join(s.hosts[3], false) // a voter that has never started
		require.True(t, ok)
		s.recordSnapshot()
		s.requireRefused(s.hosts[0], namesUnstartedMember)
	})
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.memberOnHost(1).running = false
		s.recordSnapshot()
		s.requireRefused(s.hosts[0], breaksQuorum)
	})
}

func TestSilentAgents(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.requireRefused(s.hosts[0], cannotSeeHealth)
	})
}

// One DELETE can call the webhook twice. The second call must not remove the grant of the
// first.
func TestF10GrantOfOtherCall(t *testing.T) {
	runScenario(t, 4, []int{3, 3}, func(s *scenario) { // c1 on n0 n1 n2, c2 on n1 n2 n3
		s.choices.next = func(int) int { return 0 }
		first := s.startDelete(s.hosts[1], false, false)
		slow := s.deleteCount
		s.isBlocked = func(c *apiCall) bool {
			return c.review != nil && c.review.deletion.number == slow && strings.HasSuffix(c.what, patchWithTests)
		}
		s.advance(time.Second)
		s.choices.next = func(int) int { return 1 }
		s.requireAllowed(s.hosts[1])
		s.etcds[1].memberOn(s.hosts[3]).running = false // the second cluster cannot lose n1 now
		s.recordSnapshot()
		s.requireRefused(s.hosts[2], breaksQuorum) // and all agents report it
		s.isBlocked = nil
		s.advance(10 * time.Second)
		require.Nil(t, first.review)
		s.etcds[1].memberOn(s.hosts[3]).running = true
		s.recordSnapshot()
		s.requireRefused(s.hosts[0], countsLostMember)
		s.requireRefused(s.hosts[3], countsLostMember)
	})
}

// A probe that has begun may still list a member that leaves later. A review that starts
// after the removal therefore needs its own probe request.
func TestStartedProbeIsNotShared(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		first := s.startDelete(s.hosts[0], false, false)
		s.isBlocked = func(c *apiCall) bool {
			if c.review != nil && c.review.deletion == first && strings.HasSuffix(c.what, mergePatch) && !c.done {
				c.carryOut() // the answer is delayed
			}
			return c.review != nil && c.review.deletion == first
		}
		s.advance(time.Second)
		s.isBlocked = nil
		s.isBlocked = func(c *apiCall) bool {
			return c.review != nil && c.review.deletion == first && !strings.HasSuffix(c.what, mergePatch) && c.done
		}
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.removeMemberOn(s.hosts[2])
		second := s.startDelete(s.hosts[1], false, false)
		s.advance(10 * time.Second)
		require.False(t, second.wasAllowed, second.answer)
	})
}

func TestF11RegisteredAgain(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.deleteWithRetries(s.hosts[0])
		s.registerNode(s.hosts[0])
		s.advance(19 * time.Minute)
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

func TestF16SecondDelete(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.editNode(s.hosts[0], func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
		s.deleteWithRetries(s.hosts[0])
		s.memberOnHost(1).running = false
		s.recordSnapshot()
		require.True(t, s.tryDelete(s.hosts[0]).wasAllowed)
	})
}

func TestDryRun(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		d := s.startDelete(s.hosts[0], true, false)
		s.advance(10 * time.Second)
		require.True(t, d.wasAllowed, d.answer)
		require.Zero(t, s.grantCountOf(s.etcds[0]))
		s.requireAllowed(s.hosts[1])
	})
}

// A settle annotation ends the grant of a deletion that is over, but no later grant for the
// same Node.
func TestSettledGrantAndLaterGrant(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		s.restartReplica(0) // there is no leader for a while
		c, err := s.api.cluster("c1")
		require.NoError(t, err)
		s.settleGrant(c, s.hosts[0].node)
		s.requireAllowed(s.hosts[0])
		s.replicas[0].startLeading()
		s.advance(20 * time.Second)
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

// An operator names a grant before it may end, and names it again as the leader's event tells.
func TestSettledTooEarly(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		d := s.requireAllowed(s.hosts[0])
		s.commit(d)
		c, err := s.api.cluster("c1")
		require.NoError(t, err)
		s.settleGrant(c, d.loss.uid)
		s.checkRecovery()
		require.False(t, s.hasGrant("c1", d.loss.uid))
	})
}

// A member that joins on a machine whose deletion is in progress is lost with the machine, although
// no grant names the member. When its agent announces it, the DELETE in progress is reviewed again,
// and the member counts.
func TestMemberAddedDuringDeletion(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.requireAllowed(s.hosts[0])
		s.removeMemberOn(s.hosts[0])
		s.hosts[0].agent.silent = true
		s.addMemberOn(s.etcds[0], s.hosts[0], true)
		s.requireRefused(s.hosts[1], countsLostMember)
		s.advance(2 * time.Minute) // the member that the grant names left long ago
		s.requireRefused(s.hosts[1], countsLostMember)
		s.hosts[0].agent.silent = false
		s.advance(30 * time.Second)
		s.requireAllowed(s.hosts[1])
		s.requireRefused(s.hosts[0], countsLostMember)
	})
}

func TestUnwrittenGrant(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.isBlocked = func(c *apiCall) bool {
			if c.review != nil && strings.HasSuffix(c.what, patchWithTests) && !c.done {
				c.fail(errors.New("etcd: request timed out"))
			}
			return false
		}
		s.requireRefused(s.hosts[0], cannotWriteGrant)
	})
}

// Members that are bound to a Node are lost with it, whatever the Node announces.
func TestBoundNodeWithoutAnnouncement(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.hosts[0].agent.silent = true
		s.editNode(s.hosts[0], func(n *corev1.Node) {
			n.Annotations = nil
			n.Status.Addresses = nil
		})
		s.requireAllowed(s.hosts[0])
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

// The Node is being deleted, or cannot be read, for longer than a grant of a deletion that
// did not happen stays.
func TestSlowDeletion(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.editNode(s.hosts[0], func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
		s.deleteWithRetries(s.hosts[0])
		s.advance(10 * time.Minute)
		require.Equal(t, 1, s.grantCountOf(s.etcds[0]))
	})
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.deleteWithRetries(s.hosts[0])
		s.isBlocked = func(c *apiCall) bool {
			if c.what == "get node n0" && !c.done {
				c.fail(errors.New("etcd: leader changed"))
			}
			return false
		}
		s.advance(10 * time.Minute)
		require.Equal(t, 1, s.grantCountOf(s.etcds[0]))
	})
}

// A patch that was decided from one object must not change a new object of the same name.
func TestReplacedObject(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		s.isBlocked = func(c *apiCall) bool { return c.replica.number == 0 && strings.HasSuffix(c.what, patchWithTests) }
		s.advance(6 * time.Minute) // the leader is about to end the grant
		require.Equal(t, 1, s.grantCountOf(s.etcds[0]))
		s.choices.next = func(int) int { return 0 }
		s.deleteAnyCluster()
		s.replicas[1].startLeading()
		s.advance(20 * time.Second)
		s.choices.next = func(int) int { return 1 }
		s.requireAllowed(s.hosts[1])
		s.isBlocked = nil
		s.advance(5 * time.Second)
		s.requireRefused(s.hosts[2], countsLostMember)
	})
}

// The leader restores the label of a Node that was replaced in the meantime. That is no
// error.
func TestLabelForReplacedNode(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.hosts[0].agent.silent = true
		s.isBlocked = func(c *apiCall) bool { return c.what == "patch node n0" }
		s.editNode(s.hosts[0], func(n *corev1.Node) { n.Labels = nil })
		s.advance(5 * time.Second)
		waiting, _ := s.gate.waiting()
		require.Len(t, waiting, 1)
		s.deleteNodeDirectly(s.hosts[0])
		s.registerNode(s.hosts[0])
		s.isBlocked = nil
		s.advance(time.Second)
		require.NotContains(t, strings.Join(s.trace, "\n"), "level=ERROR")
	})
}

// A replica that has lost the lease writes an old decision. It must not undo the bindings
// that the new leader wrote.
func TestBindingsOfTwoLeaders(t *testing.T) {
	runScenario(t, 4, []int{3}, func(s *scenario) {
		old := func(c *apiCall) bool { return c.replica.number == 0 && strings.HasSuffix(c.what, patchWithTests) }
		s.isBlocked = old
		s.removeMemberOn(s.hosts[0])
		s.advance(65 * time.Second) // the old leader is about to remove the binding
		s.replicas[1].startLeading()
		s.addMemberOn(s.etcds[0], s.hosts[3], true)
		s.isBlocked = func(c *apiCall) bool { return c.review == nil && !old(c) }
		s.advance(100 * time.Millisecond)
		s.deleteNodeDirectly(s.hosts[3])
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

// TestF62RepeatWithoutLists: a deletion is allowed, and another webhook refuses it. Then another
// member is removed, and no agent answers with a confirmed list when the same user deletes the
// Node again. The grant does not answer, because the voters are not known.
func TestF62RepeatWithoutLists(t *testing.T) {
	isCut := func(s *scenario, cut bool) {
		for _, h := range s.hosts {
			h.agent.silent = cut
		}
	}
	isBlind := func(s *scenario, blind bool) {
		for _, h := range s.hosts {
			h.agent.blind = blind
		}
	}
	hasElection := func(s *scenario, begins bool) { s.memberOnHost(2).running = !begins }
	for name, set := range map[string]func(s *scenario, begins bool){
		"agents silent": isCut, "certificates expired": isBlind, "no leader": hasElection,
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 5, []int{5}, func(s *scenario) {
				s.memberOnHost(4).running = false
				s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
				e := s.etcds[0]
				require.True(t, e.remove(e.memberOn(s.hosts[1])))
				s.advance(15 * time.Second)
				set(s, true)
				s.editNode(s.hosts[0], func(n *corev1.Node) {
					n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Written"})
				})
				d := s.tryDelete(s.hosts[0])
				set(s, false)
				require.False(t, s.hasFailed(), s.failure)
				require.False(t, d.wasAllowed, d.answer)
			})
		})
	}
}

// TestF77RepeatWithLearner: a machine is given up, and its member removed. The deletion of another
// Node is allowed, and its DELETE begins again because the Node was written. Meanwhile the machine
// joins again as a learner, which counts as a voter. The grant does not answer the second review.
func TestF77RepeatWithLearner(t *testing.T) {
	runScenario(t, 4, []int{4}, func(s *scenario) {
		s.commit(s.requireAllowed(s.hosts[3]))
		s.removeMemberOn(s.hosts[3])
		s.advance(5 * time.Second)
		d := s.requireAllowed(s.hosts[0])
		s.addMemberOn(s.etcds[0], s.hosts[3], false)
		s.editNode(s.hosts[0], func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Written"})
		})
		s.commit(d)
		for d.review != nil && !s.hasFailed() {
			s.advance(100 * time.Millisecond)
		}
		require.False(t, s.hasFailed(), s.failure)
		require.False(t, d.wasAllowed, d.answer)
		require.Contains(t, d.answer, "a learner")
	})
}
