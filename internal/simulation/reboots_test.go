package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	kuredAnnotation = "weave.works/kured-reboot-in-progress"
	waitsForReboot  = "is being rebooted by kured"
)

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
	// checked is the number of allowed deletions that have been checked, and met the number of
	// those during a reboot.
	checked, met int
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
		n.Annotations = maps.Clone(n.Annotations)
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[kuredAnnotation] = time.Now().UTC().Format(time.RFC3339)
		if !marked {
			delete(n.Annotations, kuredAnnotation)
		}
	})
	if err != nil {
		k.sim.fail("kured: %v", err)
	}
}

// check checks the deletions that were allowed while kured rebooted another machine: quorum must
// not depend on a member that is away. A mark that is younger than the review may come too late
// for it. A repeated review is answered by the grant of an earlier one, which may be older than the
// mark.
func (k *simulatedKured) check() {
	for ; k.checked < len(k.sim.allowedReviews); k.checked++ {
		a := k.sim.allowedReviews[k.checked]
		isRepeated := a.review.answer.AuditAnnotations["reason"] == string(quorum.Repeated)
		if k.host == nil || k.host == a.loss.host || k.since > a.review.firstSnapshot || isRepeated {
			continue
		}
		for i, e := range k.sim.etcds {
			if e.memberOn(a.loss.host) == nil || e.memberOn(k.host) == nil {
				continue
			}
			k.met++
			left := 0
			for _, m := range e.voters() {
				isAway := m.host == k.host || m.host == a.loss.host
				if !isAway && k.sim.wasAlive(i, m.id, a.review.firstSnapshot, a.lastSnapshot) {
					left++
				}
			}
			if voters := len(e.voters()); left < quorumOf(voters) {
				k.sim.fail("deletion %d of Node %s was allowed while kured reboots Node %s: of %d voters only %d are left",
					a.review.deletion.number, a.review.node.Name, k.host.name, voters, left)
			}
		}
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

// run lets random actions and the steps of kured happen.
func (k *simulatedKured) run(steps int) {
	for range steps {
		synctest.Wait()
		k.sim.collectAnswers()
		k.check()
		if k.sim.hasFailed() {
			return
		}
		actions := append(k.sim.profile.environmentActions(k.sim), action{3, k.step})
		actions = append(actions, k.sim.workActions()...)
		k.sim.pickAction(append(actions, action{2, func() { k.sim.sleep(100 * time.Millisecond) }}))
		k.sim.recordSnapshot()
	}
	synctest.Wait()
	k.sim.collectAnswers()
	k.check()
}

// TestHistoriesWithReboots plays random histories with kured beside programs that delete Nodes.
func TestHistoriesWithReboots(t *testing.T) {
	const fixed, steps = 60, 150
	met := 0
	first := rand.Uint64() | 1<<63
	for i := range fixed + flagValue[int]("histories") {
		seed := uint64(i + 1)
		if i >= fixed {
			seed = first + uint64(i)
		}
		synctest.Test(t, func(t *testing.T) {
			c := fromSeed(seed)
			p := randomProfile(c)
			p.bound, p.careful, p.clusters = true, false, []int{3 + 2*c.pick(2)}
			p.hosts = p.clusters[0] + c.pick(2)
			p.disableAll([]simulationFeature{membershipChanges, breakGlass, clusterDeletions, apiRestores, reboots, drains})
			k := &simulatedKured{sim: newSimulation(t.Context(), c, p, false)}
			k.run(steps)
			k.sim.stop()
			met += k.met
			if k.sim.hasFailed() {
				t.Errorf("seed %d: %s\n%s", seed, k.sim.failure, strings.Join(k.sim.trace, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Log(fmt.Sprint(met, " deletions were allowed during a reboot; random seeds from ", first))
	require.Positive(t, met)
}

// TestF24KuredBesideAutoscaler lets an autoscaler delete a second Node while kured reboots the
// first.
func TestF24KuredBesideAutoscaler(t *testing.T) {
	runScenario(t, 3, []int{3}, func(s *scenario) {
		k := &simulatedKured{sim: s.simulation}
		reboot := func(expected bool) {
			t.Helper()
			k.step()
			s.recordSnapshot()
			s.advance(5 * time.Second)
			require.Equal(t, expected, s.hosts[0].up)
			s.requireRefused(s.hosts[1], waitsForReboot)
		}
		reboot(true) // cordoned: the member still answers
		reboot(false)
		reboot(true)
		require.Zero(t, s.grantCountOf(s.etcds[0]))
		k.step()
		s.requireAllowed(s.hosts[1])
	})
	// The machine that is rebooted may itself be deleted.
	runScenario(t, 3, []int{3}, func(s *scenario) {
		k := &simulatedKured{sim: s.simulation}
		k.step()
		s.requireAllowed(s.hosts[0])
	})
}
