package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// Bind returns the bindings that the cluster should have next, sorted by member, and the reason for
// each refused claim. The claims are those of all Nodes, including Nodes that announce nothing: an
// address identifies a Node only if no other Node has it.
//
// A binding makes a node an observer, whose observations are trusted. So an announcement alone
// binds nothing. The member's URLs must name an address of that Node and of no other Node. If
// they name no address of any Node (127.0.0.1, an access address), a bound observer must list the
// member. In a cluster without bindings, the lists of the claimants are used instead (bootstrap).
//
// The binding of a Node that exists is never overridden. If the Node is gone, its binding is a
// tombstone. A tombstone passes to a valid claim of another Node once a grant names the member, so
// that the member on the old Node stays lost until the grant ends (Tombstones returns that grant).
//
// A tombstone passes only to a Node with the name of the old one. Only the kubelet of a name can
// use that name, while any agent can announce a member whose host is gone, and any kubelet can
// write an unused address into its own Node. A host with a new name waits until an operator
// resolves the grant, which also ends the binding.
//
// A binding ends only if the confirmed lists that carry one of the nonces lack the member. In
// addition, these lists must come from several Nodes, or no other observer could contradict, or the
// agent of the bound Node reports that its host has no member any more.
func Bind(
	c *v1alpha1.EtcdCluster, claims []observation.NodeClaim, nonces []string,
) (bindings []v1alpha1.Binding, refused []string) {
	r := claimReview{cluster: c, nodes: claims}
	r.lists, r.awaited = urlLists(c, claims)
	s := quorum.NewSnapshot(quorum.View{Cluster: c, Nonces: nonces, Nodes: nodeStates(c, claims)})
	for _, old := range c.Spec.Members {
		if hasEnded(s, old) {
			continue
		}
		bindings = append(bindings, old)
	}
	for _, id := range r.announcedMembers() {
		if len(s.Lists) > 0 && !observation.IsListedByAny(s.Lists, id) {
			continue // the member has left; its agent will remove the announcement
		}
		var bound *v1alpha1.Binding
		if i := slices.IndexFunc(bindings, func(b v1alpha1.Binding) bool { return b.MemberID == id }); i >= 0 {
			bound = &bindings[i]
		}
		next, reasons := r.reviewClaims(id, bound)
		refused = append(refused, reasons...)
		switch {
		case next == nil:
		case bound == nil:
			bindings = append(bindings, *next)
		default:
			*bound = *next
		}
	}
	slices.SortFunc(bindings, func(a, b v1alpha1.Binding) int { return cmp.Compare(a.MemberID, b.MemberID) })
	return bindings, refused
}

// urlLists returns the lists whose URLs show where members run: those of bound observers, or, in a
// cluster without bindings, those of bootstrap. Old lists count as well, because a member does not
// move when its observer becomes silent.
func urlLists(c *v1alpha1.EtcdCluster, claims []observation.NodeClaim) (lists []v1alpha1.Observation, awaited string) {
	if len(c.Spec.Members) > 0 {
		return observation.Confirmed(observation.Accepted(c)), ""
	}
	return bootstrap(c, claims)
}

// nodeStates returns the states of the bound Nodes according to the claims. A Node without a
// claim is gone.
func nodeStates(c *v1alpha1.EtcdCluster, claims []observation.NodeClaim) map[string]observation.NodeState {
	states := map[string]observation.NodeState{}
	for _, b := range c.Spec.Members {
		states[b.Node] = observation.NodeState{Known: true}
	}
	for _, n := range claims {
		states[n.Node] = observation.NodeState{Known: true, UID: n.UID, Deleting: n.Deleting}
	}
	return states
}

// claimReview decides which Nodes the members of a cluster are bound to.
type claimReview struct {
	cluster *v1alpha1.EtcdCluster
	nodes   []observation.NodeClaim
	// lists are the member lists whose URLs show where members run.
	lists []v1alpha1.Observation
	// awaited states what is missing for the first bindings of the cluster, empty if nothing is.
	awaited string
}

