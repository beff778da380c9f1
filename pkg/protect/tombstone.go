package protect

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Tombstones returns the grants that are to be written for bound Nodes that are gone without one: what ran there counts
// as lost, and must go on counting when the binding passes to another Node. They are in the order of Node UIDs, without
// user, and the time is the writer's to set. A grant that exists and lacks members comes back with them, otherwise as it
// is: a grant replaces the one of the same Node UID. What had left its cluster before its Node went is not lost: Bind ends
// its binding.
//
// The states must be from reads that no cache answered. A Node that could not be read is no tombstone.
func Tombstones(v View) []v1alpha1.Grant {
	if v.Cluster == nil {
		return nil
	}
	c, s := v.Cluster, newSight(v)
	var found []v1alpha1.Grant
	for _, b := range c.Spec.Members {
		n, left := v.Nodes[b.Node], s.conclusive() && !listedByAny(s.lists, b.MemberID)
		if left || !n.Known || n.UID == b.NodeUID || granted(c, b) {
			continue
		}
		i := slices.IndexFunc(found, func(g v1alpha1.Grant) bool { return g.NodeUID == b.NodeUID })
		if i < 0 {
			i = len(found)
			found = append(found, grantOf(c, b))
		}
		found[i].Members = append(found[i].Members, b.MemberID)
		slices.Sort(found[i].Members)
	}
	slices.SortFunc(found, func(a, b v1alpha1.Grant) int {
		if a.NodeUID < b.NodeUID {
			return -1
		}
		return 1
	})
	return found
}

// grantOf returns a copy of the grant of a binding's Node, or a new one without members.
func grantOf(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) v1alpha1.Grant {
	for _, g := range c.Spec.Grants {
		if g.NodeUID == b.NodeUID {
			return *g.DeepCopy()
		}
	}
	return v1alpha1.Grant{NodeUID: b.NodeUID, Node: b.Node}
}

// SettledByHand returns the grants and bindings that remain when an operator settles the grant of one Node UID: the
// grant goes, and so do the bindings to that Node if it is gone, or else its members would count as lost for ever and
// Tombstones would write the grant anew. Such members count by probe from then on, like those that never had a Node.
// A Node that could not be read is taken to be there. ok is false if no grant names that UID.
func SettledByHand(c *v1alpha1.EtcdCluster, uid types.UID, nodes map[string]NodeState) (grants []v1alpha1.Grant, bindings []v1alpha1.Binding, ok bool) {
	for _, g := range c.Spec.Grants {
		if g.NodeUID == uid {
			ok = true
			continue
		}
		grants = append(grants, *g.DeepCopy())
	}
	for _, b := range c.Spec.Members {
		n := nodes[b.Node]
		if !ok || b.NodeUID != uid || !n.Known || n.UID == uid {
			bindings = append(bindings, b)
		}
	}
	return grants, bindings, ok
}
