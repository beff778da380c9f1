package membership

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

const (
	// publishGrace is the time after the creation of an EtcdCluster in which further Nodes may
	// announce it and publish a list. Agents need some seconds for that. A Node that registers
	// later does not prolong it: it counts in the majority whether or not it has published.
	publishGrace = time.Minute
	// announceGrace is the time in which the Nodes at the addresses of listed members may announce
	// them. A Node that has not done so by then has no working agent, or has a forged address.
	announceGrace = 10 * time.Minute
	// notBoundYet begins each reason why bootstrap waits.
	notBoundYet = "; the cluster has no bindings yet: "
)

// A candidate is a member list that may become the first one of a cluster.
type candidate struct {
	members []v1alpha1.MemberID
	// lists are the observations with these members whose Nodes announce the local member.
	lists []v1alpha1.Observation
}

// bootstrap returns the lists with which a cluster without bindings is bound for the first time.
// Each of them contains only the member of its own Node. While the cluster cannot be bound,
// bootstrap returns no list and states what is missing.
//
// No observer is trusted yet, so the first claim must not win. More than half of the Nodes that
// announce the cluster must publish the same member IDs, and more than half of the members that a
// Node could claim must be claimed by the Nodes on which they run. The majority of the lists
// decides where a member runs. So a Node that publishes a wrong list can neither take over a member
// nor keep the member's host from it. A Node that only has the address of a member, and does not
// announce it, does not count beside one that does.
//
// Before publishGrace has passed, the cluster is bound only if nothing more can be awaited: several
// Nodes agree, and all members and all announcing Nodes are among them. If only one Node announces
// a cluster, that Node is trusted on first use.
func bootstrap(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, now time.Time,
) (lists []v1alpha1.Observation, awaited string) {
	age := now.Sub(c.CreationTimestamp.Time)
	announcers := announcersOf(c, nodes)
	candidates := findCandidates(c, announcers)
	i := slices.IndexFunc(candidates, func(k candidate) bool { return 2*len(k.lists) > len(announcers) })
	if i < 0 {
		return nil, notBoundYet + describeCandidates(candidates, announcers)
	}
	best := candidates[i]
	claimable := best.claimable(c, nodes, age < announceGrace)
	lists, missing := best.locatedLists(c, nodes)
	isComplete := len(lists) > 1 && len(lists) == len(best.members) && len(best.lists) == len(announcers)
	switch {
	case 2*len(lists) <= len(claimable):
		return nil, fmt.Sprintf(notBoundYet+"more than half of %s must be claimed by the Nodes on which they run, "+
			"and %d are%s", observation.Plural(len(claimable), "member"), len(lists), missing)
	case !isComplete && age < publishGrace:
		return nil, fmt.Sprintf(notBoundYet+"other Nodes may announce it and publish a list until %s",
			c.CreationTimestamp.Add(publishGrace).UTC().Format(time.RFC3339))
	}
	// A claim without an address is weaker. It waits until the cluster is bound, if the others
	// suffice.
	atAddress := slices.DeleteFunc(slices.Clone(lists), func(o v1alpha1.Observation) bool {
		return len(observation.NodesAt(o.Members[0], nodes)) == 0
	})
	if 2*len(atAddress) > len(claimable) {
		return atAddress, ""
	}
	return lists, ""
}

// announcersOf returns the Nodes that announce a member of the cluster.
func announcersOf(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []observation.AnnouncingNode {
	return slices.DeleteFunc(slices.Clone(nodes), func(n observation.AnnouncingNode) bool {
		for _, a := range n.Announced {
			if a.Cluster == observation.ClusterIDOf(c) && n.UID != "" {
				return false
			}
		}
		return true
	})
}

// findCandidates groups the confirmed lists of announcing Nodes by their members.
func findCandidates(c *v1alpha1.EtcdCluster, announcers []observation.AnnouncingNode) []candidate {
	var found []candidate
	for _, o := range observation.Confirmed(c.Observations) {
		if !observation.IsValid(o) {
			continue
		}
		isAnnounced := slices.ContainsFunc(announcers, func(n observation.AnnouncingNode) bool {
			return n.Node == o.Node && n.UID == o.NodeUID && n.HasAnnounced(observation.ClusterIDOf(c), o.LocalMember)
		})
		o.Members = observation.MergeDuplicates(o.Members)
		if _, isListed := observation.FindMember(o, o.LocalMember); !isAnnounced || !isListed {
			continue
		}
		ids := memberIDs(o)
		at := slices.IndexFunc(found, func(k candidate) bool { return slices.Equal(k.members, ids) })
		if at < 0 {
			at = len(found)
			found = append(found, candidate{members: ids})
		}
		found[at].lists = append(found[at].lists, o)
	}
	return found
}

// claimable returns the members that a Node could claim: those that a Node announces, and, if
// withAddresses is true, those at whose address there is a Node. The others run on hosts that are
// not Nodes, so no claim can be expected for them.
func (k candidate) claimable(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, withAddresses bool,
) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range k.lists {
		for _, m := range o.Members {
			found[m.ID] = found[m.ID] || countAnnouncers(c, m.ID, nodes) > 0 ||
				(withAddresses && len(observation.NodesAt(m, nodes)) > 0)
		}
	}
	return observation.SortedIDs(found)
}

