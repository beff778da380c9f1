package simulation

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A scenario is a simulation in which a test decides what happens, and all parties do their
// work immediately.
type scenario struct {
	*simulation
	t *testing.T
}

// Parts of the refusals that the scenarios require.
const (
	countsLostMember     = "counts as lost"
	breaksQuorum         = "quorum"
	breaksQuorumOfC1     = "would break quorum of etcd cluster c1"
	namesC1              = "etcd cluster c1"
	namesC2              = "etcd cluster c2"
	cannotSeeHealth      = "cannot see"
	namesUnstartedMember = "never started"
	cannotWriteGrant     = "recording the grant"
	namesUnreadableNode  = "could not be read"
	requiresLabel        = "label"
	mayHaveRejoined      = "etcd on this node may have joined again"
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
	for d.review != nil && !s.hasFailed() {
		s.advance(100 * time.Millisecond)
	}
	require.False(s.t, s.hasFailed(), s.failure)
	return d
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

// deleteWithRetries deletes a Node with the retries of kubespray: ten attempts, three
// seconds apart.
func (s *scenario) deleteWithRetries(h *simulatedHost) {
	s.t.Helper()
	s.deleteWithin(h, 30*time.Second)
}

// deleteWithin retries every three seconds until the deletion is allowed, and carries it
// out.
func (s *scenario) deleteWithin(h *simulatedHost, limit time.Duration) {
	s.t.Helper()
	begun := time.Now()
	for {
		d := s.tryDelete(h)
		if d.wasAllowed {
			s.commit(d)
			s.recordSnapshot()
			return
		}
		require.Less(s.t, time.Since(begun), limit, "Node %s is still refused: %s", h.name, d.answer)
		s.advance(3 * time.Second)
	}
}

func (s *scenario) terminateHost(h *simulatedHost) {
	s.terminate(h)
	s.recordSnapshot()
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

// addHostWithMember adds a machine with a new member, which joins as a learner and is
// promoted.
func (s *scenario) addHostWithMember(name string) {
	s.t.Helper()
	s.addMemberOn(s.etcds[0], s.addHost(name), true)
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

// grantCountOf returns the number of grants of a cluster.
func (s *scenario) grantCountOf(e *simulatedEtcd) int {
	s.t.Helper()
	c, err := s.api.cluster(string(e.id))
	require.NoError(s.t, err)
	return len(c.Spec.Grants)
}

// newHostNames returns names for machines that are added later.
func newHostNames(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint("new", i))
	}
	return all
}
