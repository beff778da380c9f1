package history

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// doom is a machine that may be lost because the deletion of its Node was allowed or happened.
//
// It ends when the deletion has definitely not happened, when a person has promised that the machine stays, when the
// API server's etcd is restored to a time before it, or when the same machine has had a new Node for twenty minutes, which
// by definition undoes it. Machines are terminated within a quarter of an hour of a deletion, or not at all.
type doom struct {
	uid  types.UID
	node string
	host *host
	// members are those that Holdfast could know to be on the machine.
	members []protect.MemberRef
	// turn is, by cluster, when the grant was written in the order of all grants.
	turn map[v1alpha1.ClusterID]int
	// happened says that the Node is gone, going, or marked by an autoscaler.
	happened bool
	at       time.Time
	over     bool
	// forgiven are the clusters whose EtcdCluster somebody with the right to do so has deleted since.
	forgiven map[v1alpha1.ClusterID]bool
}

// reborn is how long the same machine must have had a new Node.
const reborn = 20 * time.Minute

// active returns the dooms that stand.
func (w *world) active() []*doom {
	now := time.Now()
	w.dooms = slices.DeleteFunc(w.dooms, func(d *doom) bool {
		h := d.host
		if d.happened && h.node != "" && h.node != d.uid && !h.killed {
			since := d.at
			if h.registered.After(since) {
				since = h.registered
			}
			d.over = d.over || now.Sub(since) >= reborn
		}
		return d.over
	})
	return slices.Clone(w.dooms)
}

func (w *world) doomed(h *host) bool {
	return slices.ContainsFunc(w.active(), func(d *doom) bool { return d.host == h })
}

// known returns what Holdfast has been told by now about the members of a Node.
func (w *world) known(node string, uid types.UID) knowledge {
	k := knowledge{bound: map[types.UID][]protect.MemberRef{}}
	for uid, refs := range w.api.bound {
		for ref := range refs {
			if w.api.clusters.objects[string(ref.Cluster)] != nil {
				k.bound[uid] = append(k.bound[uid], ref)
			}
		}
	}
	if n, err := w.api.node(node); err == nil && n.UID == uid && n.Labels[protect.EtcdMemberLabel] != "" {
		if refs, err := protect.ParseAnnouncement(n.Annotations[protect.AnnouncementAnnotation]); err == nil {
			k.announced = refs
		}
	}
	for _, d := range w.active() {
		if d.happened {
			k.doomed = append(k.doomed, d)
		}
	}
	return k
}

// allowance is a deletion that was allowed, with what is needed to judge that.
type allowance struct {
	review *review
	doom   *doom
	// to is the index of the last moment before the answer.
	to int
	// others are the dooms that stood at the answer.
	others []*doom
}

// allowed judges an answer that allows, and judges those anew that were given after it and written down before: whoever
// comes later in the order of grants must have reckoned with whoever comes before.
func (w *world) allowed(a *allowance) {
	w.judge(a, nil)
	for _, earlier := range w.allowances {
		if !earlier.doom.over && earlier.review.deletion != a.review.deletion {
			w.judge(earlier, a.doom)
		}
	}
	w.allowances = append(w.allowances, a)
}

// judge says whether every cluster keeps its quorum although the deletion was allowed.
func (w *world) judge(a *allowance, late *doom) {
	for i, e := range w.etcds {
		turn := a.review.turn[e.id]
		if late != nil && (late.turn[e.id] == 0 || late.turn[e.id] > turn || turn == 0) {
			continue
		}
		others := a.others
		if late != nil {
			others = append(slices.Clone(others), late)
		}
		if why := w.lost(i, e, a, others); why != "" {
			w.fail("deletion %d of Node %s (%s) was allowed, and etcd %s may lose its quorum: %s",
				a.review.deletion.number, a.review.node.Name, a.review.node.UID, e.id, why)
		}
	}
}

// lost says why no moment between question and answer makes the answer right, empty if there is one. Health cannot be
// seen of all members at the same moment: each counts that was alive at any moment in between.
func (w *world) lost(i int, e *etcd, a *allowance, others []*doom) string {
	here := refsOf(e.id, a.review.before.announced, a.review.before.bound[a.doom.uid])
	given, names := w.given(e, a, others)
	var why []string
	for at := a.review.from; at <= a.to; at++ {
		list := w.moments[at][i]
		on, voters, left := 0, 0, 0
		for _, s := range list {
			mine := s.host == a.doom.host && slices.Contains(here, s.id)
			if mine {
				on++
			}
			lost := mine || slices.Contains(given, s.id)
			if s.learner && !lost {
				continue
			}
			voters++
			if !lost && w.everAlive(i, s.id, a.review.from, a.to) {
				left++
			}
		}
		if on == 0 || (left >= quorumOf(voters) && a.review.turn[e.id] > 0) {
			return ""
		}
		text := fmt.Sprintf("of %d voters %d are neither dead nor given up, besides %s, and %d are needed", voters, left, names, quorumOf(voters))
		if a.review.turn[e.id] == 0 {
			text = "it has a member there and no grant was written"
		}
		if !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	return strings.Join(why, "; or ")
}

// given returns the members of other machines that are lost or may be, as far as the writer of the allowance's grant had
// to know.
func (w *world) given(e *etcd, a *allowance, others []*doom) (ids []v1alpha1.MemberID, names []string) {
	for _, d := range others {
		before := slices.Contains(a.review.before.doomed, d) || (d.turn[e.id] > 0 && d.turn[e.id] < a.review.turn[e.id])
		if d.host == a.doom.host || d.forgiven[e.id] || !before || d.over {
			continue
		}
		found := refsOf(e.id, d.members, a.review.before.bound[d.uid])
		if len(found) > 0 {
			names = append(names, d.node)
		}
		ids = append(ids, found...)
	}
	return ids, names
}

func refsOf(c v1alpha1.ClusterID, refs ...[]protect.MemberRef) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for _, ref := range slices.Concat(refs...) {
		if ref.Cluster == c {
			ids = append(ids, ref.Member)
		}
	}
	return ids
}

func (w *world) everAlive(i int, id v1alpha1.MemberID, from, to int) bool {
	for at := from; at <= to; at++ {
		for _, s := range w.moments[at][i] {
			if s.id == id && s.alive {
				return true
			}
		}
	}
	return false
}

// quorate checks, in a history in which nothing but what Holdfast allowed kills machines, that every cluster lives.
func (w *world) quorate() {
	for _, e := range w.etcds {
		if !e.hasQuorum() {
			w.fail("etcd %s has lost its quorum, and only machines died whose deletion was allowed", e.id)
		}
	}
}
