package simulation

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// providerID returns the identity of a machine in its cloud, if a program manages the machines.
func (sim *simulation) providerID(h *simulatedHost) string {
	if sim.machines == nil {
		return ""
	}
	return "simulated://" + h.address
}

// createMachine creates the object of a machine that has none. Some NodeClaims are not registered
// yet.
func (sim *simulation) createMachine(h *simulatedHost) {
	if sim.machines == nil || h.hadMachine {
		return
	}
	h.hadMachine = true
	m := &managedMachine{host: h, Object: machine.Object{
		Kind: sim.machines.kind, Name: "of-" + h.address, UID: types.UID("object-" + h.address),
		Node: h.name, ProviderID: sim.providerID(h),
	}}
	if m.Kind == machine.KindMachine {
		m.Namespace = "default"
	} else if m.IsRegistered = !sim.choices.oneIn(3); !m.IsRegistered {
		m.Node = "" // the provider ID is all that connects the two
	}
	sim.machines.put(m)
}

// machineActions returns what users and the program that manages the machines may do next.
func (sim *simulation) machineActions() []action {
	actions := []action{{2, sim.deleteAnyMachine}, {1, sim.registerClaim}, {1, sim.removeFinalizer}}
	for _, m := range sim.machines.objects {
		if m.Deleting {
			actions = append(actions, action{4, func() { sim.stepMachine(m) }})
		}
	}
	if sim.profile.enabled[watchStalls] {
		actions = append(actions, action{1, func() {
			r := sim.replicas[sim.choose(len(sim.replicas))]
			r.machineWatchStalled = !r.machineWatchStalled
			sim.log("webhook %d: watch of machine objects stalled %t", r.number, r.machineWatchStalled)
		}})
	}
	return actions
}

// machineWork returns the deliveries of versions of machine objects.
func (sim *simulation) machineWork() []action {
	var actions []action
	for _, r := range sim.replicas {
		if n := r.pendingMachineVersions(); n > 0 {
			actions = append(actions, action{sim.profile.deliver, func() { r.machineWatch.deliver(1 + sim.choose(n)) }})
		}
	}
	return actions
}

// isBeingReviewed reports whether a DELETE of the object is in progress.
func (sim *simulation) isBeingReviewed(m *managedMachine) bool {
	return slices.ContainsFunc(sim.deletions, func(d *simulatedDeletion) bool { return d.machine == m && !d.isHook })
}

// deleteAnyMachine lets a user, an expiration or a scale-down delete an object.
func (sim *simulation) deleteAnyMachine() {
	if len(sim.deletions) > 6 {
		return
	}
	m, ok := pickMatching(sim, sim.machines.objects, func(m *managedMachine) bool {
		return !m.Deleting && !m.host.killed && m.host.node != "" && !sim.isBeingReviewed(m)
	})
	if ok {
		sim.startMachineDelete(m)
	}
}

func (sim *simulation) startMachineDelete(m *managedMachine) *simulatedDeletion {
	d := sim.newRequest(simulatedDeletion{host: m.host, machine: m})
	sim.log("%s starts; hooked %t, registered %t", d, m.IsHooked, m.IsRegistered)
	sim.callWebhook(d, sim.choose(len(sim.replicas)))
	return d
}

// deletionRequest completes the request of the API server for the deletion of the object.
func (m *managedMachine) deletionRequest(
	sim *simulation, asked *admissionv1.AdmissionRequest,
) *admissionv1.AdmissionRequest {
	raw, err := json.Marshal(m.content())
	if err != nil {
		sim.fail("encoding a machine object: %v", err)
	}
	asked.Namespace, asked.Name, asked.OldObject = m.Namespace, m.Name, runtime.RawExtension{Raw: raw}
	asked.Kind = metav1.GroupVersionKind{Group: machine.ClusterAPIGroup, Version: "v1beta2", Kind: m.Kind}
	if m.Kind == machine.KindNodeClaim {
		asked.Kind.Group, asked.Kind.Version = machine.KarpenterGroup, "v1"
	}
	return asked
}

// hasCached reports whether the cache of the replica has this Node with its label. If the Node
// cannot be read, the cache decides.
func (r *simulatedReplica) hasCached(n *corev1.Node) bool {
	cached := r.caches.nodes.get(n.Name)
	return cached != nil && cached.UID == n.UID && observation.IsLabelled(cached) == observation.IsLabelled(n)
}

