package history

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// Each test is a trace by which a draft of this design lost quorum, told with the real code. The F numbers are those of the
// list of such traces; what can be told without a ledger is in pkg/protect.

func TestF1aARetryRenewsTheGrant(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		s.calm(4*time.Minute + 30*time.Second)
		s.allows(s.hosts[0]) // and is under way
		s.calm(2 * time.Minute)
		s.refused(s.hosts[1], "given up")
	})
}

func TestF1bADeletionMayTakeMinutes(t *testing.T) {
	for name, skew := range map[string]time.Duration{"clocks agree": 0, "the leader's is ahead": 15 * time.Minute, "the leader's is behind": -15 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 3, []int{3}, func(s *stage) {
				s.replicas[0].skew.Store(int64(skew))
				d := s.allows(s.hosts[0])
				s.calm(lateness - 10*time.Second)
				s.refused(s.hosts[1], "given up")
				s.commit(d)
				s.calm(10 * time.Minute)
				s.refused(s.hosts[1], "given up")
			})
		})
	}
}

func TestF1cAWatchThatHangsHidesNoDeletion(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.replicas[0].deafToNodes, s.replicas[1].deafToNodes = true, true
		s.patiently(s.hosts[0])
		s.calm(7 * time.Minute)
		require.Equal(t, 1, s.grants(s.etcds[0]), "by the leader's cache the Node lives on")
		s.refused(s.hosts[1], "given up")
	})
	onStage(t, 3, []int{3}, func(s *stage) {
		s.replicas[0].deafToNodes, s.replicas[1].deafToNodes = true, true
		s.vanish(s.hosts[0])
		s.refused(s.hosts[1], "given up")
	})
}

func TestF1eASilentObserversListSettlesNothing(t *testing.T) {
	onStage(t, 4, []int{3}, func(s *stage) {
		s.hosts[0].agent.silent, s.hosts[1].agent.silent = true, true // their lists are older than the fourth member
		s.joinsOn(s.etcds[0], s.hosts[3], true)
		s.allows(s.hosts[3])
		s.hosts[2].agent.blind, s.hosts[3].agent.blind = true, true
		s.calm(2 * time.Minute)
		s.hosts[2].agent.blind = false
		s.refused(s.hosts[0], "given up")
	})
}

// The same for bindings: without its binding, a member whose Node vanishes would count by probe.
func TestF1eASilentObserversListUnbindsNothing(t *testing.T) {
	onStage(t, 4, []int{3}, func(s *stage) {
		s.hosts[0].agent.silent, s.hosts[1].agent.silent = true, true
		s.joinsOn(s.etcds[0], s.hosts[3], true)
		s.hosts[2].agent.blind, s.hosts[3].agent.blind = true, true
		s.calm(3 * time.Minute)
		s.vanish(s.hosts[3])
		s.hosts[2].agent.blind = false
		s.refused(s.hosts[0], "given up")
	})
}

func TestF2WhatVanishedIsLost(t *testing.T) {
	for name, c := range map[string]func(*stage, *host){
		"gone":                 (*stage).vanish,
		"gone, and back":       func(s *stage, h *host) { s.vanish(h); s.register(h) },
		"gone, back and bound": func(s *stage, h *host) { s.vanish(h); s.calm(5 * time.Second); s.register(h); s.calm(5 * time.Second) },
		"back before anybody noticed": func(s *stage, h *host) {
			s.replicas[0].deafToNodes = true
			s.vanish(h)
			s.register(h)
			s.calm(2 * time.Minute)
			s.replicas[0].deafToNodes = false
			s.calm(5 * time.Second)
		},
		"going": func(s *stage, h *host) {
			s.edit(h, func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
			s.vanish(h)
		},
		"marked": func(s *stage, h *host) {
			s.edit(h, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
			})
			s.lose(h, s.known(h.name, h.node).bound[h.node])
		},
		"glass broken": func(s *stage, h *host) {
			s.choices.next = func(int) int { return 0 }
			s.breakGlassFor(h)
			s.allows(h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 3, []int{3}, func(s *stage) {
				c(s, s.hosts[0])
				s.refused(s.hosts[1], "given up")
				s.calm(10 * time.Minute)
				s.kubelets()
				if name != "glass broken" { // nothing of it can be under way any more
					s.refused(s.hosts[1], "given up")
				}
			})
		})
	}
}

