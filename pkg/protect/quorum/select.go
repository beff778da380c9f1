package quorum

import (
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// Select returns the clusters that may have a member on the node, sorted by cluster ID: by
// binding, announcement or earlier grant, and by its addresses in the lists of observers on two
// Nodes. The claim of one other Node is never sufficient. So a single Node can involve only itself
// and the leader. With a break-glass override one list is
// enough, because the override only adds a grant.
func Select(clusters []*v1alpha1.EtcdCluster, r Request) []*v1alpha1.EtcdCluster {
	by := place.Review
	if r.BreakGlass != nil {
		by = place.Override
	}
	return r.clustersWith(clusters, by)
}

// SelectOrDecide returns the clusters to decide on. If there are none, it returns the decision,
// which no observation can change: a cluster cannot be decided on, or none may have a member on the
// node.
func SelectOrDecide(
	clusters []*v1alpha1.EtcdCluster, r Request,
) (selected []*v1alpha1.EtcdCluster, decision Decision) {
	if refused := RefuseUndecidable(clusters, r); len(refused) > 0 {
		return nil, Combine(refused)
	}
	selected = Select(clusters, r)
	switch {
	case len(selected) > 0:
		return selected, Decision{}
	case r.Labelled:
		return nil, Combine([]Verdict{RefuseUnattributed(r)})
	}
	return nil, Decision{Allowed: true, Reason: NothingToProtect}
}

// clustersWith returns the clusters with a member that one of the sources places on the node,
// sorted by cluster ID.
func (r Request) clustersWith(clusters []*v1alpha1.EtcdCluster, by place.Source) []*v1alpha1.EtcdCluster {
	found := slices.DeleteFunc(slices.Clone(clusters),
		func(c *v1alpha1.EtcdCluster) bool { return len(place.Members(r.places(c), by)) == 0 })
	slices.SortFunc(found, func(a, b *v1alpha1.EtcdCluster) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// AnnouncesMemberOf reports whether the node announces a member of the cluster.
func (r Request) AnnouncesMemberOf(id v1alpha1.ClusterID) bool {
	return slices.ContainsFunc(r.Announced, func(a evidence.MemberRef) bool { return a.Cluster == id })
}

// RefuseUndecidable refuses where no cluster can be decided on. It returns one verdict for every
// announced cluster without an EtcdCluster, sorted by cluster ID: there is no data to decide from
// and no object to record a grant in. The last verdict is for servers on the node that have never
// identified themselves.
func RefuseUndecidable(clusters []*v1alpha1.EtcdCluster, r Request) []Verdict {
	missing := map[v1alpha1.ClusterID][]v1alpha1.MemberID{}
	for _, a := range r.Announced {
		isAnnounced := func(c *v1alpha1.EtcdCluster) bool { return observation.ClusterIDOf(c) == a.Cluster }
		if !slices.ContainsFunc(clusters, isAnnounced) {
			missing[a.Cluster] = append(missing[a.Cluster], a.Member)
		}
	}
	var verdicts []Verdict
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		members := slices.Sorted(slices.Values(missing[id]))
		verdicts = append(verdicts, Verdict{
			Reason: CannotSee, Cluster: id, Members: members, Final: true,
			Facts: Facts{Finding: FoundNoCluster, Request: r, Members: members},
		})
	}
	if len(r.Unverified) > countVerified(clusters, r) {
		verdicts = append(verdicts, Verdict{
			Reason: UnknownMember, Final: true, Facts: Facts{Finding: FoundUnverified, Request: r},
		})
	}
	return verdicts
}

// countVerified returns how many members are on the node according to a source other than the
// node itself: a binding to this Node, or two observers that list a member at its address
// that is not located. Decide handles those members. A member that was bound to an earlier Node of
// the same name does not count: it may have gone with another machine.
func countVerified(clusters []*v1alpha1.EtcdCluster, r Request) int {
	known := map[evidence.MemberRef]bool{}
	for _, c := range clusters {
		for _, id := range place.Members(r.places(c), place.Verified) {
			known[evidence.MemberRef{Cluster: observation.ClusterIDOf(c), Member: id}] = true
		}
	}
	for _, a := range r.Announced {
		delete(known, a)
	}
	return len(known)
}

// RefuseUnattributed refuses for a labelled node if no source identifies its member: neither
// Select nor RefuseUndecidable returns anything.
func RefuseUnattributed(r Request) Verdict {
	return Verdict{Reason: UnknownMember, Final: true, Facts: Facts{Finding: FoundUnattributed, Request: r}}
}

// RefuseUnparsable refuses for a node whose announcement cannot be parsed. A member that is
// misread would not be protected. The problem describes the error.
func RefuseUnparsable(r Request, problem error) Verdict {
	return Verdict{
		Reason: CannotDecide, Final: true, Facts: Facts{Finding: FoundUnparsable, Request: r, Problem: problem},
	}
}
