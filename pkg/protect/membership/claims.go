package membership

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// firstUseAfter is the age of an EtcdCluster after which the only Node that announces the cluster
// is trusted on first use. Agents need some seconds to announce theirs.
const firstUseAfter = time.Minute

// ObserversOf returns which Nodes are observers of the cluster: those with a role, as soon as one
// of them announces a member that the list of one contains. The list of another Node shows nothing:
// a Node may announce a member that has left, because its agent does not run any more.
func ObserversOf(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) v1alpha1.Observers {
	isOfRole := func(o v1alpha1.Observation) bool {
		return slices.ContainsFunc(nodes, func(n observation.AnnouncingNode) bool {
			return n.HasRole && n.Node == o.Node && n.UID == o.NodeUID
		})
	}
	lists := slices.DeleteFunc(observation.Confirmed(c.Observations),
		func(o v1alpha1.Observation) bool { return !isOfRole(o) })
	if c.Spec.Observers == v1alpha1.NodesWithRole || slices.ContainsFunc(nodes, func(n observation.AnnouncingNode) bool {
		return n.HasRole && slices.ContainsFunc(announcedBy(n, c), func(id v1alpha1.MemberID) bool {
			return observation.IsListedByAny(lists, id)
		})
	}) {
		return v1alpha1.NodesWithRole
	}
	return v1alpha1.AllNodes
}

// claimReview decides which Nodes the members of a cluster are bound to.
type claimReview struct {
	snapshot quorum.Snapshot
	// nodes are those of all Nodes that announce the cluster, or that its bindings name. A large
	// cluster has thousands of others.
	nodes, all []observation.AnnouncingNode
	// lists are the confirmed lists, however old, of observers and of Nodes that may become one.
	lists []v1alpha1.Observation
	// needed is from how many Nodes a statement about lists must come. awaited states what is missing,
	// empty if nothing is.
	needed  int
	awaited string
	// showsNothing is addressesShowNothing, and credible has those of nodes that are (isCredible).
	showsNothing bool
	credible     map[types.UID]bool
}

func newClaimReview(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, nonces []string, now time.Time,
) claimReview {
	next := *c
	next.Spec.Observers = ObserversOf(c, nodes)
	named := map[string]bool{}
	for _, b := range c.Spec.Members {
		named[b.Node] = true
	}
	r := claimReview{all: nodes}
	var announcers []string
	for _, n := range nodes {
		announces := len(announcedBy(n, c)) > 0
		if announces {
			announcers = append(announcers, n.Node)
		}
		if announces || named[n.Node] {
			r.nodes = append(r.nodes, n)
		}
	}
	view := quorum.View{Cluster: &next, Nonces: nonces, Nodes: nodeStates(&next, r.nodes)}
	r.snapshot = quorum.NewSnapshot(view, announcers...)
	r.needed = observation.WordsNeeded(&next, r.exists, announcers...)
	first := c.CreationTimestamp.Add(firstUseAfter)
	switch {
	case r.needsRole():
	case r.needed == 2:
		r.awaited = ": two Nodes must publish the same one, or a Node with a role: " + observation.RoleCommand
	case now.Before(first):
		r.needed = 2
		r.awaited = fmt.Sprintf(": other Nodes may announce the cluster until %s", first.UTC().Format(time.RFC3339))
	}
	for _, o := range observation.Confirmed(c.Observations) {
		if observation.IsValid(o) && r.maySpeak(o) {
			r.lists = append(r.lists, o)
		}
	}
	r.showsNothing, r.credible = r.addressesShowNothing(), map[types.UID]bool{}
	for _, n := range r.nodes {
		r.credible[n.UID] = r.isCredible(n)
	}
	return r
}

