package simulation

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// deleteAnyCluster deletes an EtcdCluster. If it has grants, the operator used the
// break-glass override, so the verdict check ignores all earlier losses in this cluster.
func (sim *simulation) deleteAnyCluster() {
	e := sim.pickEtcd()
	if err := sim.api.deleteCluster(string(e.id)); err != nil {
		return
	}
	sim.log("EtcdCluster %s is deleted", e.id)
	for _, d := range sim.losses {
		d.forgiven[e.id] = true
	}
	for _, d := range sim.deletions {
		if d.review != nil {
			d.review.forgiven[e.id] = true
			d.review.forgetLists(e.id)
		}
	}
	sim.api.forgetSpec(e.id)
}

// forgetLists removes what only the member lists of an EtcdCluster show: a member that no Node
// announces and that is bound to none. They are gone with the object.
func (r *simulatedReview) forgetLists(id v1alpha1.ClusterID) {
	r.before.listed = slices.DeleteFunc(slices.Clone(r.before.listed), func(ref evidence.MemberRef) bool {
		return ref.Cluster == id
	})
}

// backUpOrRestore backs up the API server's etcd, or restores the backup if there is one.
// During a restore the API server is down, and all requests fail.
func (sim *simulation) backUpOrRestore() {
	if sim.backup == nil {
		s := sim.api.takeBackup()
		sim.backup = &s
		sim.backupLosses = slices.DeleteFunc(slices.Clone(sim.losses), func(d *pendingLoss) bool { return !d.happened })
		sim.log("the API server's etcd is backed up")
		return
	}
	sim.log("the API server stops for a restore")
	for _, d := range slices.Clone(sim.deletions) {
		if d.review != nil {
			d.review.cancel()
			sim.settle()
		}
		d.review = nil
		sim.abandon(d, "the API server is down")
	}
	sim.deletions = nil
	sim.lateWrites = nil
	sim.delayedProbes = nil
	sim.failCalls()
	sim.failCallsFor(time.Duration(10+sim.choose(30)) * time.Second)
	// The handlers process what the caches have received.
	for _, r := range sim.replicas {
		for _, c := range r.caches.all() {
			_, unnotified := c.pending()
			c.notify(unnotified)
			c.watch().disconnected = true
		}
	}
	sim.api.restore(*sim.backup)
	for _, e := range sim.etcds {
		sim.api.forgetSpec(e.id)
	}
	for _, name := range sortedKeys(sim.api.clusters.objects) {
		sim.api.recordSpec(sim.api.clusters.objects[name])
	}
	sim.log("the API server's etcd is restored")
	sim.losses = slices.DeleteFunc(sim.losses, func(d *pendingLoss) bool {
		n, err := sim.api.node(d.node)
		isBack := err == nil && n.UID == d.uid && n.DeletionTimestamp == nil
		isAnnounced := isBack && len(d.order) == 0 && len(n.Spec.Taints) > 0
		undone := !slices.Contains(sim.backupLosses, d) || (isBack && !isAnnounced)
		d.over = d.over || undone
		return d.over
	})
	sim.backup = nil
	sim.drains, sim.guardWrites = nil, nil
	sim.reassignNodes()
}

// failCallsFor lets time pass while every call fails.
func (sim *simulation) failCallsFor(d time.Duration) {
	until := time.Now().Add(d)
	for time.Now().Before(until) {
		sim.sleep(500 * time.Millisecond)
		sim.settle()
		sim.failCalls()
	}
	sim.settle()
}

// failCalls answers the calls that wait, one at a time: callers that wake together go on in the
// order of the scheduler. A call that was executed keeps its answer.
func (sim *simulation) failCalls() {
	waiting, _ := sim.gate.waiting()
	for _, c := range waiting {
		if !c.done {
			c.fail(fmt.Errorf("connection refused"))
		}
		sim.gate.answer(c)
		sim.settle()
	}
}

// reassignNodes assigns to each machine the Node of its name.
func (sim *simulation) reassignNodes() {
	for _, h := range sim.hosts {
		h.node = ""
	}
	for _, name := range sortedKeys(sim.api.nodes.objects) {
		var owner *simulatedHost
		for _, h := range sim.hosts {
			if h.name == name && (owner == nil || !h.killed) {
				owner = h
			}
		}
		if owner != nil {
			owner.node = sim.api.nodes.objects[name].UID
		}
	}
	for _, h := range sim.hosts {
		h.agent = newAgent(sim, h)
	}
}

func (sim *simulation) crashReplica() {
	i := sim.choose(len(sim.replicas))
	led := sim.replicas[i].isLeading
	sim.log("webhook %d crashes and restarts", i)
	sim.restartReplica(i)
	if led && !slices.ContainsFunc(sim.replicas, func(r *simulatedReplica) bool { return r.isLeading }) &&
		sim.choose(2) == 0 {
		sim.replicas[sim.choose(len(sim.replicas))].startLeading()
	}
}

func (sim *simulation) restartReplica(i int) {
	old := sim.replicas[i]
	waiting, _ := sim.gate.waiting()
	for _, c := range waiting {
		if c.replica == old && c.write && !c.done && sim.profile.faults {
			sim.lateWrites = append(sim.lateWrites, c) // the request was sent
		}
	}
	old.crash()
	sim.collectAnswers()
	sim.gate.waiting()
	sim.replicas[i] = sim.startReplica(i)
}

