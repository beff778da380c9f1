package history

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	// requestTime is how long the API server works on one DELETE.
	requestTime = time.Minute
	// lateness is how much later than its last allow a deletion may still happen.
	lateness = 4 * time.Minute
)

// deletion is one DELETE of one Node, in the API server's hands. It reads the Node, asks the webhook, and deletes that very
// version of the Node; if the Node has changed since, it begins again.
type deletion struct {
	number     int
	name       string
	host       *host
	dryRun     bool
	collection bool
	begun      time.Time
	calls      int
	// review is the call that is under way, nil if there is none.
	review *review
	// admitted is the version of the Node that may be deleted, nil if there is none.
	admitted *corev1.Node
	doom     *doom
	allowed  time.Time
	over     bool
	// answer is what the webhook said last, and passed that it allowed.
	answer string
	passed bool
}

// delete begins a DELETE.
func (w *world) delete(h *host, dryRun, collection bool) *deletion {
	w.requests++
	d := &deletion{number: w.requests, name: h.name, host: h, dryRun: dryRun, collection: collection, begun: time.Now()}
	w.deletions = append(w.deletions, d)
	w.say("DELETE %d of Node %s arrives%s", d.number, d.name, map[bool]string{true: " (dry run)"}[dryRun])
	w.admit(d, w.choose(len(w.replicas)))
	return d
}

// admit reads the Node and calls the webhook.
func (w *world) admit(d *deletion, replica int) {
	n, err := w.api.node(d.name)
	if err != nil || d.calls == 5 || time.Since(d.begun) > requestTime {
		w.finish(d, "it is over")
		return
	}
	d.calls++
	d.host = w.hostOf(n)
	w.reviews++
	d.review = &review{
		deletion: d, number: w.reviews, replica: w.replicas[replica], node: n, labelled: n.Labels[protect.EtcdMemberLabel] == protect.EtcdMemberLabelValue,
		from: len(w.moments) - 1, before: w.known(n.Name, n.UID), turn: map[v1alpha1.ClusterID]int{},
	}
	w.say("DELETE %d asks webhook %d, labelled %t, uid %s", d.number, replica, d.review.labelled, n.UID)
	d.review.ask(w)
}

// finish ends a deletion that has not happened and never will.
func (w *world) finish(d *deletion, why string) {
	w.say("DELETE %d ends without effect: %s", d.number, why)
	d.over = true
	if d.doom != nil {
		d.doom.over = true
	}
}

// collect takes the answers of reviews that have ended.
func (w *world) collect() {
	for _, d := range slices.Clone(w.deletions) {
		if r := d.review; r != nil && r.over.Load() {
			d.review = nil
			r.end()
			w.answered(d, r)
		}
		if !d.over && d.review == nil && !d.allowed.IsZero() && time.Since(d.allowed) > lateness {
			w.finish(d, "nothing of it can be under way any more")
		}
	}
	w.deletions = slices.DeleteFunc(w.deletions, func(d *deletion) bool { return d.over })
}

func (w *world) answered(d *deletion, r *review) {
	allowed, message := r.answer != nil && r.answer.Allowed, "no answer"
	reason := protect.Reason("NoAnswer")
	if r.answer != nil {
		reason = protect.Reason(r.answer.AuditAnnotations["reason"])
		message = r.answer.Result.Message
	}
	if r.problem != "" && !r.replica.crashed() {
		w.fail("webhook %d gave no answer: %s", r.replica.number, r.problem)
	}
	if r.replica.crashed() {
		allowed, message = !r.labelled, "no answer" // by the failure policies
		reason = "NoAnswer"
	}
	d.answer, d.passed = message, allowed
	if allowed {
		w.tally.allowed++
	} else {
		w.tally.refused++
	}
	w.say("DELETE %d: allowed %t, %s: %s", d.number, allowed, reason, firstLine(message))
	switch {
	case d.dryRun:
		d.over = true
		return
	case !allowed:
		if d.doom == nil {
			d.over = true
			return
		}
		// An earlier call allowed another version of the Node, which is deleted no more.
		w.finish(d, "a later call was refused")
		return
	}
	d.admitted, d.allowed = r.node, time.Now()
	w.doom(d, r, reason)
}

