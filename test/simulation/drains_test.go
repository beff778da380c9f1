package simulation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A drainStyle is what a program does with a machine after the drain of its node.
type drainStyle int

const (
	// rebootsMachine reboots the machine, and then opens the node: kubectl drain, kured.
	rebootsMachine drainStyle = iota
	// opensFirst opens the node before the machine has restarted.
	opensFirst
	// terminatesMachine terminates the machine, and deletes the Node last: Cluster API.
	terminatesMachine
	// deletesNodeFirst deletes the Node, and evicts pods while its finalizer keeps it: Karpenter.
	deletesNodeFirst
	drainStyles
)

func (s drainStyle) String() string {
	return [...]string{"reboots", "opens the node and reboots", "terminates", "deletes the Node and terminates"}[s]
}

const (
	maintenanceTaint   = "medik8s.io/drain"
	karpenterFinalizer = "karpenter.sh/termination"
)

// A simulatedDrain is one program that drains one node and takes its machine away.
type simulatedDrain struct {
	host  *simulatedHost
	uid   types.UID
	style drainStyle
	// request is the last eviction of the guard pod.
	request *simulatedDeletion
	// isPermitted is true if an eviction was allowed. isDrained is true if the guard pod is gone
	// since, and wasDown if the machine has been down since.
	isPermitted, isDrained, wasDown bool
}

// drainActions returns the next steps of the programs that drain nodes.
func (sim *simulation) drainActions() []action {
	actions := []action{{3, sim.reconcileGuards}}
	if len(sim.drains) < 3 {
		actions = append(actions, action{2, func() { sim.startDrain(drainStyle(sim.choose(int(drainStyles)))) }})
	}
	for _, d := range sim.drains {
		actions = append(actions, action{6, func() { sim.stepDrain(d) }})
	}
	if len(sim.drains) > 0 {
		actions = append(actions, action{1, sim.disturbDrain})
	}
	return actions
}

// startDrain lets a program begin with a machine.
func (sim *simulation) startDrain(style drainStyle) {
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		return h.up && !h.killed && h.node != "" && sim.drainOf(h) == nil && sim.api.pods[guard.Name(h.name)] != nil
	})
	if ok {
		sim.beginDrain(h, style)
	}
}

func (sim *simulation) beginDrain(h *simulatedHost, style drainStyle) *simulatedDrain {
	d := &simulatedDrain{host: h, uid: h.node, style: style}
	sim.drains = append(sim.drains, d)
	sim.log("drain of Node %s begins; the program %s", h.name, style)
	if style == deletesNodeFirst {
		sim.editDrained(d, func(n *corev1.Node) {
			if n.DeletionTimestamp == nil {
				n.Finalizers = []string{karpenterFinalizer}
			}
		})
	} else {
		sim.setClosed(d, true)
	}
	return d
}

func (sim *simulation) drainOf(h *simulatedHost) *simulatedDrain {
	for _, d := range sim.drains {
		if d.host == h {
			return d
		}
	}
	return nil
}

// editDrained changes the Node of the drain, if it still exists.
func (sim *simulation) editDrained(d *simulatedDrain, edit func(*corev1.Node)) {
	if sim.isDrainOver(d) {
		return
	}
	if _, err := sim.api.editNode(d.host.name, edit); err != nil {
		sim.fail("draining a Node: %v", err)
	}
	sim.syncKubelets()
}

// isDrainOver reports whether the Node of the drain is gone.
func (sim *simulation) isDrainOver(d *simulatedDrain) bool {
	n, err := sim.api.node(d.host.name)
	return err != nil || n.UID != d.uid
}

// setClosed cordons the Node, or uncordons it. Some programs add a taint as well.
func (sim *simulation) setClosed(d *simulatedDrain, closed bool) {
	isMarked := closed && sim.choices.oneIn(4)
	sim.editDrained(d, func(n *corev1.Node) {
		n.Spec.Unschedulable = closed
		isOurs := func(t corev1.Taint) bool { return t.Key == maintenanceTaint }
		n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs)
		if isMarked {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: maintenanceTaint, Effect: corev1.TaintEffectNoSchedule})
		}
	})
	sim.log("Node %s: cordoned %t, under maintenance %t", d.host.name, closed, isMarked)
}