// countAnnouncers returns the number of Nodes that announce a member.
func countAnnouncers(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID, nodes []observation.AnnouncingNode) int {
	return len(slices.DeleteFunc(slices.Clone(nodes), func(n observation.AnnouncingNode) bool {
		return !n.HasAnnounced(observation.ClusterIDOf(c), id)
	}))
}

// locatedLists returns the lists whose local member runs on the Node that published them, by most
// of the lists, and describes why others are missing. Each list is reduced to the local member,
// because a claimant shows only where its own member runs.
func (k candidate) locatedLists(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode,
) (found []v1alpha1.Observation, missing string) {
	for _, o := range k.lists {
		m, _ := observation.FindMember(o, o.LocalMember)
		at := hostsInList(c, m, nodes)
		if len(at) != 1 || at[0].UID != o.NodeUID {
			missing += fmt.Sprintf("; node %s claims member %s, which %s", o.Node, m.ID, describePlaces(at))
			continue
		}
		agree := 0
		for _, other := range k.lists {
			same, _ := observation.FindMember(other, m.ID)
			if slices.Equal(nodeUIDs(hostsInList(c, same, nodes)), nodeUIDs(at)) {
				agree++
			}
		}
		if 2*agree <= len(k.lists) {
			missing += fmt.Sprintf("; node %s claims member %s, which most lists have elsewhere", o.Node, m.ID)
			continue
		}
		o.Members = []v1alpha1.MemberStatus{m}
		found = append(found, o)
	}
	return found, missing
}

// hostsInList returns the Nodes on which a member may run by one list and the announcements: those
// at its addresses that announce it, or else those at its addresses. If the addresses are those of
// no Node, it returns the Nodes that announce the member.
func hostsInList(
	c *v1alpha1.EtcdCluster, m v1alpha1.MemberStatus, nodes []observation.AnnouncingNode,
) []observation.AnnouncingNode {
	isAnnounced := func(n observation.AnnouncingNode) bool { return n.HasAnnounced(observation.ClusterIDOf(c), m.ID) }
	at := observation.NodesAt(m, nodes)
	if len(at) == 0 {
		at = nodes
	} else if !slices.ContainsFunc(at, isAnnounced) {
		return at
	}
	return slices.DeleteFunc(slices.Clone(at), func(n observation.AnnouncingNode) bool { return !isAnnounced(n) })
}

// hostsInLists returns the Nodes on which a member may run by the lists of the bootstrap.
func hostsInLists(
	lists []v1alpha1.Observation, id v1alpha1.MemberID, c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode,
) (at []observation.AnnouncingNode, isListed bool) {
	for _, o := range lists {
		if m, found := observation.FindMember(o, id); found {
			return hostsInList(c, m, nodes), true
		}
	}
	return nil, false
}

// describePlaces describes the Nodes on which a member may run.
func describePlaces(at []observation.AnnouncingNode) string {
	if len(at) == 1 {
		return "has an address of node " + at[0].Node
	}
	return "may run on several Nodes: " + joinNodes(at) + ": remove the address or the announcement from the wrong one"
}

// describeCandidates describes what each announcing Node lists.
func describeCandidates(candidates []candidate, announcers []observation.AnnouncingNode) string {
	text := fmt.Sprintf("more than half of the %s that announce it must publish the same confirmed member list",
		observation.Plural(len(announcers), "Node"))
	for _, n := range announcers {
		has := "has published none"
		for _, k := range candidates {
			isOwn := func(o v1alpha1.Observation) bool { return o.Node == n.Node && o.NodeUID == n.UID }
			if slices.ContainsFunc(k.lists, isOwn) {
				has = "lists " + observation.JoinIDs(k.members, ", ")
			}
		}
		text += fmt.Sprintf("; node %s %s", n.Node, has)
	}
	return text + "; if a Node has no member of this etcd cluster, remove its annotation " +
		observation.AnnouncementAnnotation
}

func nodeUIDs(nodes []observation.AnnouncingNode) []types.UID {
	var uids []types.UID
	for _, n := range nodes {
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