// announcedMembers returns, sorted, the members of this cluster that a Node announces.
func (r claimReview) announcedMembers() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, n := range r.nodes {
		for _, a := range n.Announced {
			if a.Cluster == observation.ClusterIDOf(r.cluster) && n.UID != "" {
				found[a.Member] = true
			}
		}
	}
	return observation.SortedIDs(found)
}

// reviewClaims decides the claims to one member, whose current binding may be nil. It returns the
// new binding, or nil and the reasons for the refused claims.
func (r claimReview) reviewClaims(
	id v1alpha1.MemberID, bound *v1alpha1.Binding,
) (next *v1alpha1.Binding, refused []string) {
	var claimants []observation.NodeClaim
	for _, n := range r.nodes {
		if n.HasAnnounced(observation.ClusterIDOf(r.cluster), id) && (bound == nil || bound.NodeUID != n.UID) {
			claimants = append(claimants, n)
		}
	}
	if len(claimants) == 0 {
		return nil, nil
	}
	why := ""
	if bound != nil {
		claimants, why = r.selectHeir(*bound, claimants)
	}
	if why == "" {
		i := 0
		if i, why = r.selectClaimant(id, claimants); why == "" {
			return &v1alpha1.Binding{MemberID: id, Node: claimants[i].Node, NodeUID: claimants[i].UID}, nil
		}
	}
	for _, n := range claimants {
		refused = append(refused, fmt.Sprintf("node %s announces member %s of etcd cluster %s but is not bound to it: %s",
			n.Node, id, observation.ClusterIDOf(r.cluster), why))
	}
	return nil, refused
}

// selectHeir returns the claimant that may take over the binding, or all of them and the reason why
// none of them may.
func (r claimReview) selectHeir(
	bound v1alpha1.Binding, claimants []observation.NodeClaim,
) (heirs []observation.NodeClaim, why string) {
	exists := slices.ContainsFunc(r.nodes, func(n observation.NodeClaim) bool {
		return n.Node == bound.Node && n.UID == bound.NodeUID
	})
	heir := slices.IndexFunc(claimants, func(n observation.NodeClaim) bool { return n.Node == bound.Node })
	switch {
	case exists:
		return claimants, fmt.Sprintf("the member is bound to node %s, which exists", bound.Node)
	case !quorum.HasGrant(r.cluster, bound):
		return claimants, fmt.Sprintf("the member's node %s is gone, and the grant for it is not written yet", bound.Node)
	case heir < 0:
		return claimants, fmt.Sprintf("the member's node %s is gone: only a Node with that name can take it over, or "+
			"any Node after an operator resolves the grant for UID %s (annotation %s)",
			bound.Node, bound.NodeUID, quorum.ResolveAnnotation)
	}
	return claimants[heir : heir+1], ""
}

// selectClaimant returns the index of the claimant on whose Node the member runs, or the reason why
// that is not known.
func (r claimReview) selectClaimant(id v1alpha1.MemberID, claimants []observation.NodeClaim) (index int, why string) {
	at, isListed := r.nodesOf(id)
	switch {
	case !isListed:
		return 0, "no confirmed member list of an observer contains the member" + r.awaited
	case len(at) == 0 && len(claimants) > 1:
		return 0, "the member's URLs name no address of a Node, and several Nodes announce it"
	case len(at) == 0:
		return 0, ""
	case len(at) > 1:
		return 0, "the member's URLs name addresses of several Nodes"
	}
	index = slices.IndexFunc(claimants, func(n observation.NodeClaim) bool { return n.UID == at[0].UID })
	if index < 0 {
		return 0, fmt.Sprintf("the member's URLs name an address of node %s", at[0].Node)
	}
	return index, ""
}

// nodesOf returns the Nodes that have an address which the member's URLs name in any list, and
// whether a list contains the member.
func (r claimReview) nodesOf(id v1alpha1.MemberID) (at []observation.NodeClaim, isListed bool) {
	for _, o := range r.lists {
		m, found := observation.FindMember(o, id)
		if !found {
			continue
		}
		isListed = true
		for _, n := range observation.NodesAt(m, r.nodes) {
			if !slices.ContainsFunc(at, func(a observation.NodeClaim) bool { return a.UID == n.UID }) {
				at = append(at, n)
			}
		}
	}
	return at, isListed
}