// beginHookReview records that a replica begins to review a Machine that waits for its hook.
func (sim *simulation) beginHookReview(r *simulatedReplica, object machine.Object) *simulatedReview {
	at := slices.IndexFunc(sim.machines.objects, func(m *managedMachine) bool { return m.UID == object.UID })
	if at < 0 {
		return nil
	}
	m := sim.machines.objects[at]
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.host.name, UID: m.host.node}}
	d := sim.newRequest(simulatedDeletion{host: m.host, machine: m, isHook: true})
	sim.newReview(d, r, n, true)
	sim.log("%s: webhook %d reviews %s", d, r.number, m)
	return d.review
}

// hookAnswer returns the answer to the review of a hook. The webhook does not tell its reason.
func hookAnswer(allowed bool, message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: allowed, Result: &metav1.Status{Message: message, Code: http.StatusOK}}
}

// handleMachineAnswer handles the answer to the deletion of an object, or to the review of a hook.
func (sim *simulation) handleMachineAnswer(d *simulatedDeletion, r *simulatedReview, reason quorum.Reason) {
	m := d.machine
	if !d.wasAllowed {
		sim.abandon(d, "it is refused")
		return
	}
	if d.isHook && !slices.Contains(sim.machines.objects, m) {
		sim.abandon(d, "its Machine is gone, and the machine stays")
		return
	}
	// The entry for machine objects fails open, and finds Nodes in its cache. It then reads them, and
	// also the one that the object names.
	isNamed := r.hasNode && m.Node == d.name
	isUnknown := !isNamed && (!r.wasCached || (!r.hasNode && !r.replica.hasCached(r.node)))
	d.isUnreviewed = !d.isHook && (reason == "NoAnswer" || isUnknown)
	if d.isUnreviewed && sim.profile.careful {
		sim.abandon(d, "no webhook has decided")
		return
	}
	d.admitted, d.allowedAt = r.node, time.Now()
	if d.isHook {
		d.done, d.loss, m.reviewed = true, m.loss, time.Now()
		sim.counts["hooks allowed to be removed"]++
	}
	if !d.isHook && !m.endsAtOnce() && d.loss != nil {
		// An earlier call allowed another version, which ended its machine at once.
		d.loss.over, d.loss = true, nil
	}
	live, err := sim.api.node(d.name)
	isGone := err != nil || live.UID != r.node.UID
	// The review of a hook rests on a list of the Nodes that is up to 15 s old.
	isNewer := d.isHook && time.Since(d.host.registered) < 15*time.Second
	if d.isUnreviewed || isGone || isNewer || (!d.isHook && !m.endsAtOnce()) {
		return // it ends nothing, or is unknown to Holdfast
	}
	sim.recordAllowed(d, r, reason)
	if d.isHook {
		m.loss = d.loss
	}
}

// endsAtOnce reports whether the program ends the machine of a deleted object at once.
// The simulation decides that by itself, so that it notices if the code under test does not.
func (m *managedMachine) endsAtOnce() bool { return !m.IsHooked && !m.IsRegistered }

// commitMachine sets the deletion timestamp of an object, if it is the reviewed version.
func (sim *simulation) commitMachine(d *simulatedDeletion) {
	m := d.machine
	switch {
	case m.Deleting || !slices.Contains(sim.machines.objects, m):
		sim.abandon(d, "it is gone or being deleted already")
		return
	case m.version != d.machineVersion:
		sim.log("%s finds another version", d)
		d.admitted = nil
		sim.callWebhook(d, sim.choose(len(sim.replicas)))
		return
	}
	sim.log("%s is carried out", d)
	d.done, m.Deleting, m.loss, m.isUnreviewed = true, true, d.loss, d.isUnreviewed
	sim.machines.put(m)
}

// registerClaim lets Karpenter register the Node of a NodeClaim.
func (sim *simulation) registerClaim() {
	m, ok := pickMatching(sim, sim.machines.objects, func(m *managedMachine) bool {
		return m.Kind == machine.KindNodeClaim && !m.IsRegistered && !m.Deleting && m.host.node != ""
	})
	if ok {
		m.IsRegistered, m.Node = true, m.host.name
		sim.machines.put(m)
		sim.log("%s is registered", m)
	}
}

