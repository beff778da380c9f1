package simulation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const kuredAnnotation = "weave.works/kured-reboot-in-progress"

// A simulatedKured reboots machines one after another, as kured does: it annotates every Node
// that wants a reboot, cordons one Node, reboots its machine, uncordons the Node, and then
// removes the annotation.
type simulatedKured struct {
	sim *simulation
	// host is the machine whose Node is cordoned for a reboot, nil if there is none.
	host *simulatedHost
	// since is the index of the first snapshot after the cordon.
	since int
	// rebooted is true if the machine has been down.
	rebooted bool
}

// step does the next step of kured.
func (k *simulatedKured) step() {
	switch {
	case k.host == nil:
		k.cordon()
	case k.host.up && !k.rebooted:
		k.host.up, k.rebooted = false, true
		k.sim.log("kured reboots machine %s", k.host.name)
	case !k.host.up:
		k.host.up = true
		k.sim.log("machine %s is up again", k.host.name)
	default:
		k.uncordon()
	}
}

// cordon selects a machine, annotates its Node and cordons it.
func (k *simulatedKured) cordon() {
	h, ok := pickMatching(k.sim, k.sim.hosts, func(h *simulatedHost) bool { return h.up && !h.killed && h.node != "" })
	if ok {
		k.edit(h, true)
		k.host, k.since, k.rebooted = h, len(k.sim.snapshots), false
		k.sim.log("kured cordons Node %s", h.name)
	}
}

// uncordon ends the reboot. A machine that was removed meanwhile is forgotten.
func (k *simulatedKured) uncordon() {
	if k.host.node != "" && !k.host.killed {
		k.edit(k.host, false)
	}
	k.sim.log("kured has finished with machine %s", k.host.name)
	k.host = nil
}

// edit marks a Node and cordons it, or removes both.
func (k *simulatedKured) edit(h *simulatedHost, marked bool) {
	_, err := k.sim.api.editNode(h.name, func(n *corev1.Node) {
		n.Spec.Unschedulable = marked
		if delete(n.Annotations, kuredAnnotation); marked {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, kuredAnnotation, time.Now().UTC().Format(time.RFC3339))
		}
	})
	if err != nil {
		k.sim.fail("kured: %v", err)
	}
}

// A rebootMark identifies one reboot that a Node announces. It is zero if no Node announces any.
type rebootMark struct {
	uid   types.UID
	since int
}

// mark returns the reboot that a Node announces now.
func (k *simulatedKured) mark() rebootMark {
	if k.host == nil || k.host.node == "" {
		return rebootMark{}
	}
	n, err := k.sim.api.node(k.host.name)
	if err != nil || n.UID != k.host.node || n.Annotations[kuredAnnotation] == "" || !n.Spec.Unschedulable {
		return rebootMark{}
	}
	return rebootMark{uid: n.UID, since: k.since}
}

// stop ends the reboot.
func (k *simulatedKured) stop() {
	if k.host != nil {
		k.host.up = true
		k.uncordon()
	}
}

// rebootProfile picks a profile in which kured reboots machines beside programs that delete Nodes.
func rebootProfile(c *choices) profile {
	p := randomProfile(c)
	p.bound, p.settled, p.careful, p.clusters = true, true, false, []int{3 + 2*c.pick(2)}
	p.hosts = p.clusters[0] + c.pick(2)
	p.disableAll([]simulationFeature{breakGlass, clusterDeletions, apiRestores, drains})
	p.enabled[reboots] = true
	return p
}

// TestHistoriesWithReboots plays random histories in which kured reboots machines.
func TestHistoriesWithReboots(t *testing.T) {
	historyKind(rebootProfile).playAll(t, 20)
}
