package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// requestTime is the time that the API server gives one DELETE.
	requestTime = time.Minute
	// lateness is the longest time between the last allow and the deletion.
	lateness = 4 * time.Minute
)

// A simulatedDeletion is one DELETE of one Node that the API server executes. The API
// server reads the Node, calls the webhook, and deletes exactly this version of the Node.
// If the Node changed in the meantime, it starts again.
type simulatedDeletion struct {
	number int
	// drain is the drain that requests the eviction of a guard pod; nil for the DELETE of a Node.
	drain *simulatedDrain
	// machine is the object that the request deletes, or whose hook it removes if isHook is true; nil
	// for the DELETE of a Node. machineVersion is the version that the webhook reviews.
	machine        *managedMachine
	machineVersion int
	isHook         bool
	isUnreviewed   bool

	name       string
	host       *simulatedHost
	dryRun     bool
	collection bool
	begun      time.Time
	calls      int
	// review is the current call of the webhook, nil if there is none.
	review *simulatedReview
	// admitted is the version of the Node that may be deleted, nil if there is none.
	admitted  *corev1.Node
	loss      *pendingLoss
	allowedAt time.Time
	done      bool
	// answer is the last message of the webhook. wasAllowed is true if the webhook allowed the
	// deletion.
	answer     string
	wasAllowed bool
	reason     quorum.Reason
}

// String returns how the log names the request.
func (d *simulatedDeletion) String() string {
	switch {
	case d.drain != nil:
		return fmt.Sprintf("EVICTION %d", d.number)
	case d.isHook:
		return fmt.Sprintf("HOOK %d", d.number)
	case d.machine != nil:
		return fmt.Sprintf("DELETE %d of %s", d.number, d.machine)
	}
	return fmt.Sprintf("DELETE %d", d.number)
}

// newRequest adds a request about the Node of a machine.
func (sim *simulation) newRequest(d simulatedDeletion) *simulatedDeletion {
	sim.deleteCount++
	d.number, d.name, d.begun = sim.deleteCount, d.host.name, time.Now()
	sim.deletions = append(sim.deletions, &d)
	return &d
}

// newReview begins the review of a request by a replica.
func (sim *simulation) newReview(d *simulatedDeletion, by *simulatedReplica, n *corev1.Node, labelled bool) {
	d.calls++
	sim.reviewCount++
	d.review = &simulatedReview{
		deletion: d, number: sim.reviewCount, replica: by, node: n, labelled: labelled,
		firstSnapshot: len(sim.snapshots) - 1, before: sim.knowledgeAbout(n.Name, n.UID),
		order: map[v1alpha1.ClusterID]int{}, forgiven: map[v1alpha1.ClusterID]bool{}, cancel: func() {},
	}
}

func (sim *simulation) startDelete(h *simulatedHost, dryRun, collection bool) *simulatedDeletion {
	d := sim.newRequest(simulatedDeletion{host: h, dryRun: dryRun, collection: collection})
	sim.log("%s of Node %s starts%s", d, d.name, map[bool]string{true: " (dry run)"}[dryRun])
	sim.callWebhook(d, sim.choose(len(sim.replicas)))
	return d
}

// callWebhook reads the Node and calls the webhook.
func (sim *simulation) callWebhook(d *simulatedDeletion, replica int) {
	n, err := sim.api.node(d.name)
	if err != nil || d.calls == 5 || time.Since(d.begun) > requestTime {
		sim.abandon(d, "no further attempt")
		return
	}
	if d.machine != nil && d.machine.host.node != n.UID {
		sim.abandon(d, "the Node has changed")
		return
	}
	d.host = sim.hostOf(n)
	if sim.profile.careful && sim.hasJoinedUnseen(d.host) {
		sim.abandon(d, "a member has just joined there")
		return
	}
	sim.newReview(d, sim.replicas[replica], n, observation.IsLabelled(n))
	if d.machine != nil {
		d.machineVersion, d.review.wasCached = d.machine.version, d.review.replica.hasCached(n)
	}
	sim.log("%s calls webhook %d, labelled %t, UID %s", d, replica, d.review.labelled, n.UID)
	d.review.send(sim)
}

// hasJoinedUnseen reports whether the distribution has added a member on the machine a moment ago.
// That the deletion of its Node is then allowed is a limit in docs/verdict.md.
func (sim *simulation) hasJoinedUnseen(h *simulatedHost) bool {
	const timeToPublish = 5 * time.Second
	return slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool {
		m := e.memberOn(h)
		return m != nil && m.rejoined && time.Since(m.joined) < timeToPublish
	})
}

