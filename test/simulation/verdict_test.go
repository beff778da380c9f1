package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A pendingLoss is a machine that may be lost because the deletion of its Node was allowed
// or happened.
//
// It ends when the deletion definitely did not happen, or when an operator guarantees that the
// machine stays. It also ends when the API server's etcd is restored to an earlier time, or when
// the same machine has had a new Node for twenty minutes, which by definition undoes the
// deletion. Machines are terminated within a quarter of an hour of a deletion, or not at all.
type pendingLoss struct {
	uid  types.UID
	node string
	host *simulatedHost
	// members are the members that Holdfast could know to be on the machine.
	members []evidence.MemberRef
	// order has, by cluster, the position of the grant in the order of all grants.
	order map[v1alpha1.ClusterID]int
	// inherited has the clusters whose grant the review found but did not need, because no member was
	// on the Node: the machine is given up only as long as that grant exists.
	inherited map[v1alpha1.ClusterID]bool
	// happened is true if the Node is gone, is being deleted, or has an autoscaler's deletion
	// taint.
	happened bool
	at       time.Time
	over     bool
	// forgiven are the clusters whose EtcdCluster an authorized user has deleted since, or whose grant
	// an operator has settled, and, of a drain, those whose members have returned.
	forgiven map[v1alpha1.ClusterID]bool
	// drained is true if the loss follows from a drain: the machine may be away, or go for good, until
	// the node has returned.
	drained bool
	// opened is when the node was open again for the first time, and proven, by cluster, when the
	// first probe began of an unbroken series that proves the returned member healthy. closed is when
	// the node was found closed, zero while it is open. After that both begin again, unless the node
	// is opened at the same moment: no probe can see that, and no machine can leave meanwhile.
	opened, closed time.Time
	proven         map[v1alpha1.ClusterID]time.Time
}

// terminationPeriod is the longest time between the deletion of a Node and the termination of its
// machine.
const terminationPeriod = 15 * time.Minute

// mayBeTerminated reports whether the machine of the loss may still be terminated.
func (sim *simulation) mayBeTerminated(d *pendingLoss) bool {
	n, err := sim.api.node(d.node)
	return !d.happened || time.Since(d.at) < terminationPeriod || (err == nil && n.UID == d.uid)
}

// reregistrationPeriod is how long the same machine must have had a new Node.
const reregistrationPeriod = 20 * time.Minute

// pendingLosses returns the losses that have not ended.
func (sim *simulation) pendingLosses() []*pendingLoss {
	now := time.Now()
	sim.updateDrains()
	sim.updateMachines()
	sim.losses = slices.DeleteFunc(sim.losses, func(d *pendingLoss) bool {
		h := d.host
		if d.happened && h.node != "" && h.node != d.uid && !h.killed {
			since := d.at
			if h.registered.After(since) {
				since = h.registered
			}
			d.over = d.over || now.Sub(since) >= reregistrationPeriod
		}
		return d.over
	})
	return slices.DeleteFunc(slices.Clone(sim.losses), sim.isFenced)
}

// isFenced reports whether the loss follows only from a DELETE whose version of the Node has been
// overwritten. The API server has it reviewed again before it deletes the Node.
func (sim *simulation) isFenced(l *pendingLoss) bool {
	n, err := sim.api.node(l.node)
	if l.happened || l.drained || err != nil || n.UID != l.uid || n.DeletionTimestamp != nil {
		return false
	}
	return slices.ContainsFunc(sim.deletions, func(d *simulatedDeletion) bool {
		return d.loss == l && d.machine == nil && d.drain == nil &&
			(d.admitted == nil || d.admitted.ResourceVersion != n.ResourceVersion)
	})
}

func (sim *simulation) isLossPending(h *simulatedHost) bool {
	return slices.ContainsFunc(sim.pendingLosses(), func(d *pendingLoss) bool { return d.host == h })
}

