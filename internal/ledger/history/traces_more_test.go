package history

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestF9LearnersThatAreDoomedCount(t *testing.T) {
	for name, order := range map[string][2]int{"the learner first": {3, 0}, "the learner second": {0, 3}} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 4, []int{3}, func(s *stage) {
				m := s.joinsOn(s.etcds[0], s.hosts[3], false)
				s.commit(s.allows(s.hosts[order[0]]))
				s.refused(s.hosts[order[1]], "quorum")
				require.True(t, s.etcds[0].promote(m))
				s.note()
				s.refused(s.hosts[order[1]], "quorum")
			})
		})
	}
}

func TestTheLossIsCountedNotTheRemoval(t *testing.T) {
	onStage(t, 4, []int{4}, func(s *stage) {
		s.memberOf(3).running = false
		s.note()
		s.refused(s.hosts[0], "quorum")
		s.patiently(s.hosts[3])
	})
	onStage(t, 4, []int{3}, func(s *stage) {
		_, ok := s.etcds[0].join(s.hosts[3], false) // a voter that has never started
		require.True(t, ok)
		s.note()
		s.refused(s.hosts[0], "never started")
	})
	onStage(t, 3, []int{3}, func(s *stage) {
		s.memberOf(1).running = false
		s.note()
		s.refused(s.hosts[0], "quorum")
	})
}

func TestNobodyAnswers(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.refused(s.hosts[0], "cannot see")
	})
}

// One request is two calls of the webhook, and what the first wrote the second must not take back.
func TestF10NoGrantIsTakenBack(t *testing.T) {
	onStage(t, 4, []int{3, 3}, func(s *stage) { // c1 on n0 n1 n2, c2 on n1 n2 n3
		s.choices.next = func(int) int { return 0 }
		first := s.delete(s.hosts[1], false, false)
		slow := s.requests
		s.waits = func(c *call) bool {
			return c.asker != nil && c.asker.deletion.number == slow && strings.HasSuffix(c.what, "with tests")
		}
		s.calm(time.Second)
		s.choices.next = func(int) int { return 1 }
		s.allows(s.hosts[1])
		s.etcds[1].of(s.hosts[3]).running = false // the second cluster could not lose n1 now
		s.note()
		s.refused(s.hosts[2], "quorum") // and all agents say so
		s.waits = nil
		s.calm(10 * time.Second)
		require.Nil(t, first.review)
		s.etcds[1].of(s.hosts[3]).running = true
		s.note()
		s.refused(s.hosts[0], "given up")
		s.refused(s.hosts[3], "given up")
	})
}

// A member that left after a question was begun is in the answers to it. Who comes later needs a question of his own.
func TestAQuestionThatIsBeingAskedIsNotShared(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		first := s.delete(s.hosts[0], false, false)
		s.waits = func(c *call) bool {
			if c.asker != nil && c.asker.deletion == first && strings.HasSuffix(c.what, "blindly") && !c.done {
				c.carryOut() // and its answer is on its way
			}
			return c.asker != nil && c.asker.deletion == first
		}
		s.calm(time.Second)
		s.waits = nil
		s.waits = func(c *call) bool {
			return c.asker != nil && c.asker.deletion == first && !strings.HasSuffix(c.what, "blindly") && c.done
		}
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.removed(s.hosts[2])
		second := s.delete(s.hosts[1], false, false)
		s.calm(10 * time.Second)
		require.False(t, second.passed, second.answer)
	})
}

func TestF11FiveMinutesDoNotUndoADeletion(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.patiently(s.hosts[0])
		s.register(s.hosts[0])
		s.calm(19 * time.Minute)
		s.refused(s.hosts[1], "given up")
	})
}

func TestF16ASecondDeleteOfANodeThatGoesPassesAtOnce(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.edit(s.hosts[0], func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
		s.patiently(s.hosts[0])
		s.memberOf(1).running = false
		s.note()
		require.True(t, s.try(s.hosts[0]).passed)
	})
}

func TestADryRunLeavesNothing(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		d := s.delete(s.hosts[0], true, false)
		s.calm(10 * time.Second)
		require.True(t, d.passed, d.answer)
		require.Zero(t, s.grants(s.etcds[0]))
		s.allows(s.hosts[1])
	})
}

