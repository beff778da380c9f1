// Package membership maintains the bindings and grants in the spec of an EtcdCluster. A binding
// records the Node on which a member runs. A grant records that a Node with members may be deleted
// or drained.
//
// ObserversOf returns which Nodes are observers of a cluster. Bind returns the next bindings of a
// cluster from what the agents claim. Tombstones returns the grants that are missing for Nodes that
// are gone. Resolve decides whether a grant has ended, and ResolveByHand ends one on behalf of an
// operator.
//
// All functions are pure. The leader calls them in each round and writes the results.
package membership

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A Refusal is a claim of a Node to a member that is not bound.
type Refusal struct {
	Node   string
	Member v1alpha1.MemberID
	Reason string
}

// Bind returns the bindings that the cluster should have next, sorted by member, and the refused
// claims. The argument contains all Nodes, including those that announce nothing.
//
// A member is bound to the Node that announces it. Of several, a Node with a role takes precedence,
// if only those are observers, then a credible one, and then one with an address of the member.
// Between equals, an unbound member stays unbound, and a bound one becomes disputed. Without roles,
// it is also disputed while another Node announces it or has its address: any agent can announce
// any member, and any kubelet can write any address into its own Node. A claim without support is
// bound to protect its own Node.
//
// A claim without support passes to a Node with more. Otherwise the binding of a Node that exists
// passes to another Node only if its own agent reports that its host has no member, while the
// member is healthy.
//
// If the Node is gone, its binding stays until a grant names the member (Tombstones returns that
// grant). Then the binding passes to a claim of a Node with the same name, and the member stays
// lost until the grant ends. Only the kubelet of a name can use that name. A host with a new name
// waits until an operator resolves the grant, which also ends the binding.
//
// A binding ends if the confirmed lists that carry one of the nonces lack the member.
func Bind(
	c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, nonces []string, now time.Time,
) (bindings []v1alpha1.Binding, refused []Refusal) {
	r := newClaimReview(c, nodes, nonces, now)
	for _, old := range c.Spec.Members {
		if !r.hasEnded(old) {
			bindings = append(bindings, r.reassess(old))
		}
	}
	for _, id := range r.announcedMembers() {
		if len(r.snapshot.Lists) > 0 && !observation.IsListedByAny(r.snapshot.Lists, id) {
			continue // the member has left; its agent will remove the announcement
		}
		at := slices.IndexFunc(bindings, func(b v1alpha1.Binding) bool { return b.MemberID == id })
		var next *v1alpha1.Binding
		var reasons []Refusal
		if at >= 0 {
			next, reasons = r.reviewHeirs(bindings[at])
		} else {
			next, reasons = r.reviewClaims(id)
		}
		refused = append(refused, reasons...)
		switch {
		case next == nil:
		case at < 0:
			bindings = append(bindings, *next)
		default:
			bindings[at] = *next
		}
	}
	for i := range bindings {
		r.identify(&bindings[i])
	}
	slices.SortFunc(bindings, func(a, b v1alpha1.Binding) int { return cmp.Compare(a.MemberID, b.MemberID) })
	return bindings, refused
}

// reassess returns the binding as the present lists and announcements support it. That of a Node
// that is gone stays as it is.
func (r claimReview) reassess(b v1alpha1.Binding) v1alpha1.Binding {
	own, exists := r.node(b.NodeUID)
	if r.needsRole() && (b.Basis != v1alpha1.BasisRole || exists && !own.HasRole) {
		b.Basis = v1alpha1.BasisClaim
	}
	if !exists || !r.isListed(b.MemberID) {
		return b
	}
	if b.Basis == v1alpha1.BasisClaim || r.needsRole() {
		b.Basis = r.basisOf(own, b.MemberID)
	} else {
		b.Basis = v1alpha1.BasisAddress // This survives the loss of an address.
	}
	rank := r.rank(own, b.MemberID)
	rivals := slices.DeleteFunc(r.claimants(b.MemberID), func(n observation.AnnouncingNode) bool {
		return n.UID == own.UID || r.rank(n, b.MemberID) < rank
	})
	best := r.best(rivals, b.MemberID)
	switch {
	case len(best) == 1 && r.isReplaced(b, own, best[0]):
		return r.bindingTo(best[0], b.MemberID)
	case b.Basis != v1alpha1.BasisClaim && r.isDisputed(own, b.MemberID):
		b.Basis = v1alpha1.BasisDisputed
	}
	return b
}

// isReplaced reports whether the binding to an existing Node passes to a rival, for which at least
// as much speaks.
func (r claimReview) isReplaced(b v1alpha1.Binding, own, rival observation.AnnouncingNode) bool {
	isWeak := b.Basis == v1alpha1.BasisClaim || !r.isEstablished()
	isWrong := !r.isCredible(own) && r.isCredible(rival)
	return isWrong || isWeak && r.rank(rival, b.MemberID) > r.rank(own, b.MemberID) || r.hasMoved(b)
}

// hasMoved reports whether the agent of the bound Node has found neither a server nor data, while
// the member is proven healthy: it runs on another host. Without the proof, the disk of its own
// host may not be mounted.
func (r claimReview) hasMoved(b v1alpha1.Binding) bool {
	return reportsNoMember(r.snapshot.Cluster, b) &&
		r.snapshot.Proves(b.MemberID, func(m v1alpha1.MemberStatus) bool { return m.Healthy })
}

// reportsNoMember reports whether the agent of the bound Node has found neither a server nor data.
func reportsNoMember(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(c.Observations, func(o v1alpha1.Observation) bool {
		return o.NoMember && observation.IsFrom(o, b)
	})
}

