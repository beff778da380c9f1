package simulation

import "fmt"

// addLateMachine adds a machine on which etcd starts before the kubelet, as with kubespray. Its
// Node comes later, or never. A careful operator waits for the Node, and for the announcement.
func (sim *simulation) addLateMachine() {
	if len(sim.hosts) > 9 {
		return
	}
	h := sim.newHost(fmt.Sprintf("n%d", len(sim.hosts)))
	sim.log("machine %s is added without a Node", h.name)
	if m, ok := sim.pickEtcd().join(h, sim.choose(2) == 1); ok {
		m.started, m.running = true, true
		sim.log("member %s starts on %s, learner %t", m.id, h.name, m.learner)
	}
}

// registerLateNode lets the kubelet of a machine without a Node register.
func (sim *simulation) registerLateNode() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		return h.up && !h.killed && h.node == "" && h.registered.IsZero()
	}); ok {
		sim.registerNode(h)
	}
}