// What an operator said of a deletion that is over is not said of the next one of the same Node.
func TestASettlementByHandEndsNoLaterGrant(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		s.restart(0) // nobody leads for a while
		c, err := s.api.cluster("c1")
		require.NoError(t, err)
		s.settle(c, s.hosts[0].node)
		s.allows(s.hosts[0])
		s.replicas[0].lead()
		s.calm(20 * time.Second)
		s.refused(s.hosts[1], "given up")
	})
}

// A member that joins on a machine whose deletion is under way goes with it, although no grant names it.
func TestAMemberThatCameToADoomedMachineIsDoomed(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.allows(s.hosts[0])
		s.removed(s.hosts[0])
		s.joinsOn(s.etcds[0], s.hosts[0], true)
		s.refused(s.hosts[1], "given up")
		s.calm(2 * time.Minute) // the member that the grant names has left for long
		s.refused(s.hosts[1], "given up")
	})
}

func TestWithoutAGrantNothingIsAllowed(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.waits = func(c *call) bool {
			if c.asker != nil && strings.HasSuffix(c.what, "with tests") && !c.done {
				c.fail(errors.New("etcd: request timed out"))
			}
			return false
		}
		s.refused(s.hosts[0], "recording the grant")
	})
}

// Whatever a Node says of itself: the members that are bound to it go with it.
func TestABoundNodeIsJudgedWhateverItSays(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.hosts[0].agent.silent = true
		s.edit(s.hosts[0], func(n *corev1.Node) {
			n.Annotations = nil
			n.Status.Addresses = nil
		})
		s.allows(s.hosts[0])
		s.refused(s.hosts[1], "given up")
	})
}

// The Node is going, or cannot be read, for longer than a failed deletion takes to be forgotten.
func TestADeletionThatTakesLongIsNotForgotten(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.edit(s.hosts[0], func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
		s.patiently(s.hosts[0])
		s.calm(10 * time.Minute)
		require.Equal(t, 1, s.grants(s.etcds[0]))
	})
	onStage(t, 3, []int{3}, func(s *stage) {
		s.patiently(s.hosts[0])
		s.waits = func(c *call) bool {
			if c.what == "get node n0" && !c.done {
				c.fail(errors.New("etcd: leader changed"))
			}
			return false
		}
		s.calm(10 * time.Minute)
		require.Equal(t, 1, s.grants(s.etcds[0]))
	})
}

// What was decided from an object is not written into the one that took its name.
func TestAnObjectMadeAnewIsAnotherOne(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		s.waits = func(c *call) bool { return c.replica.number == 0 && strings.HasSuffix(c.what, "with tests") }
		s.calm(6 * time.Minute) // the leader is about to settle it
		require.Equal(t, 1, s.grants(s.etcds[0]))
		s.choices.next = func(int) int { return 0 }
		s.forgets()
		s.replicas[1].lead()
		s.calm(20 * time.Second)
		s.choices.next = func(int) int { return 1 }
		s.allows(s.hosts[1])
		s.waits = nil
		s.calm(5 * time.Second)
		s.refused(s.hosts[2], "given up")
	})
}

// The Node that was to have its label back is another one by now, which says nothing to anybody.
func TestALabelForANodeThatIsGoneIsNoTrouble(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.hosts[0].agent.silent = true
		s.waits = func(c *call) bool { return c.what == "patch node n0" }
		s.edit(s.hosts[0], func(n *corev1.Node) { n.Labels = nil })
		s.calm(5 * time.Second)
		waiting, _ := s.gate.waiting()
		require.Len(t, waiting, 1)
		s.vanish(s.hosts[0])
		s.register(s.hosts[0])
		s.waits = nil
		s.calm(time.Second)
		require.NotContains(t, strings.Join(s.trace, "\n"), "round is incomplete")
	})
}

// A leader that should have given up writes what it decided long ago: it must not undo what the new one has bound.
func TestBindingsOfTwoLeadersAreNotMixedUp(t *testing.T) {
	onStage(t, 4, []int{3}, func(s *stage) {
		old := func(c *call) bool { return c.replica.number == 0 && strings.HasSuffix(c.what, "with tests") }
		s.waits = old
		s.removed(s.hosts[0])
		s.calm(65 * time.Second) // the old leader is about to unbind it
		s.replicas[1].lead()
		s.joinsOn(s.etcds[0], s.hosts[3], true)
		s.waits = func(c *call) bool { return c.asker == nil && !old(c) }
		s.calm(100 * time.Millisecond)
		s.vanish(s.hosts[3])
		s.refused(s.hosts[1], "given up")
	})
}
