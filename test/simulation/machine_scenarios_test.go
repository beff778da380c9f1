package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// runMachineScenario plays a scenario with three members, whose machines have objects of this kind.
func runMachineScenario(t *testing.T, kind string, play func(*scenario)) {
	t.Helper()
	p := profile{hosts: 3, clusters: []int{3}, bound: true, machineKind: kind}
	p.enabled[machines] = true
	runScenarioWith(t, p, func(s *scenario) {
		s.advance(30 * time.Second) // the leader sets the hooks
		play(s)
	})
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
	for d.review != nil && !s.hasFailed() {
		s.advance(100 * time.Millisecond)
	}
	require.False(s.t, s.hasFailed(), s.failure)
	if d.wasAllowed {
		s.commitMachine(d)
	}
	return d
}

func (s *scenario) requireMachineRefused(h *simulatedHost) {
	s.t.Helper()
	d := s.tryDeleteMachine(h)
	require.False(s.t, d.wasAllowed, d.answer)
	require.Contains(s.t, d.answer, countsLostMember)
}

// unregister makes the NodeClaim of a host one whose Node Karpenter does not know.
func (s *scenario) unregister(h *simulatedHost) {
	s.t.Helper()
	m := s.machineOf(h)
	m.IsRegistered, m.Node = false, ""
	s.machines.put(m)
}

// endMachine lets the program end the machine of an object that is being deleted.
func (s *scenario) endMachine(h *simulatedHost) {
	s.t.Helper()
	s.stepMachine(s.machineOf(h))
	s.recordSnapshot()
}

// Users delete the Machines of two nodes. The hook of one is removed, and that of the other waits,
// however long Cluster API takes.
func TestMachinesWaitForTheirHooks(t *testing.T) {
	runMachineScenario(t, machine.KindMachine, func(s *scenario) {
		require.True(t, s.machineOf(s.hosts[0]).IsHooked)
		require.True(t, s.tryDeleteMachine(s.hosts[0]).wasAllowed)
		s.requireMachineRefused(s.hosts[1])
		s.advance(10 * time.Minute) // the grant ends, because the Machine has its hook
		require.Zero(t, s.grantCountOf(s.etcds[0]))
		require.True(t, s.tryDeleteMachine(s.hosts[1]).wasAllowed)
		s.advance(10 * time.Minute)

		s.endMachine(s.hosts[0]) // it waits for its hook
		s.endMachine(s.hosts[1])
		s.advance(time.Minute)
		first, second := s.machineOf(s.hosts[0]), s.machineOf(s.hosts[1])
		require.NotEqual(t, first.IsHooked, second.IsHooked)
		if first.IsHooked {
			first, second = second, first
		}
		s.advance(time.Hour) // Cluster API takes its time; the grant stays
		s.requireMachineRefused(s.hosts[2])
		s.endMachine(first.host)
		require.True(t, first.host.killed)
		s.advance(10 * time.Minute)
		require.True(t, second.IsHooked)
		s.finishMachine(first, "its machine has ended")
		s.removeMemberOn(first.host)
		s.addHostWithMember("new0")
		s.advance(30 * time.Minute)
		require.False(t, second.IsHooked)
	})
}

// TestF80ClaimAndNode: the deletions of a NodeClaim and of its Node are two requests of one user,
// within a minute. Another voter stops between them, and the Node is written. The grant of the
// first request does not answer the second one.
func TestF80ClaimAndNode(t *testing.T) {
	isRefused := func(d *simulatedDeletion) { require.False(t, d.wasAllowed, d.answer) }
	stopOther := func(s *scenario) {
		s.memberOnHost(1).running = false
		s.recordSnapshot()
		s.advance(5 * time.Second)
	}
	for name, play := range map[string]func(*scenario, *simulatedHost){
		"NodeClaim first": func(s *scenario, h *simulatedHost) {
			require.True(t, s.tryDeleteMachine(h).wasAllowed)
			s.editNode(h, func(n *corev1.Node) {
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Written"})
			})
			stopOther(s)
			isRefused(s.tryDelete(h))
		},
		"Node first, kept by its finalizer": func(s *scenario, h *simulatedHost) {
			s.editNode(h, func(n *corev1.Node) { n.Finalizers = []string{karpenterFinalizer} })
			s.deleteWithRetries(h)
			stopOther(s)
			isRefused(s.tryDeleteMachine(h))
		},
	} {
		t.Run(name, func(t *testing.T) {
			runMachineScenario(t, machine.KindNodeClaim, func(s *scenario) {
				m := s.machineOf(s.hosts[0])
				m.IsRegistered, m.Node = true, m.host.name
				s.machines.put(m)
				s.advance(time.Second)
				play(s, m.host)
			})
		})
	}
}