// nodeStates returns the states of these Nodes, and of the bound Nodes that are gone.
func nodeStates(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) map[string]observation.NodeState {
	states := map[string]observation.NodeState{}
	for _, b := range c.Spec.Members {
		states[b.Node] = observation.NodeState{Known: true}
	}
	for _, n := range nodes {
		states[n.Node] = observation.NodeState{Known: true, UID: n.UID, Deleting: n.Deleting, HasRole: n.HasRole}
	}
	return states
}

// maySpeak reports whether the list of an observation counts for bindings: it is from an observer,
// or from a Node that announces the cluster. If only Nodes with a role are observers, the Node must
// have one, or be gone.
func (r claimReview) maySpeak(o v1alpha1.Observation) bool {
	isBound := slices.ContainsFunc(r.snapshot.Cluster.Spec.Members, func(b v1alpha1.Binding) bool {
		return observation.IsObserver(b) && observation.IsFrom(o, b)
	})
	n, exists := r.node(o.NodeUID)
	if !exists {
		return isBound
	}
	return (isBound || len(announcedBy(n, r.snapshot.Cluster)) > 0) && (n.HasRole || !r.needsRole())
}

// needsRole reports whether only Nodes with a role are observers.
func (r claimReview) needsRole() bool {
	return r.snapshot.Cluster.Spec.Observers == v1alpha1.NodesWithRole
}

// isEstablished reports whether the bindings rest on more than the word of one Node without a role.
func (r claimReview) isEstablished() bool {
	return r.needsRole() || observation.WordsNeeded(r.snapshot.Cluster, r.exists) > 1
}

// announcedBy returns the members of the cluster that the Node announces.
func announcedBy(n observation.AnnouncingNode, c *v1alpha1.EtcdCluster) []v1alpha1.MemberID {
	var found []v1alpha1.MemberID
	for _, a := range n.Announced {
		if a.Cluster == observation.ClusterIDOf(c) {
			found = append(found, a.Member)
		}
	}
	return found
}

// claimedBy returns, sorted, the members that the Node announces, and those at its addresses.
func (r claimReview) claimedBy(n observation.AnnouncingNode) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, id := range announcedBy(n, r.snapshot.Cluster) {
		found[id] = true
	}
	for _, o := range r.lists {
		for _, m := range o.Members {
			if _, isTested := found[m.ID]; !isTested {
				found[m.ID] = r.isAt(n, m.ID)
			}
		}
	}
	return observation.SortedIDs(found)
}

// announcedMembers returns, sorted, the members of this cluster that a Node announces.
func (r claimReview) announcedMembers() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, n := range r.nodes {
		for _, id := range announcedBy(n, r.snapshot.Cluster) {
			found[id] = true
		}
	}
	return observation.SortedIDs(found)
}

// claimants returns the Nodes that announce the member.
func (r claimReview) claimants(id v1alpha1.MemberID) []observation.AnnouncingNode {
	return slices.DeleteFunc(slices.Clone(r.nodes), func(n observation.AnnouncingNode) bool {
		return !slices.Contains(announcedBy(n, r.snapshot.Cluster), id)
	})
}

// node returns the Node with this UID, if it exists.
func (r claimReview) node(uid types.UID) (n observation.AnnouncingNode, exists bool) {
	at := slices.IndexFunc(r.nodes, func(n observation.AnnouncingNode) bool { return n.UID == uid })
	if at < 0 {
		return n, false
	}
	return r.nodes[at], true
}

// exists reports whether the Node of the binding exists.
func (r claimReview) exists(b v1alpha1.Binding) bool {
	_, exists := r.node(b.NodeUID)
	return exists
}

// rank orders the Nodes that may run the member: first by their roles, if a role is needed, then by
// whether they are credible, and then by whether the lists name one of their addresses, unless
// addresses show nothing.
func (r claimReview) rank(n observation.AnnouncingNode, id v1alpha1.MemberID) int {
	rank := 0
	if r.needsRole() && n.HasRole {
		rank = 4
	}
	if r.credible[n.UID] {
		rank += 2
	}
	if r.isAt(n, id) && !r.showsNothing {
		rank++
	}
	return rank
}

