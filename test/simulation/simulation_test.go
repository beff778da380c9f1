package simulation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A simulation is everything that the code under test can observe, and the true state
// behind it.
type simulation struct {
	ctx       context.Context //nolint:containedctx // the lifetime of the simulation
	choices   *choices
	api       *simulatedAPIServer
	gate      *callGate
	replicas  []*simulatedReplica
	hosts     []*simulatedHost
	etcds     []*simulatedEtcd
	snapshots []etcdSnapshot

	deletions      []*simulatedDeletion
	losses         []*pendingLoss
	allowedReviews []*allowedReview
	// lastGrant is, by cluster and Node UID, the position of the last grant that a review
	// wrote.
	lastGrant                            map[v1alpha1.ClusterID]map[types.UID]int
	deleteCount, reviewCount, grantCount int

	// lateWrites are writes that may still be executed, although their callers received an
	// error or stopped waiting.
	lateWrites []*apiCall
	// delayedProbes are observations that arrive late and in any order.
	delayedProbes []*agentProbe
	// backup is a backup of the API server's etcd, and backupLosses are the losses that it has.
	backup       *apiBackup
	backupLosses []*pendingLoss
	// attacker is the machine on which an attacker has root, nil if there is none.
	attacker *simulatedHost
	kured    *simulatedKured
	// drains are the programs that drain nodes, and guardWrites the writes of guard pods that the
	// leader has decided.
	drains      []*simulatedDrain
	guardWrites []func()
	// machines are the objects by which Cluster API or Karpenter manages the machines, nil if neither
	// runs.
	machines *machineTable

	profile profile
	verbose bool
	// isBlocked reports whether a call must wait. If it is nil, no call waits.
	isBlocked func(*apiCall) bool
	counts    map[string]int

	mu      sync.Mutex // guards the fields below: the goroutines of the webhook write log lines
	trace   []string
	failure string
}

// newSimulation returns a simulation in which all members and the webhook run.
func newSimulation(ctx context.Context, c *choices, p profile, verbose bool) *simulation {
	sim := &simulation{
		ctx: ctx, choices: c, api: newSimulatedAPIServer(), gate: newGate(), profile: p, verbose: verbose,
		lastGrant: map[v1alpha1.ClusterID]map[types.UID]int{}, counts: map[string]int{},
	}
	sim.kured = &simulatedKured{sim: sim}
	if p.enabled[machines] {
		sim.machines = &machineTable{kind: p.machineKind}
	}
	for i := range p.hosts {
		if h := sim.newHost(fmt.Sprintf("n%d", i)); !p.enabled[lateNodes] || !c.oneIn(4) {
			sim.registerNode(h)
		}
	}
	for i, size := range p.clusters {
		e := &simulatedEtcd{id: v1alpha1.ClusterID([]string{"c1", "c2"}[i])}
		for j := range size {
			e.addInitialMember(sim.hosts[(j+i)%len(sim.hosts)])
		}
		sim.etcds = append(sim.etcds, e)
	}
	for _, h := range sim.hosts {
		sim.giveRole(h)
	}
	sim.recordSnapshot()
	if p.bound {
		sim.bindAll()
	}
	for _, h := range sim.hosts {
		h.agent.catchUp()
		h.agent.writeNode(sim)
	}
	for i := range 2 {
		sim.replicas = append(sim.replicas, sim.startReplica(i))
	}
	sim.replicas[0].startLeading()
	return sim
}

// addHost adds a machine whose kubelet has registered.
func (sim *simulation) addHost(name string) { sim.registerNode(sim.newHost(name)) }

// newHost adds a machine whose kubelet has not registered yet.
func (sim *simulation) newHost(name string) *simulatedHost {
	number := len(sim.hosts) + 1
	h := &simulatedHost{name: name, address: fmt.Sprintf("10.0.0.%d", number), up: true}
	if !sim.profile.unknownMachines {
		h.systemUUID = fmt.Sprintf("machine-%d", number)
	}
	h.agent = newAgent(sim, h)
	sim.hosts = append(sim.hosts, h)
	return h
}

