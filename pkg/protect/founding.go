package protect

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// faction are the Nodes that claim a member and whose agents give a list of the same member IDs.
type faction struct {
	members []v1alpha1.MemberID
	lists   []v1alpha1.Observation
	// within are the members that may be claimed by somebody: their URLs name a Node, or a Node announces them. The others
	// run on hosts that are no Nodes, and nobody can be waited for.
	within map[v1alpha1.MemberID]bool
}

// founding returns the lists by which a cluster without bindings is bound for the first time, each of them placing its own
// Node's member only; none, and what is awaited, while it cannot be. There is no observer yet whose word counts, so that
// who is first must not win: a list founds the cluster when more than half of its members are claimed by the very Nodes
// that they live on, all with the same member IDs, and when no other list has as many behind it. Where a member lives is
// what most of them say, so that one who lies can neither take a member nor keep its host from it. A cluster of which one
// member alone can be claimed rests on one Node's word all the same: it is trusted on first use.
func founding(c *v1alpha1.EtcdCluster, nodes []NodeClaim) (lists []v1alpha1.Observation, awaited string) {
	var best *faction
	tied := false
	for _, f := range factions(c, nodes) {
		own := f.own(nodes)
		switch {
		case best == nil || len(own) > len(lists):
			best, lists, tied = f, own, false
		case len(own) == len(lists):
			tied = true
		}
	}
	switch {
	case best == nil:
		return nil, ""
	case tied:
		return nil, "; nothing is bound yet, and the Nodes that claim members disagree about the member list"
	case 2*len(lists) <= len(best.within):
		return nil, fmt.Sprintf("; nothing is bound yet, and of %s %d are claimed with the same list by the Nodes they live on: more than half must be",
			many(len(best.within), "member"), len(lists))
	}
	return lists, ""
}

// factions sorts the claims that rest on a list by that list.
func factions(c *v1alpha1.EtcdCluster, nodes []NodeClaim) []*faction {
	var found []*faction
	for _, o := range confirmedOf(c.Status.Observations) {
		if !sane(o) {
			continue
		}
		i := slices.IndexFunc(nodes, func(n NodeClaim) bool {
			return n.Node == o.Node && n.UID == o.NodeUID && n.announces(clusterID(c), o.LocalMember)
		})
		o.Members = distinct(o.Members)
		m, isListed := listed(o, o.LocalMember)
		if i < 0 || !isListed || !livesOnClaimant(c, m, nodes[i], nodes) {
			continue
		}
		ids := idsOf(o)
		at := slices.IndexFunc(found, func(f *faction) bool { return slices.Equal(f.members, ids) })
		if at < 0 {
			at = len(found)
			found = append(found, &faction{members: ids, within: map[v1alpha1.MemberID]bool{}})
		}
		f := found[at]
		for _, m := range o.Members {
			if len(nodesAt(m, nodes)) > 0 || announcers(c, m.ID, nodes) > 0 {
				f.within[m.ID] = true
			}
		}
		f.lists = append(f.lists, o)
	}
	return found
}

// livesOnClaimant says that the member's URLs name the claimant and no other Node, or no Node at all, and that nobody
// else claims it then.
func livesOnClaimant(c *v1alpha1.EtcdCluster, m v1alpha1.MemberStatus, claimant NodeClaim, nodes []NodeClaim) bool {
	at := nodesAt(m, nodes)
	if len(at) == 0 {
		return announcers(c, m.ID, nodes) == 1
	}
	return len(at) == 1 && at[0].UID == claimant.UID
}

// announcers counts the Nodes that announce a member.
func announcers(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID, nodes []NodeClaim) int {
	n := 0
	for _, node := range nodes {
		if node.announces(clusterID(c), id) {
			n++
		}
	}
	return n
}

// own returns the claims that most lists bear out: the claimants' lists, each cut down to the one member that its Node
// claims, since nobody places anybody else.
func (f *faction) own(nodes []NodeClaim) []v1alpha1.Observation {
	var found []v1alpha1.Observation
	for _, o := range f.lists {
		m, _ := listed(o, o.LocalMember)
		agree := 0
		for _, other := range f.lists {
			if theirs, _ := listed(other, m.ID); slices.Equal(uidsAt(theirs, nodes), uidsAt(m, nodes)) {
				agree++
			}
		}
		if 2*agree > len(f.lists) {
			o.Members = []v1alpha1.MemberStatus{m}
			found = append(found, o)
		}
	}
	return found
}

func uidsAt(m v1alpha1.MemberStatus, nodes []NodeClaim) []types.UID {
	var uids []types.UID
	for _, n := range nodesAt(m, nodes) {
		uids = append(uids, n.UID)
	}
	return uids
}

func idsOf(o v1alpha1.Observation) []v1alpha1.MemberID {
	ids := make([]v1alpha1.MemberID, len(o.Members))
	for i, m := range o.Members {
		ids[i] = m.ID
	}
	slices.SortFunc(ids, func(a, b v1alpha1.MemberID) int { return strings.Compare(string(a), string(b)) })
	return ids
}