// abandon ends a deletion that did not happen and never will.
func (sim *simulation) abandon(d *simulatedDeletion, why string) {
	sim.log("%s ends without effect: %s", d, why)
	d.done = true
	if d.loss != nil && !d.loss.drained {
		d.loss.over = true
	}
}

// collectAnswers handles the answers of all reviews that ended.
func (sim *simulation) collectAnswers() {
	for _, d := range slices.Clone(sim.deletions) {
		if r := d.review; r != nil && r.done.Load() {
			d.review = nil
			r.cancel()
			sim.handleAnswer(d, r)
		}
		if !d.done && d.review == nil && !d.allowedAt.IsZero() && time.Since(d.allowedAt) > lateness {
			sim.abandon(d, "the allow is too old")
		}
	}
	sim.deletions = slices.DeleteFunc(sim.deletions, func(d *simulatedDeletion) bool { return d.done })
}

func (sim *simulation) handleAnswer(d *simulatedDeletion, r *simulatedReview) {
	allowed, message := r.answer != nil && r.answer.Allowed, "no answer"
	reason := quorum.Reason("NoAnswer")
	if r.answer != nil {
		reason = quorum.Reason(r.answer.AuditAnnotations["reason"])
		message = r.answer.Result.Message
	}
	if r.problem != "" && !r.replica.isCrashed() {
		sim.fail("webhook %d returned no valid answer: %s", r.replica.number, r.problem)
	}
	if r.replica.isCrashed() {
		allowed, message = !r.labelled || d.machine != nil, "no answer" // by the failure policies
		allowed = allowed && !d.isHook
		reason = "NoAnswer"
	}
	d.answer, d.wasAllowed, d.reason = message, allowed, reason
	if allowed {
		sim.counts["allowed"]++
	} else {
		sim.counts["refused"]++
	}
	sim.log("%s: allowed %t, %s: %s", d, allowed, reason, firstLine(message))
	switch {
	case d.drain != nil:
		sim.handleEviction(d, r, reason)
		return
	case d.machine != nil:
		sim.handleMachineAnswer(d, r, reason)
		return
	case d.dryRun:
		d.done = true
		return
	case !allowed:
		if d.loss == nil {
			d.done = true
			return
		}
		// An earlier call allowed another version of the Node, which cannot be deleted any more.
		sim.abandon(d, "a later call was refused")
		return
	}
	d.admitted, d.allowedAt = r.node, time.Now()
	sim.recordAllowed(d, r, reason)
}

// recordAllowed adds the loss that an allowed deletion may cause, and checks the answer.
func (sim *simulation) recordAllowed(d *simulatedDeletion, r *simulatedReview, reason quorum.Reason) {
	if reason == quorum.Deleting {
		return // The first allow also covers this DELETE.
	}
	// A review that relies on an earlier grant writes none. A grant for an earlier version of the Node
	// is void, so no review relies on it.
	inherited := map[v1alpha1.ClusterID]bool{}
	for id, uids := range sim.lastGrant {
		if _, wrote := r.order[id]; !wrote && uids[r.node.UID] > 0 && sim.hasGrantFor(id, r.node) {
			r.order[id], inherited[id] = uids[r.node.UID], reason == quorum.NothingToProtect
		}
	}
	made := &pendingLoss{
		uid: r.node.UID, node: r.node.Name, host: d.host, order: r.order, inherited: inherited,
		forgiven: maps.Clone(r.forgiven),
		members:  slices.Clone(r.before.bound[r.node.UID]),
	}
	// Without a grant, only bindings show which members the Node had.
	for _, ref := range r.before.announced {
		if r.order[ref.Cluster] > 0 && !slices.Contains(r.before.withdrawn, ref) {
			made.members = append(made.members, ref)
		}
	}
	// This call belongs to the same DELETE and replaces its earlier loss. The machine of a drained
	// node may be away until the node has returned, even if a later eviction is refused.
	made.drained = d.drain != nil
	if d.loss != nil && !made.drained {
		d.loss.over = true
	}
	d.loss = made
	a := &allowedReview{review: r, loss: made, lastSnapshot: len(sim.snapshots) - 1, otherLosses: sim.pendingLosses()}
	switch {
	case reason == quorum.BreakGlassUsed:
	case !r.labelled:
		sim.checkUnlabelled(r, reason)
	default:
		sim.checkAllowed(a)
	}
	sim.losses = append(sim.losses, made)
}