// ensureLeader starts a leader if there is none.
func (sim *simulation) ensureLeader() {
	if !slices.ContainsFunc(sim.replicas, func(r *simulatedReplica) bool { return r.isLeading }) {
		i := sim.choose(len(sim.replicas))
		sim.log("webhook %d starts to lead", i)
		sim.replicas[i].startLeading()
	}
}

// startAllLeaders makes every replica lead, as if the old leader had not noticed that it
// lost the lease.
func (sim *simulation) startAllLeaders() {
	for _, r := range sim.replicas {
		if !r.isLeading {
			sim.log("webhook %d starts to lead as well", r.number)
			r.startLeading()
		}
	}
}

func (sim *simulation) breakAgent() {
	h := sim.hosts[sim.choose(len(sim.hosts))]
	if sim.choose(3) == 1 {
		h.agent.blind = true
	} else {
		h.agent.silent = true
	}
	sim.log("the agent of %s: silent %t, blind %t", h.name, h.agent.silent, h.agent.blind)
}

func (sim *simulation) repairAgent() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.agent.silent || h.agent.blind }); ok {
		sim.log("the agent of %s works again", h.name)
		h.agent.silent, h.agent.blind = false, false
	}
}

// addFinalizer adds Karpenter's finalizer to a Node.
func (sim *simulation) addFinalizer() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.node != "" }); ok {
		_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
			if n.DeletionTimestamp == nil {
				n.Finalizers = []string{"karpenter.sh/termination"}
			}
		})
		sim.log("finalizer is added to Node %s: %s", h.name, errorText(err))
	}
}

// completeDeletion removes the finalizer of a Node that is being deleted, after terminating
// its machine.
func (sim *simulation) completeDeletion() {
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		n := sim.api.nodes.objects[h.name]
		return h.node != "" && n != nil && n.DeletionTimestamp != nil
	})
	if ok {
		sim.terminate(h)
		_, err := sim.api.editNode(h.name, func(n *corev1.Node) { n.Finalizers = nil })
		sim.log("finalizer of Node %s is removed: %s", h.name, errorText(err))
		sim.syncKubelets()
	}
}

// writeNodeStatus writes a Node, so that the API server calls the webhook again for a
// DELETE in progress.
func (sim *simulation) writeNodeStatus() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.node != "" && !h.killed }); ok {
		_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
			setCondition(n, corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Message: fmt.Sprint(sim.api.revision),
			})
		})
		sim.log("the kubelet of %s writes its Node: %s", h.name, errorText(err))
	}
}

// terminateMachine terminates the machine of a deleted Node, within a quarter of an hour.
func (sim *simulation) terminateMachine() {
	d, ok := pickMatching(sim, sim.pendingLosses(), func(d *pendingLoss) bool {
		return d.happened && !d.host.killed && !d.host.keptByOperator && time.Since(d.at) < terminationPeriod
	})
	if ok && (!sim.profile.careful || !sim.hasUnstartedMember(d.host)) {
		sim.terminate(d.host)
	}
}

// hasUnstartedMember reports whether the host has a member that has not started yet.
func (sim *simulation) hasUnstartedMember(h *simulatedHost) bool {
	for _, e := range sim.etcds {
		if m := e.memberOn(h); m != nil && !m.started {
			return true
		}
	}
	return false
}

func (sim *simulation) terminate(h *simulatedHost) {
	if !h.killed && !h.keptByOperator {
		h.killed = true
		sim.log("machine %s is terminated", h.name)
	}
}

func (sim *simulation) advanceAndLog(d time.Duration) {
	sim.log("all parties work for %s", d)
	sim.advance(d)
}

// toggleWatches stops or resumes the watches of a replica. A resumed watch delivers the
// missed versions or lists again.
func (sim *simulation) toggleWatches() {
	r := sim.replicas[sim.choose(len(sim.replicas))]
	all := r.caches.all()
	toggled := all[[]int{2, 0, 1, 2}[sim.choose(4)]].watch()
	toggled.stalled = !toggled.stalled
	sim.log("webhook %d: Node watch stalled %t, EtcdCluster watch stalled %t, EtcdObservation watch stalled %t",
		r.number, r.caches.nodes.stalled, r.caches.clusters.stalled, r.caches.observations.stalled)
	isStalled := slices.ContainsFunc(all, func(c watchingCache) bool { return c.watch().stalled })
	if !isStalled && sim.choose(2) == 1 {
		for _, c := range all {
			c.relist()
		}
	}
}

// skewClock restarts a replica with another clock. Setting the clock during the life of a
// process would have no effect: Go measures durations with a monotonic clock.
func (sim *simulation) skewClock() {
	i := sim.choose(len(sim.replicas))
	led := sim.replicas[i].isLeading
	sim.restartReplica(i)
	unit := []time.Duration{time.Minute, 1500 * time.Millisecond}[sim.choose(2)]
	r, ahead := sim.replicas[i], time.Duration(sim.choose(40)-20)*unit
	r.skew.Store(int64(ahead))
	sim.log("webhook %d restarts with its clock ahead by %s", r.number, ahead)
	if led {
		r.startLeading()
	}
}