// knowledgeAbout returns what Holdfast can know at this moment about the members of a Node.
func (sim *simulation) knowledgeAbout(node string, uid types.UID) deletionKnowledge {
	k := deletionKnowledge{
		bound: map[types.UID][]evidence.MemberRef{}, tombstones: map[types.UID]map[v1alpha1.ClusterID]bool{},
		reboot: sim.kured.mark(),
	}
	for uid, refs := range sim.api.bindings {
		for ref := range refs {
			if sim.api.clusters.objects[string(ref.Cluster)] != nil {
				k.bound[uid] = append(k.bound[uid], ref)
			}
		}
	}
	if n, err := sim.api.node(node); err == nil && n.UID == uid {
		k.announced, k.listed = announcedBy(n), sim.listedAt(n)
	}
	for _, d := range sim.pendingLosses() {
		if d.happened {
			k.losses = append(k.losses, d)
			k.tombstones[d.uid] = maps.Clone(sim.api.tombstones[d.uid])
		}
	}
	return k
}

// announcedBy returns the members that a guarded Node announces.
func announcedBy(n *corev1.Node) []evidence.MemberRef {
	refs, err := observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	if err != nil || n.Labels[observation.EtcdMemberLabel] == "" {
		return nil
	}
	return refs
}

// listedAt returns the members on the machine of the Node that the lists of two observers have at
// one of its addresses.
func (sim *simulation) listedAt(n *corev1.Node) []evidence.MemberRef {
	var found []evidence.MemberRef
	for _, e := range sim.etcds {
		if c := sim.api.joined(string(e.id)); c != nil {
			found = append(found, sim.listedIn(e, c, n)...)
		}
	}
	return found
}

// listedIn returns those that the lists in this object have. Without any confirmed list, the other
// ones count.
func (sim *simulation) listedIn(e *simulatedEtcd, c *v1alpha1.EtcdCluster, n *corev1.Node) []evidence.MemberRef {
	var addresses []string
	for _, a := range n.Status.Addresses {
		addresses = append(addresses, a.Address)
	}
	lists := slices.DeleteFunc(slices.Clone(c.Observations), func(o v1alpha1.Observation) bool {
		return !sim.isObserver(c, o)
	})
	if confirmed := observation.Confirmed(lists); len(confirmed) > 0 {
		lists = confirmed
	}
	var found []evidence.MemberRef
	for _, m := range e.members {
		count := 0
		for _, o := range lists {
			if s, isListed := observation.FindMember(o, m.id); isListed && observation.IsAtAddress(s, addresses) {
				count++
			}
		}
		if m.host.node == n.UID && count > 1 {
			found = append(found, evidence.MemberRef{Cluster: e.id, Member: m.id})
		}
	}
	return found
}

// forgetEndedLists is called when a replica reads the EtcdClusters. It removes from its reviews
// what only member lists showed that have ended since the start of the review: the agents have no
// certificate any more, for example.
func (sim *simulation) forgetEndedLists(replica *simulatedReplica) {
	for _, d := range sim.deletions {
		if d.review == nil || d.review.replica != replica {
			continue
		}
		if n, err := sim.api.node(d.name); err == nil {
			d.review.keepListed(n.UID, sim.listedAt(n))
		}
	}
}

// keepListed removes the members that the lists do not have any more.
func (r *simulatedReview) keepListed(node types.UID, listed []evidence.MemberRef) {
	r.recording.Lock()
	defer r.recording.Unlock()
	if r.node.UID != node {
		return
	}
	r.before.listed = slices.DeleteFunc(slices.Clone(r.before.listed), func(ref evidence.MemberRef) bool {
		return !slices.Contains(listed, ref)
	})
}

// isObserver reports whether the observation is that of an observer whose Node exists.
func (sim *simulation) isObserver(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) bool {
	n, err := sim.api.node(o.Node)
	return err == nil && n.UID == o.NodeUID && slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.Node == o.Node && b.NodeUID == o.NodeUID && observation.IsObserver(b)
	})
}

// An allowedReview is an allowed deletion, with the state that is needed to check it.
type allowedReview struct {
	review *simulatedReview
	loss   *pendingLoss
	// lastSnapshot is the index of the last snapshot before the answer.
	lastSnapshot int
	// otherLosses are the pending losses at the time of the answer.
	otherLosses []*pendingLoss
}

