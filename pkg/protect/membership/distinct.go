package membership

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// maxOthers limits the members of one record, as the schema of v1alpha1.DistinctServer does.
const maxOthers = 20

// DistinctServers returns which members that are not located are known to be other servers than the
// members that are bound, announced or granted, sorted. The host of such a member cannot have
// joined again as one of them.
//
// A member stays in a record until it has left the cluster or is located. A record outlives the
// binding of its member, which ends when the member is removed, for as long as a Node announces
// that member or a grant names it.
func DistinctServers(v quorum.View, nodes []observation.AnnouncingNode) []v1alpha1.DistinctServer {
	s := quorum.NewSnapshot(v)
	listed := map[v1alpha1.MemberID]bool{}
	for _, list := range s.Lists {
		for _, m := range list.Members {
			listed[m.ID] = true
		}
	}
	var records []v1alpha1.DistinctServer
	for _, id := range recordableMembers(v.Cluster, nodes) {
		others := map[v1alpha1.MemberID]bool{}
		for _, d := range v.Cluster.Spec.DistinctServers {
			for _, other := range d.Others {
				others[other] = others[other] || (d.MemberID == id && (listed[other] || len(s.Lists) == 0))
			}
		}
		for other := range listed {
			others[other] = others[other] || isShownDistinct(s, id, other)
		}
		for other := range others {
			others[other] = others[other] && !observation.IsLocated(v.Cluster, other)
		}
		if found := observation.SortedIDs(others); len(found) > 0 {
			records = append(records, v1alpha1.DistinctServer{MemberID: id, Others: found[:min(len(found), maxOthers)]})
		}
	}
	return records
}

// isShownDistinct reports whether the answers show that the two members are different servers.
func isShownDistinct(s quorum.Snapshot, id, other v1alpha1.MemberID) bool {
	return s.Counts(slices.DeleteFunc(slices.Clone(s.Answers), func(o v1alpha1.Observation) bool {
		return !quorum.ShowsDistinct(o, id, other)
	}))
}

// recordableMembers returns, sorted, the members of the cluster that are bound to a Node, announced
// by one, or named by a grant.
func recordableMembers(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, b := range c.Spec.Members {
		found[b.MemberID] = true
	}
	for _, g := range c.Spec.Grants {
		for _, id := range g.Members {
			found[id] = true
		}
	}
	for _, n := range nodes {
		for _, id := range announcedBy(n, c) {
			found[id] = true
		}
	}
	return observation.SortedIDs(found)
}