// registerNode lets the kubelet of the host create its Node.
func (sim *simulation) registerNode(h *simulatedHost) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}}
	n.Status.Addresses = nodeAddresses(h)
	n.Status.NodeInfo.SystemUUID = h.systemUUID
	n.Spec.ProviderID = sim.providerID(h)
	made, err := sim.api.createNode(n)
	if err != nil {
		return // the old Node of that name still exists
	}
	h.node, h.registered = made.UID, time.Now()
	sim.giveRole(h)
	sim.log("machine %s registers as Node %s", h.name, h.node)
	sim.createMachine(h)
}

func nodeAddresses(h *simulatedHost) []corev1.NodeAddress {
	return []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: h.name},
		{Type: corev1.NodeInternalIP, Address: h.address},
	}
}

// giveRole sets the role of etcd on the Node of a machine with a member, as kubeadm, k3s and others
// do, unless no Node has one.
func (sim *simulation) giveRole(h *simulatedHost) {
	if sim.profile.noRoles || h.node == "" || sim.isWorker(h) {
		return
	}
	if _, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, observation.RoleLabels()[1], "")
	}); err != nil {
		sim.log("the role of %s is not set: %v", h.name, err)
	}
}

// bindAll creates the EtcdClusters that the leader would have written long ago.
func (sim *simulation) bindAll() {
	for _, e := range sim.etcds {
		c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(e.id)}}
		basis := v1alpha1.BasisRole
		if c.Spec.Observers = v1alpha1.NodesWithRole; sim.profile.noRoles {
			c.Spec.Observers, basis = v1alpha1.AllNodes, v1alpha1.BasisAddress
		}
		for _, m := range e.members {
			if m.host.node == "" {
				continue
			}
			c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{
				MemberID: m.id, Node: m.host.name, NodeUID: m.host.node, Basis: basis,
			})
		}
		if _, err := sim.api.createCluster(c); err != nil {
			sim.fail("creating an EtcdCluster: %v", err)
		}
	}
}

func (sim *simulation) choose(n int) int { return sim.choices.pick(n) }

func (sim *simulation) log(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.trace = append(sim.trace, time.Now().Format("15:04:05.000 ")+text)
}

func (sim *simulation) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	sim.log("FAILED: %s", text)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if sim.failure == "" {
		sim.failure = text
	}
}

func (sim *simulation) hasFailed() bool {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return sim.failure != ""
}

// stop stops all replicas.
func (sim *simulation) stop() {
	for _, r := range sim.replicas {
		r.crash()
	}
	synctest.Wait()
}

// A simulationFeature is one kind of event. Each history has only some of them: a history
// with all of them would have few longer sequences of the same kind.
type simulationFeature int

const (
	memberCrashes       simulationFeature = iota // Members stop and start.
	machineOutages                               // Machines stop and start.
	membershipChanges                            // Members join, start, are promoted, are removed.
	unreviewedDeletions                          // Nodes are deleted without a review.
	reregistrations                              // Kubelets register again.
	automaticRejoins                             // Machines join again under a new member ID.
	autoscalerTaints                             // An autoscaler announces a deletion.
	labelRemovals                                // Labels are removed.
	newMachines                                  // Machines are added, some under an old name.
	breakGlass                                   // The break-glass override is used.
	manualSettling                               // An operator settles grants.
	clusterDeletions                             // EtcdClusters are deleted.
	apiRestores                                  // The API server's etcd is restored.
	replicaCrashes                               // Replicas crash, another replica leads.
	severalLeaders                               // Both replicas lead.
	watchStalls                                  // Watches deliver nothing for a while.
	clockSkews                                   // Clocks of replicas differ by seconds or minutes.
	agentFailures                                // Agents are silent or blind.
	nodeFinalizers                               // Nodes have finalizers.
	nodeWrites                                   // Nodes change during a review.
	dryRuns
	collectionDeletes
	calmPeriods // All parties work normally for minutes.
	attacks     // An attacker on one machine forges what its agent and its kubelet write.
	lateNodes   // Members start before the kubelets of their machines register.
	reboots     // kured reboots machines.
	drains      // Programs drain nodes, and reboot or remove their machines.
	machines    // Cluster API or Karpenter manages the machines.
	partitions  // Agents do not reach members, and members do not reach each other.
	corruptions // Members get the alarm CORRUPT.
	features
)

