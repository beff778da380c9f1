package simulation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// These scenarios need the calls and the steps of agents; all others are in testdata/traces.

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
		s.etcds[0].memberOn(s.hosts[0]).running = false
		s.recordSnapshot()
		d := s.startDelete(s.hosts[1], false, false)
		s.advance(time.Second)
		require.NotNil(t, d.review, "the review waits for observations")
		s.publish(l)
		s.advance(10 * time.Second)
		require.False(t, d.wasAllowed, d.answer)
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
