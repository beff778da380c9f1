package simulation

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// startEviction sends the eviction of the guard pod to the webhook.
func (sim *simulation) startEviction(drain *simulatedDrain) {
	n, err := sim.api.node(drain.host.name)
	if err != nil {
		return
	}
	d := sim.newRequest(simulatedDeletion{host: drain.host, drain: drain})
	drain.request = d
	sim.newReview(d, sim.replicas[sim.choose(len(sim.replicas))], n, true)
	sim.log("%s of the guard pod of Node %s, UID %s, calls webhook %d", d, n.Name, n.UID, d.review.replica.number)
	d.review.send(sim)
}

// evictionRequest completes the request of the API server for the eviction of the guard pod.
func (d *simulatedDrain) evictionRequest(asked *admissionv1.AdmissionRequest) *admissionv1.AdmissionRequest {
	meta := metav1.ObjectMeta{Namespace: guard.Namespace, Name: guard.Name(d.host.name)}
	raw, _ := json.Marshal(policyv1.Eviction{ObjectMeta: meta}) // every field can be encoded
	asked.Namespace, asked.Name, asked.Operation = meta.Namespace, meta.Name, admissionv1.Create
	asked.Kind = metav1.GroupVersionKind{Group: policyv1.GroupName, Version: "v1", Kind: "Eviction"}
	asked.Resource, asked.SubResource = metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, "eviction"
	asked.Object = runtime.RawExtension{Raw: raw}
	return asked
}

// recordNode records the Node that a review has read. The request to review an eviction or a
// machine does not contain it. The announcement is that of the first read, or of the last one for a
// machine.
func (r *simulatedReview) recordNode(n *corev1.Node) {
	if n.Name != r.deletion.name {
		return
	}
	r.recording.Lock()
	defer r.recording.Unlock()
	if r.hasNode && r.deletion.machine == nil {
		return
	}
	r.hasNode = true
	if r.deletion.drain != nil && n.UID != r.node.UID {
		r.before.announced = announcedBy(n)
	}
	if n.UID == r.node.UID {
		now := announcedBy(n)
		r.before.withdrawn = slices.DeleteFunc(slices.Clone(r.before.announced), func(ref evidence.MemberRef) bool {
			return slices.Contains(now, ref)
		})
	}
	if r.deletion.drain != nil || r.deletion.machine != nil {
		r.node = n.DeepCopy()
	}
	if r.deletion.machine != nil {
		r.labelled = observation.IsLabelled(n)
	}
}

// handleEviction handles the answer to the eviction of a guard pod.
func (sim *simulation) handleEviction(d *simulatedDeletion, r *simulatedReview, reason quorum.Reason) {
	if !d.wasAllowed {
		d.done = true
		if r.answer == nil {
			return
		}
		if code := r.answer.Result.Code; code != http.StatusTooManyRequests && code != http.StatusNotFound {
			sim.fail("%s is refused with code %d, which ends a drain", d, code)
		}
		return
	}
	d.admitted, d.allowedAt, d.host = r.node, time.Now(), sim.hostOf(r.node)
	if isUnjudged := []quorum.Reason{"NodeGone", "NotGuard", quorum.OnlyMember}; slices.Contains(isUnjudged, reason) {
		return // there is no quorum to keep
	}
	sim.counts["drains allowed"]++
	sim.recordAllowed(d, r, reason)
}

// evict deletes the guard pod of an allowed eviction.
func (sim *simulation) evict(d *simulatedDeletion) {
	delete(sim.api.pods, guard.Name(d.name))
	sim.log("%s is carried out", d)
	d.done = true
	if d.drain.uid == d.admitted.UID {
		d.drain.isPermitted, d.drain.isDrained = d.loss != nil || sim.isBeingDeleted(d.drain), true
	}
}

// reconcileGuards lets the leader create and delete guard pods. Between its read and its write, the
// simulation may change.
func (sim *simulation) reconcileGuards() {
	sim.writeGuards()
	if sim.planGuards(); len(sim.guardWrites) > 0 && sim.choose(2) == 1 {
		return // the writes happen later
	}
	sim.writeGuards()
}

// writeGuards carries out the decisions about guard pods.
func (sim *simulation) writeGuards() {
	pending := sim.guardWrites
	sim.guardWrites = nil
	for _, write := range pending {
		write()
	}
}

// planGuards plans the guard pods by the leader's caches, and again by what it reads from the API
// server before it writes.
func (sim *simulation) planGuards() {
	at := slices.IndexFunc(sim.replicas, func(r *simulatedReplica) bool { return r.isLeading && !r.isCrashed() })
	if at < 0 {
		return
	}
	caches := sim.replicas[at].caches
	cached := guard.State{Clusters: caches.joined(), Nodes: caches.nodes.list(), Now: time.Now()}
	live := guard.State{Now: time.Now()}
	for _, name := range sortedKeys(sim.api.pods) {
		cached.Pods = append(cached.Pods, sim.api.pods[name])
	}
	if !slices.ContainsFunc(guard.Plan(cached), func(d guard.Decision) bool { return d.Action.IsWrite() }) {
		return
	}
	for _, name := range sortedKeys(sim.api.clusters.objects) {
		live.Clusters = append(live.Clusters, sim.api.joined(name))
	}
	for _, name := range sortedKeys(sim.api.nodes.objects) {
		live.Nodes = append(live.Nodes, sim.api.nodes.objects[name])
	}
	live.Pods = cached.Pods
	for _, d := range guard.Plan(live) {
		if d.Action.IsWrite() {
			sim.guardWrites = append(sim.guardWrites, func() { sim.writeGuard(d) })
		}
		if d.Action == guard.Create && !sim.isOpen(d.Node) {
			sim.fail("a guard pod is to be created on Node %s, which is closed", d.Node)
		}
	}
}

// writeGuard carries out one decision about a guard pod.
func (sim *simulation) writeGuard(d guard.Decision) {
	_, exists := sim.api.pods[d.Pod]
	switch {
	case d.Action != guard.Create:
		delete(sim.api.pods, d.Pod)
	case exists:
		return
	default:
		sim.api.pods[d.Pod] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: guard.Namespace, Name: d.Pod, Labels: map[string]string{guard.NodeLabel: "true"},
				Annotations:     map[string]string{guard.NodeUIDAnnotation: string(d.On.UID)},
				OwnerReferences: []metav1.OwnerReference{{Kind: "EtcdCluster", UID: d.Owner.UID, Controller: new(true)}},
			},
			Spec: corev1.PodSpec{NodeName: d.Node},
		}
	}
	sim.log("guard pod of Node %s: %s (%s)", d.Node, d.Action, d.Why)
}

// drainWork returns the writes of guard pods that the leader has decided.
func (sim *simulation) drainWork() []action {
	if len(sim.guardWrites) == 0 {
		return nil
	}
	return []action{{4, sim.reconcileGuards}}
}

// doGuardWork brings the guard pods up to date. It reports whether there was anything to do.
func (sim *simulation) doGuardWork() bool {
	if !sim.profile.enabled[drains] {
		return false
	}
	sim.planGuards()
	isBusy := len(sim.guardWrites) > 0
	sim.writeGuards()
	return isBusy
}
