package protect

import (
	"cmp"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Placed returns, sorted, where the members are that are bound to no Node: at every Node of which a list of a bound observer
// has them name an address, since nothing tells which of several it is. That makes no observer of a Node; all it says is
// that the member goes if the Node does. The Nodes are all that there are, and what they announce does not matter.
func Placed(c *v1alpha1.EtcdCluster, nodes []NodeClaim) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, o := range confirmedOf(observers(c)) {
		for _, m := range o.Members {
			if binds(c, m.ID) {
				continue
			}
			for _, n := range nodesAt(m, nodes) {
				found = append(found, v1alpha1.Binding{MemberID: m.ID, Node: n.Node, NodeUID: n.UID})
			}
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Binding) int {
		return cmp.Or(cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Node, b.Node))
	})
	return slices.Compact(found)
}

// Unbound returns, sorted, the members that some list of a bound observer has and no Node is bound to.
func Unbound(c *v1alpha1.EtcdCluster) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range confirmedOf(observers(c)) {
		for _, m := range o.Members {
			found[m.ID] = !binds(c, m.ID)
		}
	}
	return sorted(found)
}

// homes returns where a member is: the Node that it is bound to, or those that it is placed at.
func (s sight) homes(id v1alpha1.MemberID) []v1alpha1.Binding {
	if b, bound := s.bindings[id]; bound {
		return []v1alpha1.Binding{b}
	}
	return slices.DeleteFunc(slices.Clone(s.placed), func(p v1alpha1.Binding) bool { return p.MemberID != id })
}
