package history

import "time"

// feature is one kind of thing that the world may do to Holdfast. Each history has some of them only: those that had all
// would see much of everything and little in a row.
type feature int

const (
	crashes    feature = iota // members stop and start
	outages                   // machines go off and on
	membership                // members join, start, are promoted, are removed
	vanishing                 // Nodes are deleted without a question
	rebirths                  // kubelets register anew
	taints                    // an autoscaler announces that it deletes
	labels                    // labels are taken off
	machines                  // new machines come, some under an old name
	glass                     // the glass is broken
	settling                  // an operator settles
	objects                   // EtcdClusters are deleted
	restores                  // the API server's etcd is restored
	replicas                  // replicas crash, the leader moves
	leaders                   // two lead at once
	stalls                    // watches hear nothing for a while
	skews                     // clocks differ by minutes
	agents                    // agents are silent or blind
	finalizers                // Nodes have finalizers
	writes                    // Nodes change while their deletion is judged
	dryRuns
	collections
	jumps // minutes pass in which everybody works
	features
)

// profile is what a history is like.
type profile struct {
	hosts    int
	clusters []int
	bound    bool
	// careful says that nothing but allowed deletions kills members, and that operators look before they act.
	careful bool
	faults  bool
	// heals says that all trouble ends at last, and that what is safe must go through then.
	heals bool
	// placeless says that the members' URLs name no address of any Node.
	placeless bool
	has       [features]bool
	// call, hear and commit weigh how soon calls are served, caches hear, and allowed deletions happen.
	call, hear, commit, deletions int
}

// anyProfile draws a profile.
func anyProfile(c *choices) profile {
	p := profile{
		hosts: 3 + c.of(4), bound: !c.chance(8), careful: c.chance(4), faults: c.chance(2), heals: c.chance(5),
		call: []int{12, 4, 30}[c.of(3)], hear: []int{6, 1, 12}[c.of(3)], commit: []int{1, 6}[c.of(2)], deletions: []int{4, 8}[c.of(2)],
	}
	p.clusters = []int{min(p.hosts, []int{3, 3, 5, 2, 4, 1}[c.of(6)])}
	if c.chance(5) {
		p.clusters = append(p.clusters, 3)
	}
	for f := range p.has {
		p.has[f] = c.of(3) == 1
	}
	p.placeless = c.chance(6)
	if p.has[jumps] = c.of(3) > 0; p.careful {
		for _, f := range []feature{crashes, outages, vanishing, taints, labels, glass, objects, restores} {
			p.has[f] = false
		}
	}
	return p
}

// environment is what may happen to Holdfast now.
func (p profile) environment(w *world) []action {
	var actions []action
	add := func(f feature, more ...action) {
		if p.has[f] {
			actions = append(actions, more...)
		}
	}
	actions = append(actions, w.deletes()...)
	add(crashes, action{1, w.memberStops}, action{2, w.memberStarts})
	add(outages, action{1, w.machineStops}, action{2, w.machineStarts})
	add(membership, action{1, w.joins}, action{2, w.joiners}, action{1, w.promotes}, action{1, w.removes}, action{1, w.replaced})
	add(vanishing, action{1, w.vanishes})
	add(rebirths, action{2, w.registers})
	add(taints, action{1, w.taints})
	add(labels, action{1, w.strips})
	add(machines, action{1, w.machineComes})
	add(glass, action{1, w.breaksGlass})
	add(settling, action{2, w.settles})
	add(objects, action{1, w.forgets})
	add(restores, action{1, w.backsUp})
	add(replicas, action{1, w.replicaCrashes}, action{1, w.leads})
	add(leaders, action{1, w.leadsToo})
	add(stalls, action{1, w.stallsOrNot})
	add(skews, action{1, w.skewed})
	add(agents, action{1, w.agentFalls}, action{1, w.agentRises})
	add(finalizers, action{1, w.finalizer}, action{2, w.finalizes})
	add(writes, action{2, w.heartbeat})
	add(jumps, action{1, func() { w.jump(time.Duration(1+w.choose(40)) * time.Second) }}, action{1, func() {
		w.jump(time.Duration(30+w.choose(300)) * time.Second)
	}})
	if p.has[jumps] && p.has[rebirths] {
		actions = append(actions, action{1, func() { w.jump(time.Duration(1200+w.choose(300)) * time.Second) }})
	}
	return append(actions, action{1, w.fate})
}