// rareFeatures returns the features of one history in six, with the names by which flags switch
// them on and off.
func rareFeatures() map[simulationFeature]string {
	return map[simulationFeature]string{
		attacks: "attacks", lateNodes: "latenodes", reboots: "reboots", drains: "drains", partitions: "partitions",
		corruptions: "corruptions",
	}
}

// isListed reports whether the flag lists the name.
func isListed(name, feature string) bool {
	return slices.Contains(strings.Split(flagValue[string](name), ","), feature)
}

// A profile sets the kind of a history.
type profile struct {
	hosts    int
	clusters []int
	bound    bool
	// careful is true if only allowed deletions kill members, and operators check the state
	// before they act.
	careful bool
	faults  bool
	// recovers is true if all faults end at last, and safe deletions must then succeed.
	recovers bool
	// foreignURLs is true if the members' URLs contain no address of a Node.
	foreignURLs bool
	// noRoles is true if no Node has a role, so that what two Nodes report counts.
	noRoles bool
	// settled is true if all parties have done their work when the history begins.
	settled bool
	// unknownMachines is true if the kubelets do not report which machine they run on.
	unknownMachines bool
	// machineKind is the kind of the objects that stand for machines.
	machineKind string
	enabled     [features]bool
	// These weights set how soon calls are served, caches receive versions, allowed deletions
	// are carried out, and new deletions start.
	call, deliver, commit, deletions int
}

// anyProfile picks a random profile. One history in five is about drains, and one in eight of the
// others about machine objects.
func anyProfile(c *choices) profile {
	switch {
	case c.oneIn(5) && !isListed("without", "drains"):
		return drainProfile(c)
	case c.oneIn(8) && !isListed("without", "machines"):
		return machineProfile(c)
	}
	return randomProfile(c)
}

// randomProfile picks a random profile with all kinds of events.
func randomProfile(c *choices) profile {
	p := profile{
		hosts: 3 + c.pick(4), bound: !c.oneIn(8), careful: c.oneIn(4), faults: c.oneIn(2), recovers: c.oneIn(5),
		call: []int{12, 4, 30}[c.pick(3)], deliver: []int{6, 1, 12}[c.pick(3)], commit: []int{1, 6}[c.pick(2)],
		deletions: []int{4, 8}[c.pick(2)],
	}
	p.clusters = []int{min(p.hosts, []int{3, 3, 5, 2, 4, 1}[c.pick(6)])}
	if c.oneIn(5) {
		p.clusters = append(p.clusters, 3)
	}
	for f := range p.enabled {
		if simulationFeature(f) == machines {
			continue // only a profile of its own has them
		}
		if name, rare := rareFeatures()[simulationFeature(f)]; rare {
			p.enabled[f] = (c.oneIn(6) || isListed("with", name)) && !isListed("without", name)
		} else {
			p.enabled[f] = c.pick(3) == 1
		}
	}
	p.foreignURLs = c.oneIn(6)
	p.unknownMachines = c.oneIn(3)
	p.noRoles = (c.oneIn(3) || isListed("with", "noroles")) && !isListed("without", "noroles")
	if p.enabled[calmPeriods] = c.pick(3) > 0; p.careful {
		p.disableAll(uncarefulFeatures())
	}
	return p
}

// drainProfile picks a random profile with drains and little else.
func drainProfile(c *choices) profile {
	p := randomProfile(c)
	p.bound, p.settled, p.faults, p.careful = true, true, p.faults && c.oneIn(2), c.oneIn(2)
	p.clusters, p.deletions = []int{3 + 2*c.pick(2)}, 1+c.pick(3)
	p.hosts = p.clusters[0] + c.pick(2)
	for f := range p.enabled {
		name, isRare := rareFeatures()[simulationFeature(f)]
		p.enabled[f] = p.enabled[f] && (c.oneIn(3) || (isRare && isListed("with", name)))
	}
	for _, f := range []simulationFeature{clusterDeletions, apiRestores, lateNodes, reboots} {
		p.enabled[f] = false
	}
	p.enabled[drains], p.enabled[calmPeriods] = true, true
	if p.careful {
		p.disableAll(uncarefulFeatures())
	}
	return p
}

