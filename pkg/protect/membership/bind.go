// Package membership maintains the bindings and grants in the spec of an EtcdCluster. A binding
// records the Node on which a member runs. A grant records that a Node with members may be deleted
// or drained.
//
// Bind returns the next bindings of a cluster from what the agents claim. Tombstones returns the
// grants that are missing for Nodes that are gone. Resolve decides whether a grant has ended, and
// ResolveByHand ends one on behalf of an operator.
//
// All functions are pure. The leader calls them in each round and writes the results.
package membership

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A Refusal is a claim of a Node to a member that is not bound.
type Refusal struct {
	Node   string
	Claim  evidence.MemberRef
	Reason string
}

// String returns the refusal as a sentence.
func (r Refusal) String() string {
	return fmt.Sprintf("node %s announces member %s of etcd cluster %s but is not bound to it: %s",
		r.Node, r.Claim.Member, r.Claim.Cluster, r.Reason)
}

// Bind returns the bindings that the cluster should have next, sorted by member, and the refused
// claims. The argument contains all Nodes, including those that announce nothing: an address
// identifies a Node only if no other Node has it.
//
// A binding makes a node an observer. So an announcement alone never creates an observer. The first
// bindings of a cluster need the agreement of most of its Nodes (bootstrap). Afterwards, the lists
// of observers must name an address of the Node, and no other Node with that address may announce
// the member. The observations of such a Node count only together with another observer, because
// kubelets write the addresses.
//
// If the lists name no address of any Node and one Node announces the member, the member is bound
// to that Node. The binding protects the Node but makes it no observer. Exception: if no observer's
// member advertises an address of its Node, it does. As soon as a Node with the address announces
// the member, it gets the binding.
//
// Otherwise the binding of a Node that exists passes to another Node only if its own agent reports
// that its host has no member, while the member is healthy.
//
// If the Node is gone, its binding stays until a grant names the member (Tombstones returns that
// grant). Then the binding passes to a valid claim of a Node with the same name, and the member
// stays lost until the grant ends. Only the kubelet of a name can use that name, while any agent
// can announce a member whose host is gone, and any kubelet can write an unused address into its
// own Node. A host with a new name waits until an operator resolves the grant, which also ends the
// binding.
//
// A binding ends only if the confirmed lists that carry one of the nonces lack the member. In
// addition, these lists must come from several Nodes, or no other observer could contradict, or the
// agent of the bound Node reports that its host has no member any more.
func Bind(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, nonces []string, now time.Time,
) (bindings []v1alpha1.Binding, refused []Refusal) {
	r := claimReview{
		nodes:    nodes,
		snapshot: quorum.NewSnapshot(quorum.View{Cluster: c, Nonces: nonces, Nodes: nodeStates(c, nodes)}),
	}
	if r.isBootstrap = len(c.Spec.Members) == 0; r.isBootstrap {
		r.bootstrapLists, r.awaited = bootstrap(c, nodes, now)
	}
	for _, old := range c.Spec.Members {
		if hasEnded(r.snapshot, old) {
			continue
		}
		bindings = append(bindings, r.reassess(old))
	}
	for _, id := range r.announcedMembers() {
		if len(r.snapshot.Lists) > 0 && !observation.IsListedByAny(r.snapshot.Lists, id) {
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
	for i := range bindings {
		r.identify(&bindings[i])
	}
	slices.SortFunc(bindings, func(a, b v1alpha1.Binding) int { return cmp.Compare(a.MemberID, b.MemberID) })
	return bindings, refused
}

// nodeStates returns the states of the bound Nodes. A Node that is not among all Nodes is gone.
func nodeStates(c *v1alpha1.EtcdCluster, all []observation.AnnouncingNode) map[string]observation.NodeState {
	states := map[string]observation.NodeState{}
	for _, b := range c.Spec.Members {
		states[b.Node] = observation.NodeState{Known: true}
	}
	for _, n := range all {
		states[n.Node] = observation.NodeState{Known: true, UID: n.UID, Deleting: n.Deleting}
	}
	return states
}

// claimReview decides which Nodes the members of a cluster are bound to.
type claimReview struct {
	snapshot quorum.Snapshot
	// nodes are all Nodes.
	nodes []observation.AnnouncingNode
	// isBootstrap reports whether the cluster has no bindings yet. bootstrapLists are the lists of its
	// bootstrap, and awaited states what is missing for it, empty if nothing is.
	isBootstrap    bool
	bootstrapLists []v1alpha1.Observation
	awaited        string
}

// announcedMembers returns, sorted, the members of this cluster that a Node announces.
func (r claimReview) announcedMembers() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, n := range r.nodes {
		for _, a := range n.Announced {
			if a.Cluster == observation.ClusterIDOf(r.snapshot.Cluster) && n.UID != "" {
				found[a.Member] = true
			}
		}
	}
	return observation.SortedIDs(found)
}

// reassess returns the binding as the present lists and announcements support it. That of a Node
// that is gone stays as it is. A dispute with one other Node ends when the agent of the bound Node
// finds neither a server nor data on its own host, although the member is healthy. A binding of the
// bootstrap changes only in that way: the bound Node may have claimed the member before its host
// had a Node.
func (r claimReview) reassess(b v1alpha1.Binding) v1alpha1.Binding {
	hasNoMember := reportsNoMember(r.snapshot.Cluster, b) && r.runsElsewhere(b)
	isFixed := b.Basis == v1alpha1.BasisBootstrap && !hasNoMember
	if isFixed || !r.exists(b) {
		return b
	}
	at, isListed := r.nodesAtListedAddresses(b.MemberID)
	if !isListed {
		return b
	}
	if len(at) == 0 && r.addressesShowNothing() {
		at = r.nodes
	}
	isRival := func(n observation.AnnouncingNode) bool {
		return n.UID != b.NodeUID && r.isAnnouncedBy(n, b.MemberID) && r.countDisputes(n) == 1
	}
	isOwn := slices.ContainsFunc(at, func(n observation.AnnouncingNode) bool { return n.UID == b.NodeUID })
	rivals := slices.DeleteFunc(slices.Clone(at), func(n observation.AnnouncingNode) bool { return !isRival(n) })
	if b.Basis == v1alpha1.BasisBootstrap {
		if len(rivals) == 1 {
			return moveTo(b, rivals[0])
		}
		return b
	}
	switch {
	case isOwn && (len(rivals) > 1 || (len(rivals) == 1 && !hasNoMember)):
		b.Basis = v1alpha1.BasisDisputed
	case len(rivals) == 1:
		return moveTo(b, rivals[0])
	case isOwn:
		b.Basis = v1alpha1.BasisJoined
	default:
		b.Basis = v1alpha1.BasisClaimed
	}
	return b
}

// moveTo returns the binding of the same member to another Node.
func moveTo(b v1alpha1.Binding, n observation.AnnouncingNode) v1alpha1.Binding {
	return v1alpha1.Binding{MemberID: b.MemberID, Node: n.Node, NodeUID: n.UID, Basis: v1alpha1.BasisJoined}
}

// identify sets the identity of the machine from the Node of the binding, as far as the Node has
// it. Without the Node, the binding keeps what it knows.
func (r claimReview) identify(b *v1alpha1.Binding) {
	for _, n := range r.nodes {
		if n.Node == b.Node && n.UID == b.NodeUID {
			b.MachineID = cmp.Or(n.Machine.MachineID, b.MachineID)
			b.SystemUUID = cmp.Or(n.Machine.SystemUUID, b.SystemUUID)
			b.ProviderID = cmp.Or(n.ProviderID, b.ProviderID)
		}
	}
}

// reportsNoMember reports whether the agent of the bound Node has found neither a server nor data.
func reportsNoMember(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(c.Observations, func(o v1alpha1.Observation) bool {
		return o.NoMember && observation.IsFrom(o, b)
	})
}

// isAnnouncedBy reports whether the Node announces the member of this cluster.
func (r claimReview) isAnnouncedBy(n observation.AnnouncingNode, id v1alpha1.MemberID) bool {
	return n.HasAnnounced(observation.ClusterIDOf(r.snapshot.Cluster), id)
}

// countDisputes returns how many members the Node announces that are bound to other Nodes that
// exist. A host has one member of a cluster. So a Node that announces those of several Nodes is
// wrong, and does not prevent that they are observers.
func (r claimReview) countDisputes(n observation.AnnouncingNode) int {
	count := 0
	for _, b := range r.snapshot.Cluster.Spec.Members {
		if b.NodeUID != n.UID && r.exists(b) && r.isAnnouncedBy(n, b.MemberID) {
			count++
		}
	}
	return count
}

// runsElsewhere reports whether the answers prove the member healthy. Together with the report of
// the bound Node's agent that its host has none, this shows that it runs on another host. Without
// it, the disk of its own host may not be mounted.
func (r claimReview) runsElsewhere(b v1alpha1.Binding) bool {
	return r.snapshot.Proves(b.MemberID, func(m v1alpha1.MemberStatus) bool { return m.Healthy })
}

// exists reports whether the Node of the binding exists.
func (r claimReview) exists(b v1alpha1.Binding) bool {
	return slices.ContainsFunc(r.nodes, func(n observation.AnnouncingNode) bool {
		return n.Node == b.Node && n.UID == b.NodeUID
	})
}

// addressesShowNothing reports whether no observer's member advertises an address of its Node. Then
// addresses do not show where a member runs. Lists and bindings of the bootstrap decide that, so a
// Node that joined later cannot.
func (r claimReview) addressesShowNothing() bool {
	return !slices.ContainsFunc(r.snapshot.Cluster.Spec.Members, func(b v1alpha1.Binding) bool {
		at, _ := r.nodesAtListedAddresses(b.MemberID)
		return observation.IsObserver(b) &&
			slices.ContainsFunc(at, func(n observation.AnnouncingNode) bool { return n.Node == b.Node && n.UID == b.NodeUID })
	})
}

// reviewClaims decides the claims to one member, whose current binding may be nil. It returns the
// new binding, or nil and the refused claims.
func (r claimReview) reviewClaims(
	id v1alpha1.MemberID, bound *v1alpha1.Binding,
) (next *v1alpha1.Binding, refused []Refusal) {
	var claimants []observation.AnnouncingNode
	for _, n := range r.nodes {
		if r.isAnnouncedBy(n, id) && (bound == nil || bound.NodeUID != n.UID) {
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
		var found v1alpha1.Binding
		if found, why = r.selectClaimant(id, claimants); why == "" {
			if bound != nil && bound.Basis == v1alpha1.BasisBootstrap {
				found.Basis = v1alpha1.BasisBootstrap // Only the host of the old Node has its name.
			}
			return &found, nil
		}
	}
	for _, n := range claimants {
		refused = append(refused, Refusal{
			Node: n.Node, Reason: why,
			Claim: evidence.MemberRef{Cluster: observation.ClusterIDOf(r.snapshot.Cluster), Member: id},
		})
	}
	return nil, refused
}

// selectHeir returns the claimant that may take over the binding, or all of them and the reason why
// none of them may.
func (r claimReview) selectHeir(
	bound v1alpha1.Binding, claimants []observation.AnnouncingNode,
) (heirs []observation.AnnouncingNode, why string) {
	heir := slices.IndexFunc(claimants, func(n observation.AnnouncingNode) bool { return n.Node == bound.Node })
	if heir < 0 && bound.Basis == v1alpha1.BasisClaimed {
		// The Node that is gone had no support for its claim.
		heir = r.indexAtAddress(bound.MemberID, claimants)
	}
	switch {
	case r.exists(bound) && bound.Basis == v1alpha1.BasisDisputed:
		return claimants, fmt.Sprintf("the member is bound to node %s, which exists and is as likely to run it. "+
			"The observations of these nodes do not count until only one of them announces the member", bound.Node)
	case r.exists(bound):
		return claimants, fmt.Sprintf("the member is bound to node %s, which exists", bound.Node)
	case !observation.HasGrant(r.snapshot.Cluster, bound):
		return claimants, fmt.Sprintf("the member's node %s is gone, and the grant for it is not written yet", bound.Node)
	case heir < 0:
		return claimants, fmt.Sprintf("the member's node %s is gone: only a Node with that name can take it over, or "+
			"any Node after an operator resolves the grant for UID %s (kubectl holdfast settle, or annotation %s)",
			bound.Node, bound.NodeUID, quorum.ResolveAnnotation)
	}
	return claimants[heir : heir+1], ""
}

// indexAtAddress returns the index of the only claimant that has an address of the member, -1 if
// there is none or several.
func (r claimReview) indexAtAddress(id v1alpha1.MemberID, claimants []observation.AnnouncingNode) int {
	at, _ := r.nodesAtListedAddresses(id)
	isAt := func(n observation.AnnouncingNode) bool {
		return slices.ContainsFunc(at, func(a observation.AnnouncingNode) bool { return a.UID == n.UID })
	}
	if i := slices.IndexFunc(claimants, isAt); i >= 0 && !slices.ContainsFunc(claimants[i+1:], isAt) {
		return i
	}
	return -1
}

// selectClaimant returns the binding to the claimant on whose Node the member runs, or the reason
// why that is not known. A claimant with an address of the member takes precedence over a Node that
// only has the address.
func (r claimReview) selectClaimant(
	id v1alpha1.MemberID, claimants []observation.AnnouncingNode,
) (next v1alpha1.Binding, why string) {
	at, isListed := r.nodesAtListedAddresses(id)
	if !isListed {
		return next, "no confirmed member list of an observer contains the member" + r.awaited
	}
	index, basis := r.indexAtAddress(id, claimants), v1alpha1.BasisJoined
	switch {
	case index >= 0:
	case len(at) == 1:
		return next, fmt.Sprintf("the member's URLs name an address of node %s", at[0].Node)
	case len(at) > 1:
		return next, "the member's URLs name addresses of several Nodes: " + joinNodes(at)
	case len(claimants) > 1:
		return next, "the member's URLs name no address of a Node, and several Nodes announce it: " + joinNodes(claimants)
	default:
		if index = 0; !r.addressesShowNothing() {
			basis = v1alpha1.BasisClaimed
		}
	}
	n := claimants[index]
	isOfFounder := func(b v1alpha1.Binding) bool { return b.NodeUID == n.UID && b.Basis == v1alpha1.BasisBootstrap }
	if r.isBootstrap || slices.ContainsFunc(r.snapshot.Cluster.Spec.Members, isOfFounder) {
		basis = v1alpha1.BasisBootstrap
	}
	return v1alpha1.Binding{MemberID: id, Node: n.Node, NodeUID: n.UID, Basis: basis}, ""
}

func joinNodes(nodes []observation.AnnouncingNode) string {
	return printable.Join(nodes, ", ", func(n observation.AnnouncingNode) string { return n.Node })
}

// nodesAtListedAddresses returns the Nodes that have an address which the member's URLs name in a
// list, and whether a list contains the member. Only lists count on which several observers agree,
// or which are those of founders.
func (r claimReview) nodesAtListedAddresses(id v1alpha1.MemberID) (at []observation.AnnouncingNode, isListed bool) {
	if r.isBootstrap {
		return hostsInLists(r.bootstrapLists, id, r.snapshot.Cluster, r.nodes)
	}
	lists := observation.ListsWith(r.snapshot.Cluster, id)
	naming := map[types.UID][]v1alpha1.Observation{}
	for _, o := range lists {
		m, _ := observation.FindMember(o, id)
		for _, n := range observation.NodesAt(m, r.nodes) {
			naming[n.UID] = append(naming[n.UID], o)
		}
	}
	for _, n := range r.nodes {
		if r.snapshot.IsCorroborated(naming[n.UID]) {
			at = append(at, n)
		}
	}
	return at, r.snapshot.IsCorroborated(lists)
}

// hasEnded reports whether a binding has ended: no confirmed list that answers the probe request
// contains the member, and the lists are conclusive, or the host itself is known to be empty.
//
// If the agent of the bound Node reports that its host has no member, one list is enough. Neither
// source is enough alone. A false list frees a node only if its own agent found neither a server
// nor data there, so that no member is lost with it. An agent that is wrong, for example because a
// disk is not mounted, frees its node only if a quorum has confirmed a list without the member.
func hasEnded(s quorum.Snapshot, b v1alpha1.Binding) bool {
	if len(s.Lists) == 0 || observation.IsListedByAny(s.Lists, b.MemberID) {
		return false
	}
	return s.IsConclusive() || reportsNoMember(s.Cluster, b)
}