// removeFinalizer lets a user remove the finalizer of an object that is being deleted. The object
// goes, and its machine stays.
func (sim *simulation) removeFinalizer() {
	if !sim.choices.oneIn(4) {
		return
	}
	if m, ok := pickMatching(sim, sim.machines.objects, func(m *managedMachine) bool { return m.Deleting }); ok {
		sim.finishMachine(m, "its finalizer is removed by hand")
	}
}

// finishMachine removes an object. A machine that has not ended stays.
func (sim *simulation) finishMachine(m *managedMachine, why string) {
	sim.machines.remove(m)
	if m.loss != nil && !m.host.killed {
		m.loss.over = true
	}
	sim.log("%s is gone: %s", m, why)
}

// stepMachine does the next step of the program that manages the machine of an object.
func (sim *simulation) stepMachine(m *managedMachine) {
	n, err := sim.api.node(m.host.name)
	hasNode := err == nil && n.UID == m.host.node
	switch {
	case m.host.killed:
		sim.deleteLast(m, hasNode)
	case m.IsHooked:
		if !m.AwaitsHook {
			m.AwaitsHook = true
			sim.machines.put(m)
			sim.log("%s waits for its hook", m)
		}
	case m.IsRegistered && hasNode && n.DeletionTimestamp == nil:
		sim.deleteNodeOfClaim(m)
	case sim.mayEnd(m):
		sim.counts["machines ended by their objects"]++
		sim.terminate(m.host)
		if m.IsRegistered && hasNode {
			_, err := sim.api.editNode(n.Name, func(n *corev1.Node) { n.Finalizers = nil })
			sim.log("finalizer of Node %s is removed: %s", n.Name, errorText(err))
			sim.syncKubelets()
		}
	}
}

// deleteNodeOfClaim lets Karpenter delete the Node of a registered NodeClaim, with its finalizer.
func (sim *simulation) deleteNodeOfClaim(m *managedMachine) {
	isNode := func(d *simulatedDeletion) bool { return d.host == m.host && d.machine == nil && d.drain == nil }
	if slices.ContainsFunc(sim.deletions, isNode) {
		return
	}
	_, err := sim.api.editNode(m.host.name, func(n *corev1.Node) { n.Finalizers = []string{karpenterFinalizer} })
	if err != nil {
		sim.fail("adding a finalizer: %v", err)
	}
	sim.startDelete(m.host, false, false)
}

// deleteLast lets the program delete the Node of a machine that has ended, and then its object.
// Cluster API does not wait long for the Node.
func (sim *simulation) deleteLast(m *managedMachine, hasNode bool) {
	isNode := func(d *simulatedDeletion) bool { return d.host == m.host && d.drain == nil }
	switch {
	case slices.ContainsFunc(sim.deletions, isNode):
	case hasNode && m.Kind == machine.KindMachine && sim.choose(3) == 1:
		sim.startDelete(m.host, false, false)
	default:
		sim.finishMachine(m, "its machine has ended")
	}
}

// mayEnd reports whether the program ends the machine now: the object is all that it needs, or the
// Node is gone or being deleted.
func (sim *simulation) mayEnd(m *managedMachine) bool {
	if m.host.keptByOperator || sim.profile.careful && sim.hasUnstartedMember(m.host) {
		return false
	}
	return m.isUnreviewed || slices.ContainsFunc(sim.pendingLosses(), func(l *pendingLoss) bool {
		return l == m.loss || (l.host == m.host && l.happened && time.Since(l.at) < terminationPeriod)
	})
}

// updateMachines ends the losses of Machines that keep their hook, although a review has allowed to
// remove it.
func (sim *simulation) updateMachines() {
	if sim.machines == nil {
		return
	}
	for _, m := range sim.machines.objects {
		if m.loss != nil && m.IsHooked && time.Since(m.reviewed) > lateness {
			m.loss.over, m.loss = true, nil
		}
	}
}

// stopMachines completes the deletion of all objects.
func (sim *simulation) stopMachines() {
	if sim.machines == nil {
		return
	}
	for _, m := range slices.Clone(sim.machines.objects) {
		if !m.Deleting {
			continue
		}
		if !m.IsHooked && sim.mayEnd(m) {
			sim.terminate(m.host)
		}
		sim.finishMachine(m, fmt.Sprintf("all faults end; its machine has ended: %t", m.host.killed))
	}
}
