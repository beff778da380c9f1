package protect

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// target is the node of a request, as one cluster knows it.
type target struct {
	sight
	Request
	// named are members that a binding, the announcement, the node's own agent or an earlier grant puts on the node.
	named map[v1alpha1.MemberID]bool
	// contested are members that the node announces and that are bound to another Node which exists. One of the two is
	// wrong, and which cannot be told from here.
	contested map[v1alpha1.MemberID]bool
	// own is the fresh confirmed list of the node's own agent, if nothing binds it: it proves nothing, and counts against the
	// deletion of its own node alone.
	own []v1alpha1.Observation
}

func (s sight) target(r Request) target {
	t := target{sight: s, Request: r, named: map[v1alpha1.MemberID]bool{}, contested: map[v1alpha1.MemberID]bool{}}
	for _, b := range s.cluster.Spec.Members {
		if boundTo(b, r) {
			t.named[b.MemberID] = true
		}
	}
	for _, a := range r.Announced {
		if a.Cluster != clusterID(s.cluster) {
			continue
		}
		if s.livesElsewhere(a.Member, r) {
			t.contested[a.Member] = true
		} else {
			t.named[a.Member] = true
		}
	}
	for _, o := range ownOf(s.cluster, r) {
		if o.LocalMember != "" && !s.livesElsewhere(o.LocalMember, r) {
			t.named[o.LocalMember] = true
		}
		observes := slices.ContainsFunc(s.lists, func(l v1alpha1.Observation) bool { return l.Node == o.Node })
		if confirmed(o) && o.Nonce != "" && slices.Contains(s.asked, o.Nonce) && !observes {
			o.Members = distinct(o.Members)
			t.own = append(t.own, o)
		}
	}
	for _, g := range s.cluster.Spec.Grants {
		for _, id := range g.Members {
			if r.UID != "" && g.NodeUID == r.UID && !s.livesElsewhere(id, r) {
				t.named[id] = true
			}
		}
	}
	return t
}

// ownOf returns what the agent of the request's very Node published, bound or not.
func ownOf(c *v1alpha1.EtcdCluster, r Request) []v1alpha1.Observation {
	return slices.DeleteFunc(slices.Clone(c.Status.Observations), func(o v1alpha1.Observation) bool {
		return r.UID == "" || o.Node != r.Node || o.NodeUID != r.UID || !sane(o)
	})
}

// boundTo says that the binding is to the request's node. A Node that was registered anew under its old name, or that is
// known by its UID only, is still the host of the member.
func boundTo(b v1alpha1.Binding, r Request) bool {
	return b.Node == r.Node || (r.UID != "" && b.NodeUID == r.UID)
}

// livesElsewhere says that the member is bound to another Node which exists. A Node that could not be read is no proof.
func (s sight) livesElsewhere(id v1alpha1.MemberID, r Request) bool {
	b, bound := s.bindings[id]
	n := s.nodes[b.Node]
	return bound && !boundTo(b, r) && n.Known && n.UID == b.NodeUID
}

// on returns the members of a list that are on the node: those that are named, and on a labelled node also those at one of
// its addresses, unless they are bound to another Node which exists. A host that has joined again has a new member ID at
// its old address, and its old one may still be in the list.
func (t target) on(o v1alpha1.Observation) []v1alpha1.MemberID {
	var found []v1alpha1.MemberID
	for _, m := range o.Members {
		if t.named[m.ID] || (t.Labelled && livesAt(m, t.Addresses) && !t.livesElsewhere(m.ID, t.Request)) {
			found = append(found, m.ID)
		}
	}
	return found
}

// known returns every member that may be on the node by all that was ever said, for when nobody answers or nobody is asked.
func (t target) known() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for id := range t.named {
		found[id] = true
	}
	for id := range t.contested {
		found[id] = true
	}
	for _, o := range observers(t.cluster) {
		for _, id := range t.on(o) {
			found[id] = true
		}
	}
	return sorted(found)
}

func sorted(set map[v1alpha1.MemberID]bool) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for id, in := range set {
		if in {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
