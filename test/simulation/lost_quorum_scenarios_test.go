package simulation

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// Each test repeats, with the real code, a sequence of events by which a draft of this
// design lost quorum. The F numbers are those of the list in docs/verdict.md. Package
// quorum tests the sequences that need no grants.

func TestF1aRenewedGrant(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		s.advance(4*time.Minute + 30*time.Second)
		s.requireAllowed(s.hosts[0]) // this deletion is in progress
		s.advance(2 * time.Minute)
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

func TestF1bSlowDeletion(t *testing.T) {
	for name, skew := range map[string]time.Duration{
		"equal clocks": 0, "leader's clock ahead": 15 * time.Minute,
		"leader's clock behind": -15 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				s.replicas[0].skew.Store(int64(skew))
				d := s.requireAllowed(s.hosts[0])
				s.advance(lateness - 10*time.Second)
				s.requireRefused(s.hosts[1], countsLostMember)
				s.commit(d)
				s.advance(10 * time.Minute)
				s.requireRefused(s.hosts[1], countsLostMember)
			})
		})
	}
}

func TestF1cStalledWatch(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.replicas[0].nodeWatchStalled, s.replicas[1].nodeWatchStalled = true, true
		s.deleteWithRetries(s.hosts[0])
		s.advance(7 * time.Minute)
		require.Equal(t, 1, s.grantCountOf(s.etcds[0]), "in the leader's cache the Node still exists")
		s.requireRefused(s.hosts[1], countsLostMember)
	})
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.replicas[0].nodeWatchStalled, s.replicas[1].nodeWatchStalled = true, true
		s.deleteNodeDirectly(s.hosts[0])
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

func TestF1eOldListEndsNoGrant(t *testing.T) {
	runScenario(t, 4, []int{3}, func(s *scenario) {
		// Their lists are older than the fourth member.
		s.hosts[0].agent.silent, s.hosts[1].agent.silent = true, true
		s.addMemberOn(s.etcds[0], s.hosts[3], true)
		s.requireAllowed(s.hosts[3])
		s.hosts[2].agent.blind, s.hosts[3].agent.blind = true, true
		s.advance(2 * time.Minute)
		s.hosts[2].agent.blind = false
		s.requireRefused(s.hosts[0], countsLostMember)
	})
}

// The same for bindings: without its binding, a member whose Node disappears would count as
// healthy by its probe.
func TestF1eOldListRemovesNoBinding(t *testing.T) {
	runScenario(t, 4, []int{3}, func(s *scenario) {
		s.hosts[0].agent.silent, s.hosts[1].agent.silent = true, true
		s.addMemberOn(s.etcds[0], s.hosts[3], true)
		s.hosts[2].agent.blind, s.hosts[3].agent.blind = true, true
		s.advance(3 * time.Minute)
		s.deleteNodeDirectly(s.hosts[3])
		s.hosts[2].agent.blind = false
		s.requireRefused(s.hosts[0], countsLostMember)
	})
}

func TestF2DeletedNode(t *testing.T) {
	for name, c := range map[string]func(*scenario, *simulatedHost){
		"Node deleted":          (*scenario).deleteNodeDirectly,
		"Node registered again": func(s *scenario, h *simulatedHost) { s.deleteNodeDirectly(h); s.registerNode(h) },
		"Node registered again and bound": func(s *scenario, h *simulatedHost) {
			s.deleteNodeDirectly(h)
			s.advance(5 * time.Second)
			s.registerNode(h)
			s.advance(5 * time.Second)
		},
		"Node registered again unnoticed": func(s *scenario, h *simulatedHost) {
			s.replicas[0].nodeWatchStalled = true
			s.deleteNodeDirectly(h)
			s.registerNode(h)
			s.advance(2 * time.Minute)
			s.replicas[0].nodeWatchStalled = false
			s.advance(5 * time.Second)
		},
		"Node being deleted": func(s *scenario, h *simulatedHost) {
			s.editNode(h, func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
			s.deleteNodeDirectly(h)
		},
		"deletion taint": func(s *scenario, h *simulatedHost) {
			s.editNode(h, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
			})
			s.addLoss(h, s.knowledgeAbout(h.name, h.node).bound[h.node])
		},
		"break-glass override": func(s *scenario, h *simulatedHost) {
			s.choices.next = func(int) int { return 0 }
			s.useBreakGlassFor(h)
			s.requireAllowed(h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				c(s, s.hosts[0])
				s.requireRefused(s.hosts[1], countsLostMember)
				s.advance(10 * time.Minute)
				s.syncKubelets()
				if name != "break-glass override" { // otherwise the deletion is too old to happen
					s.requireRefused(s.hosts[1], countsLostMember)
				}
			})
		})
	}
}

// A Node that cannot be read may be gone.
func TestUnreadableNode(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.replicas[0].nodeWatchStalled = true
		s.deleteNodeDirectly(s.hosts[0])
		s.isBlocked = func(c *apiCall) bool {
			if c.what == "get node n0" && !c.done {
				c.fail(errors.New("etcd: leader changed"))
			}
			return false
		}
		s.requireRefused(s.hosts[1], namesUnreadableNode)
	})
}

func TestF3UnlabelledBoundNode(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.editNode(s.hosts[0], func(n *corev1.Node) { n.Labels, n.Annotations = nil, nil })
		s.requireRefused(s.hosts[0], requiresLabel)
	})
}

func TestF4OlderProbe(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		e := s.etcds[0]
		a := s.hosts[2].agent
		q, _ := a.dueProbe(e)
		l := a.beginProbe(e, q)
		l.complete() // all members are healthy
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.memberOnHost(0).running = false
		s.recordSnapshot()
		d := s.startDelete(s.hosts[1], false, false)
		s.advance(time.Second)
		require.NotNil(t, d.review, "the review waits for observations")
		s.publish(l)
		s.advance(10 * time.Second)
		require.False(t, d.wasAllowed, d.answer)
	})
}

