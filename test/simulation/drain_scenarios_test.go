package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// runDrainScenario plays a scenario with three members and their guard pods.
func runDrainScenario(t *testing.T, play func(*scenario)) {
	t.Helper()
	p := profile{hosts: 3, clusters: []int{3}, bound: true}
	p.enabled[drains] = true
	runScenarioWith(t, p, play)
}

// tryEvict requests the eviction of the guard pod once, and reports whether the pod is gone.
func (s *scenario) tryEvict(d *simulatedDrain) bool {
	s.t.Helper()
	s.recordSnapshot()
	require.Contains(s.t, s.api.pods, guard.Name(d.host.name))
	s.startEviction(d)
	for d.request.review != nil && !s.hasFailed() {
		s.advance(100 * time.Millisecond)
	}
	require.False(s.t, s.hasFailed(), s.failure)
	if d.request.wasAllowed {
		s.evict(d.request)
	}
	return d.request.wasAllowed
}

// requireDrained drains a node, with the retries of kubectl.
func (s *scenario) requireDrained(d *simulatedDrain, limit time.Duration) {
	s.t.Helper()
	for begun := time.Now(); !s.tryEvict(d); s.advance(5 * time.Second) {
		require.Less(s.t, time.Since(begun), limit, "Node %s is still refused: %s", d.host.name, d.request.answer)
	}
}

// requireNotDrained requires that the eviction of the guard pod is refused with this text.
func (s *scenario) requireNotDrained(d *simulatedDrain, text string) {
	s.t.Helper()
	require.False(s.t, s.tryEvict(d))
	require.Contains(s.t, d.request.answer, text)
}

// stepUntil lets the program of the drain do its steps until the condition is true.
func (s *scenario) stepUntil(d *simulatedDrain, what string, is func() bool) {
	s.t.Helper()
	for range 10 {
		if is() {
			return
		}
		s.stepDrain(d)
		s.recordSnapshot()
		s.advance(time.Second)
	}
	require.Fail(s.t, what)
}

// Three programs drain one node each. One proceeds at a time, and each goes on when the one before
// is back.
func TestDrainsTakeTurns(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		var all []*simulatedDrain
		for _, h := range s.hosts {
			all = append(all, s.beginDrain(h, rebootsMachine))
		}
		for i, d := range all {
			s.requireDrained(d, 3*time.Minute)
			for _, other := range all[i+1:] {
				s.requireNotDrained(other, "drain")
				s.requireRefused(other.host, countsLostMember)
			}
			s.stepUntil(d, "goes down", func() bool { return !d.host.up })
			s.advance(5 * time.Minute)
			for _, other := range all[i+1:] {
				s.requireNotDrained(other, "drain")
			}
			s.stepUntil(d, "comes back", func() bool { return s.isOpen(d.host.name) })
			for _, other := range all[i+1:] {
				s.requireNotDrained(other, "drain")
			}
		}
		s.advance(3 * time.Minute)
		require.Zero(t, s.grantCountOf(s.etcds[0]))
		for _, h := range s.hosts {
			require.Contains(t, s.api.pods, guard.Name(h.name))
		}
	})
}

// A node that stays cordoned stays away, however long.
func TestDrainedNodeStaysCordoned(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		d := s.beginDrain(s.hosts[0], rebootsMachine)
		s.requireDrained(d, time.Minute)
		s.advance(time.Hour)
		s.requireRefused(s.hosts[1], countsLostMember)
		s.requireNotDrained(s.beginDrain(s.hosts[2], rebootsMachine), "drain")
		require.NotContains(t, s.api.pods, guard.Name("n0"))
		s.requireAllowed(s.hosts[0])
	})
}

// A program opens the node before its machine has restarted.
func TestDrainedNodeOpenedEarly(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		d := s.beginDrain(s.hosts[0], opensFirst)
		s.requireDrained(d, time.Minute)
		s.setClosed(d, false)
		s.advance(20 * time.Second) // the member still runs, and is proven healthy
		s.requireRefused(s.hosts[1], countsLostMember)
		d.host.up = false
		s.recordSnapshot()
		s.advance(10 * time.Minute)
		s.requireRefused(s.hosts[1], "")
		s.returnMachine(d)
		s.recordSnapshot()
		s.deleteWithin(s.hosts[1], 3*time.Minute)
	})
}

// Cluster API terminates the machine of a drained node, and deletes the Node last.
func TestDrainThenDeletion(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		for i, name := range newHostNames(3) {
			d := s.beginDrain(s.hosts[i], terminatesMachine)
			s.requireDrained(d, time.Minute)
			s.terminateHost(d.host)
			s.advance(10 * time.Second)
			s.requireRefused(s.hosts[(i+1)%3], breaksQuorum)
			s.deleteWithRetries(d.host)
			s.requireRefused(s.hosts[(i+1)%3], breaksQuorum)
			s.removeMemberOn(d.host)
			s.addHostWithMember(name)
			s.hosts[i] = s.hosts[3]
			s.hosts = s.hosts[:3]
		}
	})
}

// The deletion of a drained Node is allowed, and is still in progress when the drain is over: each
// way to leave ends for itself.
func TestDeletionOutlastsDrain(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		d := s.beginDrain(s.hosts[0], rebootsMachine)
		s.requireDrained(d, time.Minute)
		s.setClosed(d, false)
		deletion := s.requireAllowed(s.hosts[0])
		s.advance(3 * time.Minute)
		s.requireRefused(s.hosts[1], countsLostMember)
		s.commit(deletion)
		s.requireRefused(s.hosts[1], countsLostMember)
	})
}

// A deletion elsewhere was allowed: no node may be drained until it is over.
func TestDrainAfterDeletion(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		s.requireAllowed(s.hosts[0])
		d := s.beginDrain(s.hosts[1], rebootsMachine)
		s.requireNotDrained(d, countsLostMember)
		s.requireDrained(d, 6*time.Minute)
	})
}

// Karpenter deletes the Node first, and drains while its finalizer keeps the Node.
func TestDrainOfDeletedNode(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		d := s.beginDrain(s.hosts[0], deletesNodeFirst)
		other := s.beginDrain(s.hosts[1], rebootsMachine)
		s.requireNotDrained(d, "is not being drained")
		s.deleteWithRetries(s.hosts[0])
		s.requireNotDrained(other, countsLostMember)
		s.requireDrained(d, time.Minute)
		s.stepDrain(d)
		s.recordSnapshot()
		require.True(t, d.host.killed)
		s.advance(time.Minute)
		s.requireNotDrained(other, countsLostMember)
		require.NotContains(t, s.api.pods, guard.Name("n0"))
	})
}

// TestF87DrainOfDeletedNode: the deletion of a Node is allowed, and Karpenter's finalizer keeps it.
// Another voter stops before Karpenter drains the node. The drain waits, and so does the machine.
func TestF87DrainOfDeletedNode(t *testing.T) {
	runDrainScenario(t, func(s *scenario) {
		d := s.beginDrain(s.hosts[0], deletesNodeFirst)
		s.deleteWithRetries(s.hosts[0])
		s.memberOnHost(1).running = false
		s.advance(time.Minute)
		s.requireNotDrained(d, breaksQuorum)
		s.memberOnHost(1).running = true
		s.requireDrained(d, time.Minute)
	})
}