// doom takes an allowed deletion into account, and has it judged.
func (w *world) doom(d *deletion, r *review, reason protect.Reason) {
	if reason == protect.Deleting {
		return // what allowed the first deletion stands for this one
	}
	for id, uids := range w.written { // who relied on an earlier grant wrote none
		if _, wrote := r.turn[id]; !wrote && uids[r.node.UID] > 0 && w.grantOf(id, r.node.UID) {
			r.turn[id] = uids[r.node.UID]
		}
	}
	made := &doom{
		uid: r.node.UID, node: r.node.Name, host: d.host, turn: r.turn, forgiven: map[v1alpha1.ClusterID]bool{},
		members: slices.Clone(r.before.bound[r.node.UID]),
	}
	for _, ref := range r.before.announced { // without a grant, only bindings tell what went with a Node
		if r.turn[ref.Cluster] > 0 {
			made.members = append(made.members, ref)
		}
	}
	if d.doom != nil { // another call for the same request: what stood, stands
		d.doom.over = true
	}
	d.doom = made
	a := &allowance{review: r, doom: made, to: len(w.moments) - 1, others: w.active()}
	switch {
	case reason == protect.BreakGlassUsed:
	case !r.labelled:
		w.unlabelled(r, reason)
	default:
		w.allowed(a)
	}
	w.dooms = append(w.dooms, made)
}

// unlabelled checks the other entry: what the replica's own cache binds must not go.
func (w *world) unlabelled(r *review, reason protect.Reason) {
	if reason == "NoAnswer" {
		return
	}
	for _, c := range r.replica.caches.clusters.all() {
		for _, b := range c.Spec.Members {
			if b.NodeUID == r.node.UID {
				w.fail("the unlabelled Node %s was allowed to go, and member %s is bound to it", r.node.Name, b.MemberID)
			}
		}
	}
}

// commit deletes the version that was admitted, if it is still there.
func (w *world) commit(d *deletion) {
	n, err := w.api.node(d.name)
	switch {
	case err != nil:
		w.finish(d, "the Node is gone already")
		return
	case n.ResourceVersion != d.admitted.ResourceVersion || n.UID != d.admitted.UID:
		w.say("DELETE %d finds another version of the Node", d.number)
		d.admitted = nil
		w.admit(d, w.choose(len(w.replicas)))
		return
	}
	w.say("DELETE %d happens", d.number)
	w.tally.deleted++
	if err := w.api.deleteNode(d.name); err != nil {
		w.fail("deleting a Node: %v", err)
	}
	d.over = true
	if d.doom != nil {
		d.doom.happened, d.doom.at = true, time.Now()
	}
	w.kubelets()
}

// kubelets notes whose Node is gone.
func (w *world) kubelets() {
	for _, h := range w.hosts {
		if n, err := w.api.node(h.name); h.node != "" && (err != nil || n.UID != h.node) {
			h.node = ""
		}
	}
}

func (w *world) hostOf(n *corev1.Node) *host {
	for _, h := range w.hosts {
		if h.node == n.UID {
			return h
		}
	}
	return w.phantom(n.UID)
}

// phantom is the machine of a Node that came back with a restored etcd and that no kubelet has.
func (w *world) phantom(uid types.UID) *host {
	return &host{name: "phantom of " + string(uid), killed: true}
}

// grantOf says whether there is a grant for the Node.
func (w *world) grantOf(id v1alpha1.ClusterID, uid types.UID) bool {
	c, err := w.api.cluster(string(id))
	return err == nil && slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
}

func firstLine(text string) string {
	for i, c := range text {
		if c == '\n' {
			return text[:i]
		}
	}
	return text
}