// A Node that cannot be read may be gone.
func TestANodeThatCannotBeReadIsLost(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.replicas[0].deafToNodes = true
		s.vanish(s.hosts[0])
		s.waits = func(c *call) bool {
			if c.what == "get node n0" && !c.done {
				c.fail(errors.New("etcd: leader changed"))
			}
			return false
		}
		s.refused(s.hosts[1], "could not be read")
	})
}

func TestF3WithoutTheLabelNoBoundNodeGoes(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.edit(s.hosts[0], func(n *corev1.Node) { n.Labels, n.Annotations = nil, nil })
		s.refused(s.hosts[0], "label")
	})
}

func TestF4WhatWasSeenBeforeTheQuestionProvesNothing(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		e := s.etcds[0]
		a := s.hosts[2].agent
		q, _ := a.due(e)
		l := a.begin(e, q)
		l.rest() // all are well
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.memberOf(0).running = false
		s.note()
		d := s.delete(s.hosts[1], false, false)
		s.calm(time.Second)
		require.NotNil(t, d.review, "it waits for answers")
		s.publish(l)
		s.calm(10 * time.Second)
		require.False(t, d.passed, d.answer)
	})
}

// A version from before the question, heard of after it, brings its nonce along.
func TestF4AnOldNonceThatIsHeardLateIsNotAsked(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		s.choices.next = func(int) int { return 1 } // webhook 1
		s.replicas[1].deafToClusters = true
		s.patiently(s.hosts[0]) // asks, and is answered
		s.removed(s.hosts[0])
		s.calm(2 * time.Minute)
		s.comes("new")
		s.calm(2 * time.Minute)
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.memberOf(1).running = false
		s.note()
		d := s.delete(s.hosts[2], false, false)
		s.calm(time.Second)
		require.NotNil(t, d.review)
		s.replicas[1].deafToClusters = false // hears of all that was before
		s.calm(10 * time.Second)
		require.False(t, d.passed, d.answer)
	})
}

func TestF8TwoAtOnce(t *testing.T) {
	for name, replicas := range map[string][2]int{"at one webhook": {0, 0}, "at two": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			onStage(t, 3, []int{3}, func(s *stage) {
				to := 0
				s.choices.next = func(int) int { return replicas[to] }
				first := s.delete(s.hosts[0], false, false)
				to = 1
				second := s.delete(s.hosts[1], false, false)
				s.calm(10 * time.Second)
				require.NotEqual(t, first.passed, second.passed, "%s\n%s", first.answer, second.answer)
			})
		})
	}
}

func TestF8AllAtOnce(t *testing.T) {
	onStage(t, 5, []int{5}, func(s *stage) {
		var all []*deletion
		for i, h := range s.hosts {
			s.choices.next = func(int) int { return i % 2 }
			all = append(all, s.delete(h, false, true))
		}
		s.calm(10 * time.Second)
		passed := 0
		for _, d := range all {
			if d.passed {
				passed++
			}
		}
		require.Equal(t, 2, passed)
	})
}

func TestEveryGrantCounts(t *testing.T) {
	onStage(t, 5, []int{5}, func(s *stage) {
		s.finish(s.allows(s.hosts[0]), "another plugin refuses")
		s.calm(3 * time.Minute)
		s.allows(s.hosts[1])
		s.refused(s.hosts[2], "given up")
		s.calm(3 * time.Minute)
		s.allows(s.hosts[2]) // the first is settled, the second is not
		s.refused(s.hosts[0], "given up")
	})
}

// A host whose agent is down joins again at an address that is no Node's: nobody knows of its new member.
func TestAHostThatJoinedAgainUnseenKeepsItsNode(t *testing.T) {
	onStage(t, 3, []int{3}, func(s *stage) {
		for _, h := range s.hosts {
			h.agent.placeless = true
		}
		s.calm(2 * time.Minute)
		s.hosts[0].agent.silent = true
		s.removed(s.hosts[0])
		s.joinsOn(s.etcds[0], s.hosts[0], true)
		s.calm(2 * time.Minute)
		d := s.allows(s.hosts[1])
		s.refused(s.hosts[0], "etcd may have joined again here")
		s.commit(d)
		s.refused(s.hosts[0], "etcd may have joined again here")
		s.hosts[0].agent.silent = false
		s.calm(10 * time.Second)
		s.refused(s.hosts[0], "would cost etcd cluster c1 its quorum")
	})
}