// checkAllowed checks an answer that allows a deletion. It also checks again the earlier
// answers whose grants come later in the order of grants: such a review had to count this
// grant.
func (sim *simulation) checkAllowed(a *allowedReview) {
	if sim.isFenced(a.loss) {
		return // The next review of the same DELETE is checked.
	}
	sim.checkQuorumAfter(a, nil)
	if slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool {
		return a.review.order[e.id] > 0 && a.review.before.reboot.uid != a.loss.uid && len(sim.awayMembers(e, a)) > 0
	}) {
		sim.counts["allowed beside a reboot"]++
	}
	for _, earlier := range sim.allowedReviews {
		if !earlier.loss.over && earlier.review.deletion != a.review.deletion {
			sim.checkQuorumAfter(earlier, a.loss)
		}
	}
	sim.allowedReviews = append(sim.allowedReviews, a)
}

// checkQuorumAfter checks that every cluster keeps its quorum after the allowed deletion.
func (sim *simulation) checkQuorumAfter(a *allowedReview, late *pendingLoss) {
	for i, e := range sim.etcds {
		turn := a.review.order[e.id]
		if late != nil && (late.order[e.id] == 0 || late.order[e.id] > turn || turn == 0) {
			continue
		}
		others := a.otherLosses
		if late != nil {
			others = append(slices.Clone(others), late)
		}
		if why := sim.unsafeReason(i, e, a, others); why != "" {
			sim.fail("deletion %d of Node %s (%s) was allowed, but etcd %s may lose its quorum: %s",
				a.review.deletion.number, a.review.node.Name, a.review.node.UID, e.id, why)
		}
	}
}