// The cache receives a version from before the review late, and with it an old nonce.
func TestF4LateNonce(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		s.choices.next = func(int) int { return 1 } // webhook 1
		s.replicas[1].clusterWatchStalled = true
		s.deleteWithRetries(s.hosts[0]) // this review requests observations and receives them
		s.removeMemberOn(s.hosts[0])
		s.advance(2 * time.Minute)
		s.addHostWithMember("new")
		s.advance(2 * time.Minute)
		for _, h := range s.hosts {
			h.agent.silent = true
		}
		s.memberOnHost(1).running = false
		s.recordSnapshot()
		d := s.startDelete(s.hosts[2], false, false)
		s.advance(time.Second)
		require.NotNil(t, d.review)
		s.replicas[1].clusterWatchStalled = false // the watch delivers all old versions
		s.advance(10 * time.Second)
		require.False(t, d.wasAllowed, d.answer)
	})
}

func TestF8TwoDeletions(t *testing.T) {
	for name, replicas := range map[string][2]int{"one replica": {0, 0}, "two replicas": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				to := 0
				s.choices.next = func(int) int { return replicas[to] }
				first := s.startDelete(s.hosts[0], false, false)
				to = 1
				second := s.startDelete(s.hosts[1], false, false)
				s.advance(10 * time.Second)
				require.NotEqual(t, first.wasAllowed, second.wasAllowed, "%s\n%s", first.answer, second.answer)
			})
		})
	}
}

func TestF8AllDeletions(t *testing.T) {
	runScenario(t, 5, []int{5}, func(s *scenario) {
		var all []*simulatedDeletion
		for i, h := range s.hosts {
			s.choices.next = func(int) int { return i % 2 }
			all = append(all, s.startDelete(h, false, true))
		}
		s.advance(10 * time.Second)
		passed := 0
		for _, d := range all {
			if d.wasAllowed {
				passed++
			}
		}
		require.Equal(t, 2, passed)
	})
}

func TestSeveralGrants(t *testing.T) {
	runScenario(t, 5, []int{5}, func(s *scenario) {
		s.abandon(s.requireAllowed(s.hosts[0]), "another plugin refuses")
		s.advance(3 * time.Minute)
		s.requireAllowed(s.hosts[1])
		s.requireRefused(s.hosts[2], countsLostMember)
		s.advance(3 * time.Minute)
		s.requireAllowed(s.hosts[2]) // the first grant has ended, the second has not
		s.requireRefused(s.hosts[0], countsLostMember)
	})
}

// A distribution removes the member of a deleted Node and lets the machine join again: under a new
// member ID, and with a Node of the same name. The machine may still be terminated.
func TestF20MachineJoinsAgain(t *testing.T) {
	join := func(s *scenario) { s.addMemberOn(s.etcds[0], s.hosts[0], true) }
	register := func(s *scenario) { s.registerNode(s.hosts[0]) }
	for name, c := range map[string]struct {
		first, second func(*scenario)
		deletion      func(*scenario, *simulatedHost)
	}{
		"Node first":   {register, join, (*scenario).deleteWithRetries},
		"member first": {join, register, (*scenario).deleteWithRetries},
		"deleted without a grant": {join, register, func(s *scenario, h *simulatedHost) {
			s.deleteNodeDirectly(h)
			s.advance(5 * time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			runScenario(t, 3, []int{3}, func(s *scenario) {
				c.deletion(s, s.hosts[0])
				s.removeMemberOn(s.hosts[0])
				s.advance(time.Minute)
				c.first(s)
				s.requireRefused(s.hosts[1], breaksQuorum)
				c.second(s)
				s.requireRefused(s.hosts[1], countsLostMember)
				s.advance(15 * time.Minute)
				s.requireRefused(s.hosts[1], countsLostMember)
				s.deleteWithin(s.hosts[1], 7*time.Minute)
			})
		})
	}
}

// The host rejoins under an address of no Node while its agent is down. No Node announces
// the new member, so the host may still hold it.
func TestUnseenRejoin(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		for _, h := range s.hosts {
			h.agent.hasForeignURLs = true
		}
		s.advance(2 * time.Minute)
		s.hosts[0].agent.silent = true
		s.removeMemberOn(s.hosts[0])
		s.addMemberOn(s.etcds[0], s.hosts[0], true)
		s.advance(2 * time.Minute)
		d := s.requireAllowed(s.hosts[1])
		s.requireRefused(s.hosts[0], mayHaveRejoined)
		s.commit(d)
		s.requireRefused(s.hosts[0], mayHaveRejoined)
		s.hosts[0].agent.silent = false
		s.advance(10 * time.Second)
		s.requireRefused(s.hosts[0], breaksQuorumOfC1)
	})
}

// A member joins on a machine whose agent is silent, and no replica leads, so its Node gets no
// label. Then etcd has no leader either, and no agent has a confirmed list. The last lists still
// show where the member runs.
func TestF89NoLeader(t *testing.T) {
	runScenario(t, 4, []int{3}, func(s *scenario) {
		s.hosts[3].agent.silent = true
		s.restartReplica(0)
		s.addMemberOn(s.etcds[0], s.hosts[3], true)
		s.advance(2 * time.Minute)
		s.requireRefused(s.hosts[3], requiresLabel)
		for _, h := range s.hosts[:2] {
			s.etcds[0].memberOn(h).running = false
		}
		s.recordSnapshot()
		s.advance(2 * time.Minute)
		s.requireRefused(s.hosts[3], requiresLabel)
	})
}