// best returns the claimants with the highest rank.
func (r claimReview) best(claimants []observation.AnnouncingNode, id v1alpha1.MemberID) []observation.AnnouncingNode {
	highest := 0
	for _, n := range claimants {
		highest = max(highest, r.rank(n, id))
	}
	return slices.DeleteFunc(slices.Clone(claimants), func(n observation.AnnouncingNode) bool {
		return r.rank(n, id) < highest
	})
}

// bindingTo returns the binding of the member to a Node that announces it.
func (r claimReview) bindingTo(n observation.AnnouncingNode, id v1alpha1.MemberID) v1alpha1.Binding {
	return v1alpha1.Binding{MemberID: id, Node: n.Node, NodeUID: n.UID, Basis: r.basisOf(n, id)}
}

// basisOf returns what a binding of the member to this Node rests on.
func (r claimReview) basisOf(n observation.AnnouncingNode, id v1alpha1.MemberID) v1alpha1.BindingBasis {
	switch {
	case r.needsRole() && n.HasRole:
		return v1alpha1.BasisRole
	case r.needsRole() || !r.isAt(n, id) && !r.showsNothing:
		return v1alpha1.BasisClaim
	case r.isDisputed(n, id):
		return v1alpha1.BasisDisputed
	}
	return v1alpha1.BasisAddress
}

// isDisputed reports whether the member may as well be on another Node, which announces it or has
// its address. An agent need not run yet, and a host need not have the address. If a role is
// needed, addresses decide nothing, and only a Node for which at least as much speaks disputes it.
func (r claimReview) isDisputed(own observation.AnnouncingNode, id v1alpha1.MemberID) bool {
	others := r.claimants(id)
	if !r.needsRole() {
		others = append(others, r.nodesAt(id, r.all)...)
	}
	return slices.ContainsFunc(others, func(n observation.AnnouncingNode) bool {
		isLess := r.needsRole() && r.rank(n, id) < r.rank(own, id)
		return n.UID != own.UID && !isLess && r.isCredible(n)
	})
}

// addressesShowNothing reports whether most of the Nodes that announce members have the address of
// none of theirs. Then addresses do not show where the members run. A single Node with the address
// of its member does not show the contrary: its kubelet writes that.
func (r claimReview) addressesShowNothing() bool {
	at, elsewhere := 0, 0
	for _, n := range r.nodes {
		announced := announcedBy(n, r.snapshot.Cluster)
		switch {
		case slices.ContainsFunc(announced, func(id v1alpha1.MemberID) bool { return r.isAt(n, id) }):
			at++
		case len(announced) > 0:
			elsewhere++
		}
	}
	return at < elsewhere
}

// isAt reports whether the lists name an address of the Node for the member.
func (r claimReview) isAt(n observation.AnnouncingNode, id v1alpha1.MemberID) bool {
	return len(r.nodesAt(id, []observation.AnnouncingNode{n})) > 0
}

// nodesAt returns those of the Nodes of which enough lists name an address for the member.
func (r claimReview) nodesAt(
	id v1alpha1.MemberID, nodes []observation.AnnouncingNode,
) (found []observation.AnnouncingNode) {
	naming := map[string][]v1alpha1.Observation{}
	for _, o := range r.lists {
		m, _ := observation.FindMember(o, id)
		for _, n := range observation.NodesAt(m, nodes) {
			naming[n.Node] = append(naming[n.Node], o)
		}
	}
	for _, n := range nodes {
		if observation.Counts(naming[n.Node], r.needed) {
			found = append(found, n)
		}
	}
	return found
}

// isListed reports whether enough lists contain the member.
func (r claimReview) isListed(id v1alpha1.MemberID) bool {
	return observation.Counts(slices.DeleteFunc(slices.Clone(r.lists), func(o v1alpha1.Observation) bool {
		return !observation.IsListed(o, id)
	}), r.needed)
}
