package membership

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// candidate is a member list that may become the first one of a cluster.
type candidate struct {
	members []v1alpha1.MemberID
	// lists are the observations with these members whose Nodes claim the local member.
	lists []v1alpha1.Observation
	// claimable are the members that a Node could claim: their URLs name a Node, or a Node announces
	// them. The others run on hosts that are not Nodes, so no claim can be expected for them.
	claimable map[v1alpha1.MemberID]bool
}

// bootstrap returns the lists with which a cluster without bindings is bound for the first time.
// Each of them contains only the member of its own Node. While the cluster cannot be bound,
// bootstrap returns no list and states what is missing.
//
// No observer is trusted yet, so the first claim must not win. A candidate is used if more than
// half of its claimable members are claimed by the Nodes on which they run, all with the same
// member IDs, and if no other candidate has as many claims. The majority of the lists decides
// where a member runs. So a Node that publishes a wrong list can neither take over a member nor
// keep the member's host from it.
//
// If only one member of a cluster can be claimed, the decision depends on one Node. That Node is
// trusted on first use.
func bootstrap(c *v1alpha1.EtcdCluster, nodes []observation.NodeClaim) (lists []v1alpha1.Observation, awaited string) {
	var best *candidate
	tied := false
	for _, next := range candidates(c, nodes) {
		supported := next.supportedLists(nodes)
		switch {
		case best == nil || len(supported) > len(lists):
			best, lists, tied = next, supported, false
		case len(supported) == len(lists):
			tied = true
		}
	}
	switch {
	case best == nil:
		return nil, ""
	case tied:
		return nil, "; the cluster has no bindings yet, and the Nodes that claim members publish different lists"
	case 2*len(lists) <= len(best.claimable):
		return nil, fmt.Sprintf("; the cluster has no bindings yet: more than half of %s must be claimed "+
			"with the same list by the Nodes on which they run, and %d are",
			observation.Plural(len(best.claimable), "member"), len(lists))
	}
	return lists, ""
}

// candidates groups the claims with a confirmed list by the members of that list.
func candidates(c *v1alpha1.EtcdCluster, nodes []observation.NodeClaim) []*candidate {
	var found []*candidate
	for _, o := range observation.Confirmed(c.Status.Observations) {
		if !observation.IsValid(o) {
			continue
		}
		i := slices.IndexFunc(nodes, func(n observation.NodeClaim) bool {
			return n.Node == o.Node && n.UID == o.NodeUID && n.HasAnnounced(observation.ClusterIDOf(c), o.LocalMember)
		})
		o.Members = observation.MergeDuplicates(o.Members)
		m, isListed := observation.FindMember(o, o.LocalMember)
		if i < 0 || !isListed || !isOnClaimant(c, m, nodes[i], nodes) {
			continue
		}
		ids := memberIDs(o)
		at := slices.IndexFunc(found, func(k *candidate) bool { return slices.Equal(k.members, ids) })
		if at < 0 {
			at = len(found)
			found = append(found, &candidate{members: ids, claimable: map[v1alpha1.MemberID]bool{}})
		}
		for _, m := range o.Members {
			if len(observation.NodesAt(m, nodes)) > 0 || countAnnouncers(c, m.ID, nodes) > 0 {
				found[at].claimable[m.ID] = true
			}
		}
		found[at].lists = append(found[at].lists, o)
	}
	return found
}

// isOnClaimant reports whether the member's URLs name the claimant and no other Node. If they
// name no Node at all, it reports whether the claimant alone announces the member.
func isOnClaimant(
	c *v1alpha1.EtcdCluster, m v1alpha1.MemberStatus, claimant observation.NodeClaim, nodes []observation.NodeClaim,
) bool {
	at := observation.NodesAt(m, nodes)
	if len(at) == 0 {
		return countAnnouncers(c, m.ID, nodes) == 1
	}
	return len(at) == 1 && at[0].UID == claimant.UID
}

// countAnnouncers returns the number of Nodes that announce a member.
func countAnnouncers(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID, nodes []observation.NodeClaim) int {
	count := 0
	for _, n := range nodes {
		if n.HasAnnounced(observation.ClusterIDOf(c), id) {
			count++
		}
	}
	return count
}

// supportedLists returns the claims that most of the candidate's lists confirm. Each of them is
// reduced to the local member, because a claimant shows only where its own member runs.
func (k *candidate) supportedLists(nodes []observation.NodeClaim) []v1alpha1.Observation {
	var found []v1alpha1.Observation
	for _, o := range k.lists {
		m, _ := observation.FindMember(o, o.LocalMember)
		agree := 0
		for _, other := range k.lists {
			if same, _ := observation.FindMember(other, m.ID); slices.Equal(nodeUIDs(same, nodes), nodeUIDs(m, nodes)) {
				agree++
			}
		}
		if 2*agree > len(k.lists) {
			o.Members = []v1alpha1.MemberStatus{m}
			found = append(found, o)
		}
	}
	return found
}

// nodeUIDs returns the UIDs of the Nodes at the member's addresses.
func nodeUIDs(m v1alpha1.MemberStatus, nodes []observation.NodeClaim) []types.UID {
	var uids []types.UID
	for _, n := range observation.NodesAt(m, nodes) {
		uids = append(uids, n.UID)
	}
	return uids
}

// memberIDs returns the IDs of the listed members, sorted.
func memberIDs(o v1alpha1.Observation) []v1alpha1.MemberID {
	ids := make([]v1alpha1.MemberID, len(o.Members))
	for i, m := range o.Members {
		ids[i] = m.ID
	}
	slices.Sort(ids)
	return ids
}