// checkUnlabelled checks the answers for unlabelled Nodes: a Node with a binding in the replica's
// own cache must not be deleted, nor one whose member two observers list there. The API server may
// know better than a cache whose watch hangs, so both must have it.
func (sim *simulation) checkUnlabelled(r *simulatedReview, reason quorum.Reason) {
	if reason == "NoAnswer" {
		return
	}
	for _, e := range sim.etcds {
		c, live := r.replica.caches.clusters.get(string(e.id)), sim.api.clusters.objects[string(e.id)]
		if c == nil || live == nil {
			continue
		}
		c = observation.Join(c, r.replica.caches.observations.list())
		for _, b := range c.Spec.Members {
			isSame := func(o v1alpha1.Binding) bool { return o.MemberID == b.MemberID && o.NodeUID == b.NodeUID }
			if b.NodeUID == r.node.UID && slices.ContainsFunc(live.Spec.Members, isSame) {
				sim.fail("unlabelled Node %s was allowed to be deleted although member %s is bound to it", r.node.Name, b.MemberID)
			}
		}
		listed := sim.listedIn(e, live, r.node)
		for _, ref := range sim.listedIn(e, c, r.node) {
			if !observation.IsLocated(c, ref.Member) && slices.Contains(listed, ref) {
				sim.fail("unlabelled Node %s was allowed to be deleted although member %s is listed there", r.node.Name, ref.Member)
			}
		}
	}
}

// commit deletes the admitted version of the Node, if it is still the current one.
func (sim *simulation) commit(d *simulatedDeletion) {
	switch {
	case d.drain != nil:
		sim.evict(d)
		return
	case d.machine != nil:
		sim.commitMachine(d)
		return
	}
	n, err := sim.api.node(d.name)
	switch {
	case err != nil:
		sim.abandon(d, "the Node is gone already")
		return
	case n.ResourceVersion != d.admitted.ResourceVersion || n.UID != d.admitted.UID:
		sim.log("DELETE %d finds another version of the Node", d.number)
		d.admitted = nil
		sim.callWebhook(d, sim.choose(len(sim.replicas)))
		return
	}
	sim.log("DELETE %d is carried out", d.number)
	sim.counts["deletions carried out"]++
	if err := sim.api.deleteNode(d.name); err != nil {
		sim.fail("deleting a Node: %v", err)
	}
	d.done = true
	if d.loss != nil {
		d.loss.happened, d.loss.at = true, time.Now()
		// From now on, the grant must not end before the machine does.
		maps.DeleteFunc(d.loss.inherited, func(id v1alpha1.ClusterID, _ bool) bool { return sim.hasGrant(id, d.loss.uid) })
	}
	sim.syncKubelets()
}

// syncKubelets records which hosts have lost their Node.
func (sim *simulation) syncKubelets() {
	for _, h := range sim.hosts {
		if n, err := sim.api.node(h.name); h.node != "" && (err != nil || n.UID != h.node) {
			h.node = ""
		}
	}
}

func (sim *simulation) hostOf(n *corev1.Node) *simulatedHost {
	for _, h := range sim.hosts {
		if h.node == n.UID {
			return h
		}
	}
	return sim.unknownHost(n.UID)
}

// unknownHost returns the machine of a Node that a restore brought back and that no kubelet
// uses.
func (sim *simulation) unknownHost(uid types.UID) *simulatedHost {
	return &simulatedHost{name: "unknown host of " + string(uid), killed: true}
}

// hasGrant reports whether the cluster has a grant for the Node.
func (sim *simulation) hasGrant(id v1alpha1.ClusterID, uid types.UID) bool {
	c, err := sim.api.cluster(string(id))
	return err == nil && slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
}

// hasGrantFor reports whether the cluster has a grant for this version of the Node.
func (sim *simulation) hasGrantFor(id v1alpha1.ClusterID, n *corev1.Node) bool {
	state := observation.NodeState{
		Known: true, UID: n.UID, Version: n.ResourceVersion, Deleting: n.DeletionTimestamp != nil,
	}
	c, err := sim.api.cluster(string(id))
	return err == nil && slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool {
		return g.NodeUID == n.UID && !quorum.IsVoid(g, state)
	})
}

func firstLine(text string) string {
	for i, c := range text {
		if c == '\n' {
			return text[:i]
		}
	}
	return text
}