func (sim *simulation) endDrain(d *simulatedDrain, why string) {
	sim.drains = slices.DeleteFunc(sim.drains, func(o *simulatedDrain) bool { return o == d })
	sim.log("drain of Node %s ends: %s", d.host.name, why)
}

// stepDrain does the next step of a drain.
func (sim *simulation) stepDrain(d *simulatedDrain) {
	isWaiting := d.request != nil && !d.request.done
	switch {
	case d.host.killed || sim.isDrainOver(d):
		if d.style == deletesNodeFirst && !d.host.killed && d.isDrained {
			sim.terminate(d.host)
		}
		sim.endDrain(d, "the machine or its Node is gone")
	case !d.host.up:
		sim.returnMachine(d)
	case d.wasDown:
		if d.style != opensFirst {
			sim.setClosed(d, false)
		}
		sim.endDrain(d, "the machine is back")
	case isWaiting:
	case d.style == deletesNodeFirst && !sim.isBeingDeleted(d):
		sim.startDelete(d.host, false, false)
	case !d.isDrained:
		sim.evictGuard(d)
	default:
		sim.takeAway(d)
	}
}

// isBeingDeleted reports whether the Node of the drain has a deletion timestamp.
func (sim *simulation) isBeingDeleted(d *simulatedDrain) bool {
	n, err := sim.api.node(d.host.name)
	return err == nil && n.DeletionTimestamp != nil
}

// evictGuard requests the eviction of the guard pod. Without one, the drain has nothing to wait
// for, but Holdfast has not allowed it: its machine stays, and the program tries again or gives up.
func (sim *simulation) evictGuard(d *simulatedDrain) {
	pod := sim.api.pods[guard.Name(d.host.name)]
	switch {
	case pod != nil:
		sim.startEviction(d)
	case d.isPermitted || sim.isBeingDeleted(d):
		d.isDrained = true
	case sim.choices.oneIn(4):
		sim.setClosed(d, false)
		sim.endDrain(d, "there is no guard pod")
	}
}

// takeAway takes the machine of a drained node away, as far as Holdfast has allowed it.
func (sim *simulation) takeAway(d *simulatedDrain) {
	switch {
	case d.style == deletesNodeFirst:
		sim.terminate(d.host)
		sim.editDrained(d, func(n *corev1.Node) { n.Finalizers = nil })
		sim.endDrain(d, "the machine is gone")
		return
	case !sim.mayBeAway(d):
		if d.style != opensFirst {
			sim.setClosed(d, false)
		}
		sim.endDrain(d, "the node has returned")
		return
	case d.style == terminatesMachine && (!sim.profile.careful || !sim.hasUnstartedMember(d.host)):
		sim.counts["drained machines away"]++
		sim.terminate(d.host)
		sim.startDelete(d.host, false, false)
		return
	case d.style == opensFirst && sim.isOpen(d.host.name) && sim.choose(3) == 0:
		return // the machine restarts later
	case d.style == opensFirst && !sim.isOpen(d.host.name):
		sim.setClosed(d, false)
		return
	}
	sim.counts["drained machines away"]++
	d.host.up, d.wasDown = false, true
	sim.log("machine %s goes down", d.host.name)
}

// returnMachine starts a machine. The agent on it starts as well.
func (sim *simulation) returnMachine(d *simulatedDrain) {
	d.host.up = true
	sim.restartAgent(d.host)
	sim.log("machine %s is up again", d.host.name)
}

func (sim *simulation) restartAgent(h *simulatedHost) {
	silent, blind := h.agent.silent, h.agent.blind
	h.agent = newAgent(sim, h)
	h.agent.silent, h.agent.blind = silent, blind
}

// disturbDrain lets a program abort its drain, with or without opening the node. Or another user
// opens the node, or the agent restarts.
func (sim *simulation) disturbDrain() {
	d := sim.drains[sim.choose(len(sim.drains))]
	switch {
	case d.style == deletesNodeFirst || !d.host.up:
		sim.restartAgent(d.host)
		sim.log("the agent of %s restarts", d.host.name)
	case sim.choose(3) == 1:
		sim.endDrain(d, "it is aborted, and the node stays closed")
	case sim.choose(2) == 1:
		sim.setClosed(d, false)
		sim.endDrain(d, "it is aborted")
	default:
		sim.setClosed(d, false) // by another user; the program goes on
	}
}