// unsafeReason returns why the answer was right at no moment of the review, or an empty
// string if it was right at one. Probes cannot reach all members at the same moment, so a
// member counts if it served linearizable reads at any moment of the review. It does not count if
// it had the alarm CORRUPT all the time.
func (sim *simulation) unsafeReason(i int, e *simulatedEtcd, a *allowedReview, others []*pendingLoss) string {
	here := refsOf(e.id, a.review.before.announced, a.review.before.bound[a.loss.uid], a.review.before.listed)
	given, hosts, names := sim.lostMembers(e, a, others)
	away := sim.awayMembers(e, a)
	var why []string
	for at := a.review.firstSnapshot; at <= a.lastSnapshot; at++ {
		list := sim.snapshots[at][i]
		on, voters, left := 0, 0, 0
		for _, s := range list {
			mine := s.host == a.loss.host && slices.Contains(here, s.id)
			if mine {
				on++
			}
			lost := mine || slices.Contains(given, s.id) || (slices.Contains(hosts, s.host) && a.canBePlaced(e.id, s))
			if s.learner && (!lost || s.killed) {
				continue // etcd does not promote a learner that is dead
			}
			voters++
			if !lost && !slices.Contains(away, s.id) && sim.wasHealthy(i, s.id, a.review.firstSnapshot, a.lastSnapshot) {
				left++
			}
		}
		isOnly := a.loss.drained && len(list) == 1 // a drain of the only member stops etcd in any case
		if on == 0 || isOnly || (left >= quorumOf(voters) && a.review.order[e.id] > 0) {
			return ""
		}
		text := fmt.Sprintf("of %d voters, %d were healthy and are not lost with %s, but %d are needed", voters, left, names,
			quorumOf(voters))
		if a.review.order[e.id] == 0 {
			text = "the Node has a member, but the review wrote no grant"
		}
		if !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; or ")
}

// canBePlaced reports whether Holdfast could know on which machine the member is: by an address in
// its URLs, or by a binding. Otherwise its loss with the machine is a limit in docs/verdict.md.
func (a *allowedReview) canBePlaced(id v1alpha1.ClusterID, s memberSnapshot) bool {
	isBound := func(refs []evidence.MemberRef) bool {
		return slices.Contains(refs, evidence.MemberRef{Cluster: id, Member: s.id})
	}
	return !s.host.agent.hasForeignURLs ||
		slices.ContainsFunc(slices.Collect(maps.Values(a.review.before.bound)), isBound)
}

// awayMembers returns the members that are bound to a Node whose mark has announced a reboot since
// before the review.
func (sim *simulation) awayMembers(e *simulatedEtcd, a *allowedReview) []v1alpha1.MemberID {
	if r := a.review.before.reboot; r != (rebootMark{}) && r == sim.kured.mark() {
		return refsOf(e.id, a.review.before.bound[r.uid])
	}
	return nil
}

// lostMembers returns the members of other machines that are lost or may be, as far as the
// writer of the review's grant had to know. All members of the returned hosts are lost, whatever
// their IDs: a grant gives up a machine.
func (sim *simulation) lostMembers(
	e *simulatedEtcd, a *allowedReview, others []*pendingLoss,
) (ids []v1alpha1.MemberID, hosts []*simulatedHost, names []string) {
	for _, d := range others {
		// An answer without a member relies on an earlier grant only while it lasts. That a machine may
		// join while its Node is about to be deleted is a limit in docs/verdict.md.
		isGranted := d.isGrantedBefore(e.id, a.review) && (!d.inherited[e.id] || sim.hasGrant(e.id, d.uid))
		before := slices.Contains(a.review.before.losses, d) || isGranted
		if d.host == a.loss.host || d.forgiven[e.id] || !before || d.over {
			continue
		}
		found := refsOf(e.id, d.members, a.review.before.bound[d.uid])
		if !sim.mayBeTerminated(d) {
			found = slices.DeleteFunc(found, func(id v1alpha1.MemberID) bool { return e.runsElsewhere(id, d.host) })
		}
		isGivenUp := a.review.before.tombstones[d.uid][e.id] || isGranted
		if isGivenUp && sim.mayBeTerminated(d) {
			hosts = append(hosts, d.host)
		}
		if len(found) > 0 || isGivenUp {
			names = append(names, d.node)
		}
		ids = append(ids, found...)
	}
	return ids, hosts, names
}

// runsElsewhere reports whether the member is on another machine than this one. A forged address or
// announcement may have placed it on this one. It is not lost with a machine that has gone.
func (e *simulatedEtcd) runsElsewhere(id v1alpha1.MemberID, h *simulatedHost) bool {
	return slices.ContainsFunc(e.members, func(m *simulatedMember) bool { return m.id == id && m.host != h })
}

// isGrantedBefore reports whether the grant of this loss precedes that of the review.
func (d *pendingLoss) isGrantedBefore(id v1alpha1.ClusterID, r *simulatedReview) bool {
	return d.order[id] > 0 && d.order[id] < r.order[id]
}

func refsOf(c v1alpha1.ClusterID, refs ...[]evidence.MemberRef) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for _, ref := range slices.Concat(refs...) {
		if ref.Cluster == c {
			ids = append(ids, ref.Member)
		}
	}
	return ids
}

// wasHealthy reports whether the member served linearizable reads at a moment of the review, and
// had no alarm CORRUPT at one.
func (sim *simulation) wasHealthy(i int, id v1alpha1.MemberID, from, to int) bool {
	isServing := func(s memberSnapshot) bool { return s.serving }
	isClean := func(s memberSnapshot) bool { return !s.corrupt }
	return sim.wasOnce(i, id, from, to, isServing) && sim.wasOnce(i, id, from, to, isClean)
}

func (sim *simulation) wasOnce(i int, id v1alpha1.MemberID, from, to int, is func(memberSnapshot) bool) bool {
	return slices.ContainsFunc(sim.snapshots[from:to+1], func(all etcdSnapshot) bool {
		return slices.ContainsFunc(all[i], func(s memberSnapshot) bool { return s.id == id && is(s) })
	})
}

// checkAllQuorums checks that every cluster has quorum, in a history in which only allowed
// deletions terminate machines.
func (sim *simulation) checkAllQuorums() {
	for _, e := range sim.etcds {
		if len(e.members) == 1 && sim.drainOf(e.members[0].host) != nil {
			continue // a drain may stop the only member
		}
		if !e.hasQuorum() {
			sim.fail("etcd %s has lost its quorum, although only machines of allowed deletions were terminated", e.id)
		}
	}
}