// isCredible reports whether a Node can dispute members. A host has one member of a cluster. So a
// Node that announces several that other Nodes have or announce is wrong, or has their addresses.
func (r claimReview) isCredible(n observation.AnnouncingNode) bool {
	disputed := map[v1alpha1.MemberID]bool{}
	isOther := func(o observation.AnnouncingNode) bool { return o.UID != n.UID }
	for _, id := range r.claimedBy(n) {
		disputed[id] = slices.ContainsFunc(r.claimants(id), isOther) ||
			slices.ContainsFunc(r.snapshot.Cluster.Spec.Members,
				func(b v1alpha1.Binding) bool { return b.MemberID == id && b.NodeUID != n.UID && r.exists(b) })
	}
	return len(observation.SortedIDs(disputed)) < 2
}

// identify sets the identity of the machine from the Node of the binding, as far as the Node has
// it. Without the Node, the binding keeps what it knows.
func (r claimReview) identify(b *v1alpha1.Binding) {
	n, _ := r.node(b.NodeUID)
	b.MachineID = cmp.Or(n.Machine.MachineID, b.MachineID)
	b.SystemUUID = cmp.Or(n.Machine.SystemUUID, b.SystemUUID)
	b.ProviderID = cmp.Or(n.ProviderID, b.ProviderID)
}

// reviewClaims decides the claims to a member that is not bound. It returns the binding, or nil and
// the refused claims.
func (r claimReview) reviewClaims(id v1alpha1.MemberID) (next *v1alpha1.Binding, refused []Refusal) {
	claimants := r.claimants(id)
	best := r.best(claimants, id)
	switch {
	case !r.isListed(id):
		return nil, refuse(id, claimants, "no confirmed member list of an observer contains the member"+r.awaited)
	case len(best) > 1:
		return nil, refuse(id, claimants, "several Nodes are equally likely to run the member: "+joinNodes(best)+
			": remove the announcement from the wrong one")
	}
	found := r.bindingTo(best[0], id)
	if at := r.nodesAt(id, r.all); found.Basis == v1alpha1.BasisClaim && len(at) > 0 && !r.isAt(best[0], id) {
		return nil, refuse(id, claimants, "the member's URLs name an address of node "+joinNodes(at))
	}
	return &found, nil
}

// reviewHeirs decides the claims of other Nodes to a member that is bound. It returns the next
// binding, or nil and the refused claims.
func (r claimReview) reviewHeirs(bound v1alpha1.Binding) (next *v1alpha1.Binding, refused []Refusal) {
	claimants := slices.DeleteFunc(r.claimants(bound.MemberID),
		func(n observation.AnnouncingNode) bool { return n.UID == bound.NodeUID })
	heirs := slices.DeleteFunc(slices.Clone(claimants),
		func(n observation.AnnouncingNode) bool { return n.Node != bound.Node })
	if len(heirs) == 0 && bound.Basis == v1alpha1.BasisClaim {
		// The Node that is gone had no support for its claim.
		heirs = slices.DeleteFunc(r.best(claimants, bound.MemberID), func(n observation.AnnouncingNode) bool {
			return r.basisOf(n, bound.MemberID) == v1alpha1.BasisClaim && !r.isAt(n, bound.MemberID)
		})
	}
	why := ""
	switch {
	case r.exists(bound):
		why = fmt.Sprintf("the member is bound to node %s, which exists", bound.Node)
	case !observation.HasGrant(r.snapshot.Cluster, bound):
		why = fmt.Sprintf("the member's node %s is gone, and the grant for it is not written yet", bound.Node)
	case len(heirs) != 1:
		why = fmt.Sprintf("the member's node %s is gone: only a Node with that name can take it over, or "+
			"any Node after an operator resolves the grant for UID %s (kubectl holdfast settle, or annotation %s)",
			bound.Node, bound.NodeUID, quorum.ResolveAnnotation)
	case !r.isListed(bound.MemberID):
		why = "no confirmed member list of an observer contains the member" + r.awaited
	default:
		found := r.bindingTo(heirs[0], bound.MemberID)
		return &found, nil
	}
	return nil, refuse(bound.MemberID, claimants, why)
}

// refuse returns the refusals of the claims for one reason.
func refuse(id v1alpha1.MemberID, claimants []observation.AnnouncingNode, why string) (refused []Refusal) {
	for _, n := range claimants {
		refused = append(refused, Refusal{Node: n.Node, Member: id, Reason: why})
	}
	return refused
}

func joinNodes(nodes []observation.AnnouncingNode) string {
	return printable.Join(nodes, ", ", func(n observation.AnnouncingNode) string { return n.Node })
}

// hasEnded reports whether a binding has ended: no list that counts contains the member, and enough
// observers list others only. If the agent of the bound Node reports that its host has no member,
// that is one of the words, but it is not enough without a list: the disk may not be mounted.
func (r claimReview) hasEnded(b v1alpha1.Binding) bool {
	s := r.snapshot
	if observation.IsListedByAny(s.Lists, b.MemberID) {
		return false
	}
	words := slices.DeleteFunc(observation.Confirmed(s.Answers),
		func(o v1alpha1.Observation) bool { return observation.IsListed(o, b.MemberID) })
	if len(words) == 0 {
		return false
	}
	if reportsNoMember(s.Cluster, b) {
		words = append(words, v1alpha1.Observation{Node: b.Node})
	}
	return s.Counts(words)
}
