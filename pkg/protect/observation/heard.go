package observation

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// IsHeard reports whether the binding makes its Node an observer. Whether the Node's word counts
// alone depends on IsFounder.
func IsHeard(b v1alpha1.Binding) bool {
	return b.Basis == v1alpha1.BasisBootstrap || b.Basis == v1alpha1.BasisJoined
}

// IsFounder reports whether the bootstrap of the cluster bound a member to the observer's Node.
// The proofs and the list of such an observer count alone.
func IsFounder(c *v1alpha1.EtcdCluster, o v1alpha1.Observation) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.Basis == v1alpha1.BasisBootstrap && b.Node == o.Node && b.NodeUID == o.NodeUID
	})
}

// OfFounders returns the observations of founders, or all of them if there is none.
func OfFounders(c *v1alpha1.EtcdCluster, all []v1alpha1.Observation) []v1alpha1.Observation {
	var found []v1alpha1.Observation
	for _, o := range all {
		if IsFounder(c, o) {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return all
	}
	return found
}

// ListsWith returns the confirmed lists, however old, that show where a member runs: the lists of
// founders that contain it, or else those of the other observers. Old lists count as well, because
// a member does not move when its observer becomes silent.
func ListsWith(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID) []v1alpha1.Observation {
	lists := slices.DeleteFunc(Confirmed(Accepted(c)), func(o v1alpha1.Observation) bool {
		_, isListed := FindMember(o, id)
		return !isListed
	})
	return OfFounders(c, lists)
}

// IsLocated reports whether a binding shows where the member runs. A binding that rests on the
// claim of its Node alone, or is disputed, shows only where the member may run: the member also
// counts as lost with every Node at its addresses.
func IsLocated(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m && IsHeard(b) })
}

// Unlocated returns, sorted, the members of which IsLocated is not true and that a confirmed list
// of an observer contains.
func Unlocated(c *v1alpha1.EtcdCluster) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range Confirmed(Accepted(c)) {
		for _, m := range o.Members {
			found[m.ID] = !IsLocated(c, m.ID)
		}
	}
	return SortedIDs(found)
}
