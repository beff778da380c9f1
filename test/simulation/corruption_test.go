package simulation

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// raiseAlarm lets etcd raise the alarm CORRUPT for a member. The member still answers reads.
func (sim *simulation) raiseAlarm() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members,
		func(m *simulatedMember) bool { return m.started && !m.corrupt }); ok && e.hasQuorum() {
		m.corrupt = true
		sim.log("member %s gets the alarm CORRUPT", m.id)
	}
}

// disarmAlarm ends the alarm of a member whose data an operator has restored.
func (sim *simulation) disarmAlarm() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members, isCorrupt); ok && e.hasQuorum() {
		m.corrupt = false
		sim.log("the alarm of member %s is disarmed", m.id)
	}
}

func isCorrupt(m *simulatedMember) bool { return m.corrupt }

// readAlarms reads the alarms, which needs a quorum like the list.
func (l *agentProbe) readAlarms(fails bool) {
	l.hasAlarms = true
	if !l.result.Linearizable || fails || !l.canList() {
		return
	}
	l.result.AlarmsUnknown = false
	for i, status := range l.result.Members {
		if slices.ContainsFunc(l.etcd.members, func(m *simulatedMember) bool { return m.id == status.ID && m.corrupt }) {
			l.result.Members[i].Alarms = []string{quorum.CorruptAlarm}
		}
	}
}

// TestCorruptMember raises an alarm for a member that answers reads.
func TestCorruptMember(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		m := s.etcds[0].memberOn(s.hosts[1])
		m.corrupt = true
		s.requireRefused(s.hosts[0], quorum.CorruptAlarm)
		s.abandon(s.requireAllowed(s.hosts[1]), "another plugin refuses")
		m.corrupt = false
		s.advance(10 * time.Minute)
		s.requireAllowed(s.hosts[0])
	})
}