// machineProfile picks a random profile with Machines or NodeClaims, and little else.
func machineProfile(c *choices) profile {
	p := drainProfile(c)
	p.machineKind = []string{machine.KindMachine, machine.KindNodeClaim}[c.pick(2)]
	p.enabled[machines], p.enabled[drains] = true, c.oneIn(4)
	for _, f := range []simulationFeature{replicaCrashes, watchStalls, reregistrations} {
		p.enabled[f] = p.enabled[f] || c.oneIn(3)
	}
	p.disableAll([]simulationFeature{attacks, breakGlass, labelRemovals})
	return p
}

// uncarefulFeatures returns the features of which a careful history has none.
func uncarefulFeatures() []simulationFeature {
	return []simulationFeature{
		memberCrashes, machineOutages, unreviewedDeletions, autoscalerTaints,
		labelRemovals, breakGlass, clusterDeletions, apiRestores, lateNodes, reboots,
	}
}

func (p *profile) disableAll(features []simulationFeature) {
	for _, f := range features {
		p.enabled[f] = false
	}
}

// environmentActions returns the events that may happen in the environment of the webhook.
func (p profile) environmentActions(sim *simulation) []action {
	var actions []action
	add := func(f simulationFeature, more ...action) {
		if p.enabled[f] {
			actions = append(actions, more...)
		}
	}
	actions = append(actions, sim.deleteActions()...)
	add(memberCrashes, action{1, sim.stopMember}, action{2, sim.startMember})
	add(machineOutages, action{1, sim.stopMachine}, action{2, sim.startMachine})
	add(membershipChanges, action{1, sim.addMember}, action{2, sim.startNewMember}, action{1, sim.promoteMember},
		action{1, sim.removeMember}, action{1, sim.removeDeadMember})
	add(unreviewedDeletions, action{1, sim.deleteNodeWithoutReview})
	add(reregistrations, action{2, sim.registerAgain})
	add(automaticRejoins, action{2, sim.removeOrphanedMember}, action{2, sim.joinAgain}, action{1, sim.promoteRejoined},
		action{1, sim.registerAgain})
	add(autoscalerTaints, action{1, sim.toggleTaint})
	add(labelRemovals, action{1, sim.removeLabel})
	add(newMachines, action{1, sim.addMachine})
	add(breakGlass, action{1, sim.useBreakGlass})
	add(manualSettling, action{2, sim.settleAnyGrant})
	add(clusterDeletions, action{1, sim.deleteAnyCluster})
	add(apiRestores, action{1, sim.backUpOrRestore})
	add(replicaCrashes, action{1, sim.crashReplica}, action{1, sim.ensureLeader})
	add(severalLeaders, action{1, sim.startAllLeaders})
	add(watchStalls, action{1, sim.toggleWatches})
	add(clockSkews, action{1, sim.skewClock})
	add(agentFailures, action{1, sim.breakAgent}, action{1, sim.repairAgent})
	add(nodeFinalizers, action{1, sim.addFinalizer}, action{2, sim.completeDeletion})
	add(nodeWrites, action{2, sim.writeNodeStatus})
	add(attacks, action{3, sim.attack})
	add(lateNodes, action{1, sim.addLateMachine}, action{1, sim.registerLateNode})
	add(reboots, action{2, sim.kured.step})
	add(partitions, action{1, sim.breakLink}, action{1, sim.mendLink}, action{1, sim.electLeader})
	add(corruptions, action{1, sim.raiseAlarm}, action{2, sim.disarmAlarm})
	if p.enabled[drains] {
		actions = append(actions, sim.drainActions()...)
		actions = append(actions, action{1, sim.openAnyNode})
	}
	if p.enabled[machines] {
		actions = append(actions, sim.machineActions()...)
	}
	add(calmPeriods, action{1, func() { sim.advanceAndLog(time.Duration(1+sim.choose(40)) * time.Second) }},
		action{1, func() {
			sim.advanceAndLog(time.Duration(30+sim.choose(300)) * time.Second)
		}})
	if p.enabled[calmPeriods] && p.enabled[reregistrations] {
		actions = append(actions, action{1, func() { sim.advanceAndLog(time.Duration(1200+sim.choose(300)) * time.Second) }})
	}
	return append(actions, action{1, sim.terminateMachine})
}