// openAnyNode lets a user uncordon a node that no program drains any more.
func (sim *simulation) openAnyNode() {
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool {
		return h.node != "" && !sim.isOpen(h.name) && sim.drainOf(h) == nil
	})
	if ok {
		sim.setClosed(&simulatedDrain{host: h, uid: h.node}, false)
	}
}

// isOpen reports whether the Node is neither cordoned nor marked nor being deleted.
func (sim *simulation) isOpen(name string) bool {
	n, err := sim.api.node(name)
	return err == nil && !n.Spec.Unschedulable && n.DeletionTimestamp == nil &&
		departure.OfOthers(n).Class == departure.None
}

// mayBeAway reports whether Holdfast has allowed the machine of the drain to be away, and the node
// has not returned since in any cluster.
func (sim *simulation) mayBeAway(d *simulatedDrain) bool {
	return !d.host.keptByOperator && slices.ContainsFunc(sim.pendingLosses(), func(l *pendingLoss) bool {
		if !l.drained || l.uid != d.uid {
			return false
		}
		for _, e := range sim.etcds {
			isOnly := len(e.members) == 1
			if m := e.memberOn(d.host); m != nil && !isOnly && (l.order[e.id] == 0 || l.forgiven[e.id]) {
				return false
			}
		}
		return true
	})
}

// updateDrains records which drained nodes are open again, and which losses have ended.
func (sim *simulation) updateDrains() {
	for _, l := range sim.losses {
		if !l.drained || l.over {
			continue
		}
		if n, err := sim.api.node(l.node); err != nil || n.UID != l.uid {
			l.over = true // another loss follows from the deletion of the Node
			continue
		}
		if !l.closed.IsZero() && time.Now().After(l.closed) {
			l.opened, l.proven = time.Time{}, nil
		}
		switch isOpen := sim.isOpen(l.node); {
		case !isOpen && l.closed.IsZero():
			l.closed = time.Now()
		case isOpen:
			l.closed = time.Time{}
			if l.opened.IsZero() {
				l.opened = time.Now()
			}
		}
		isReturned := true
		for _, e := range sim.etcds {
			if !l.opened.IsZero() && e.memberOn(l.host) == nil {
				l.forgiven[e.id] = true // the member has left
			}
			isReturned = isReturned && (l.order[e.id] == 0 || l.forgiven[e.id])
		}
		l.over = isReturned
	}
}

// recordProof records a probe in which the agent of a drained node has proven its member healthy.
// Two of them, thirty seconds apart and both after the node was opened, show that the machine is
// back.
func (sim *simulation) recordProof(p *agentProbe) {
	sim.updateDrains() // The node may have been opened since the last snapshot.
	own, _ := observation.FindMember(p.result, p.key.member)
	for _, l := range sim.losses {
		began := p.result.Time.Time
		if !l.drained || l.over || l.uid != p.key.node || l.opened.IsZero() || began.Before(l.opened) {
			continue
		}
		if !own.Healthy {
			delete(l.proven, p.etcd.id)
			continue
		}
		if l.proven == nil {
			l.proven = map[v1alpha1.ClusterID]time.Time{}
		}
		if first := l.proven[p.etcd.id]; first.IsZero() {
			l.proven[p.etcd.id] = began
		} else if began.Sub(first) >= quorum.ResolveReturnedAfter {
			l.forgiven[p.etcd.id] = true
		}
	}
}

// stopDrains ends all drains, and opens all nodes.
func (sim *simulation) stopDrains() {
	for _, d := range slices.Clone(sim.drains) {
		if !d.host.up && !d.host.killed {
			sim.returnMachine(d)
		}
		sim.endDrain(d, "all faults end")
	}
	for _, h := range sim.hosts {
		if h.node != "" && !sim.isOpen(h.name) {
			sim.setClosed(&simulatedDrain{host: h, uid: h.node}, false)
		}
	}
}