// Karpenter is about to end the machine of a NodeClaim that is not registered. Meanwhile the Node
// is deleted, and the kubelet registers again.
func TestF50MachineRegistersAgain(t *testing.T) {
	runMachineScenario(t, machine.KindNodeClaim, func(s *scenario) {
		for _, h := range s.hosts {
			s.unregister(h)
		}
		require.True(t, s.tryDeleteMachine(s.hosts[0]).wasAllowed)
		s.advance(10 * time.Minute)
		s.requireMachineRefused(s.hosts[1])
		s.deleteWithRetries(s.hosts[0])
		s.registerNode(s.hosts[0])
		s.advance(time.Hour)
		s.requireMachineRefused(s.hosts[1])
	})
}

// The leader receives no versions of NodeClaims for ten minutes.
func TestF49StaleMachines(t *testing.T) {
	runMachineScenario(t, machine.KindNodeClaim, func(s *scenario) {
		s.unregister(s.hosts[0])
		s.advance(time.Second)
		s.replicas[0].machineWatchStalled = true
		require.True(t, s.tryDeleteMachine(s.hosts[0]).wasAllowed)
		s.advance(10 * time.Minute)
		s.requireMachineRefused(s.hosts[1])
	})
}

// As F51, with a NodeClaim that is not registered: it names no Node.
func TestF66UnregisteredClaim(t *testing.T) {
	runMachineScenario(t, machine.KindNodeClaim, func(s *scenario) {
		h := s.hosts[0]
		s.unregister(h)
		s.advance(time.Second)
		require.True(t, s.tryDeleteMachine(h).wasAllowed)
		s.joinAgainWhileEnding(h)
	})
}

// joinAgainWhileEnding deletes the Node of a machine that is about to end, and removes its member.
// The machine joins again half an hour later, and still counts as lost.
func (s *scenario) joinAgainWhileEnding(h *simulatedHost) {
	s.t.Helper()
	s.deleteWithRetries(h)
	s.removeMemberOn(h)
	s.advance(30 * time.Minute)
	s.addMemberOn(s.etcds[0], h, true)
	s.registerNode(h)
	s.advance(30 * time.Minute)
	require.True(s.t, s.machineOf(h).Deleting)
	require.False(s.t, h.killed)
	s.requireMachineRefused(s.hosts[1])
}

// The deletion of a Machine was allowed, and its machine is about to end, which takes more than
// half an hour. Its Node is deleted, and its member is removed. Then the machine joins again, as
// with k3s, and its kubelet registers. The machine still ends without another request.
func TestF51MachineRegistersLate(t *testing.T) {
	runMachineScenario(t, machine.KindMachine, func(s *scenario) {
		h := s.hosts[0]
		require.True(t, s.tryDeleteMachine(h).wasAllowed)
		s.endMachine(h) // it waits for its hook
		s.advance(time.Minute)
		require.False(t, s.machineOf(h).IsHooked)
		s.joinAgainWhileEnding(h)
	})
}

// The watches of Nodes hang when a machine registers, so its Machine gets no hook. Its deletion
// would end the machine at once.
func TestF90NodeNotInCache(t *testing.T) {
	runMachineScenario(t, machine.KindMachine, func(s *scenario) {
		for _, r := range s.replicas {
			r.nodeWatchStalled = true
		}
		s.addHostWithMember("n3")
		require.True(t, s.machineOf(s.hosts[3]).endsAtOnce())
		s.etcds[0].memberOn(s.hosts[0]).running = false
		s.recordSnapshot()
		d := s.tryDeleteMachine(s.hosts[3])
		require.False(t, d.wasAllowed, d.answer)
		require.Contains(t, d.answer, breaksQuorumOfC1)
	})
}
