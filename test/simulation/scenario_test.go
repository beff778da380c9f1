package simulation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// A scenario is a simulation in which a test decides what happens, and all parties do their
// work immediately.
type scenario struct {
	*simulation
	t *testing.T
}

// Parts of the refusals that the scenarios require.
const (
	countsLostMember = "counts as lost"
	breaksQuorum     = "quorum"
)

// runScenario plays a scenario with clusters of these sizes on this number of machines. It
// checks every allowed deletion, like a random history.
func runScenario(t *testing.T, hosts int, clusters []int, play func(*scenario)) {
	t.Helper()
	runScenarioWith(t, profile{hosts: hosts, clusters: clusters, bound: true}, play)
}

func runScenarioWith(t *testing.T, p profile, play func(*scenario)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scenario{t: t, simulation: newSimulation(t.Context(), replay(nil), p, true)}
		defer func() {
			s.stop()
			if s.hasFailed() || t.Failed() {
				t.Errorf("%s\n%s", s.failure, strings.Join(s.trace, "\n"))
			}
		}()
		s.advance(10 * time.Second)
		play(s)
		s.recordSnapshot()
	})
}

// tryDelete sends one DELETE and waits for its answer.
func (s *scenario) tryDelete(h *simulatedHost) *simulatedDeletion {
	s.t.Helper()
	s.recordSnapshot()
	d := s.startDelete(h, false, false)
	s.await(d)
	return d
}

// await waits for the answer to a request.
func (s *scenario) await(d *simulatedDeletion) {
	s.t.Helper()
	for d.review != nil && !s.hasFailed() {
		s.advance(100 * time.Millisecond)
	}
	require.False(s.t, s.hasFailed(), s.failure)
}

// requireRefused requires that a DELETE is refused with this text.
func (s *scenario) requireRefused(h *simulatedHost, text string) {
	s.t.Helper()
	d := s.tryDelete(h)
	require.False(s.t, d.wasAllowed, "Node %s was allowed: %s", h.name, d.answer)
	require.Contains(s.t, d.answer, text)
}

// requireAllowed requires that a DELETE is allowed, and leaves it in progress.
func (s *scenario) requireAllowed(h *simulatedHost) *simulatedDeletion {
	s.t.Helper()
	d := s.tryDelete(h)
	require.True(s.t, d.wasAllowed, d.answer)
	return d
}

// removeMemberOn removes the host's member from its cluster.
func (s *scenario) removeMemberOn(h *simulatedHost) {
	s.t.Helper()
	for _, e := range s.etcds {
		if m := e.memberOn(h); m != nil {
			require.True(s.t, e.remove(m), "etcd refuses to remove member %s", m.id)
			m.wiped = true
		}
	}
	s.recordSnapshot()
}

func (s *scenario) addMemberOn(e *simulatedEtcd, h *simulatedHost, promoted bool) *simulatedMember {
	s.t.Helper()
	m, ok := e.join(h, true)
	require.True(s.t, ok)
	m.started, m.running = true, true
	s.giveRole(h)
	s.recordSnapshot()
	s.advance(5 * time.Second)
	if promoted {
		require.True(s.t, e.promote(m))
		s.recordSnapshot()
		s.advance(5 * time.Second)
	}
	return m
}

func (s *scenario) editNode(h *simulatedHost, edit func(*corev1.Node)) {
	s.t.Helper()
	_, err := s.api.editNode(h.name, edit)
	require.NoError(s.t, err)
	s.syncKubelets()
}

// deleteNodeDirectly deletes the Node of a host without a review.
func (s *scenario) deleteNodeDirectly(h *simulatedHost) {
	s.t.Helper()
	s.addLoss(h, s.knowledgeAbout(h.name, h.node).bound[h.node])
	require.NoError(s.t, s.api.deleteNode(h.name))
	s.syncKubelets()
}

// tryEvict requests the eviction of the guard pod once, and reports whether the pod is gone.
func (s *scenario) tryEvict(d *simulatedDrain) bool {
	s.t.Helper()
	s.recordSnapshot()
	require.Contains(s.t, s.api.pods, guard.Name(d.host.name))
	s.startEviction(d)
	s.await(d.request)
	if d.request.wasAllowed {
		s.evict(d.request)
	}
	return d.request.wasAllowed
}

// machineOf returns the object of a host.
func (s *scenario) machineOf(h *simulatedHost) *managedMachine {
	s.t.Helper()
	for _, m := range s.machines.objects {
		if m.host == h {
			return m
		}
	}
	require.Fail(s.t, "no object", h.name)
	return nil
}

// tryDeleteMachine sends one DELETE of the object of a host, and carries it out if it is allowed.
func (s *scenario) tryDeleteMachine(h *simulatedHost) *simulatedDeletion {
	s.t.Helper()
	s.recordSnapshot()
	d := s.startMachineDelete(s.machineOf(h))
	s.await(d)
	if d.wasAllowed {
		s.commitMachine(d)
	}
	return d
}
