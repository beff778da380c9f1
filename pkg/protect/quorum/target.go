package quorum

import (
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// A requestTarget is the node of a request from the point of view of one cluster.
type requestTarget struct {
	Snapshot
	Request
	// assigned are the members that a binding, the announcement, the node's own agent or an earlier
	// grant assigns to the node.
	assigned map[v1alpha1.MemberID]bool
	// contested are the members that the node announces but that are bound to another existing Node,
	// which is not doubtful. One of the two Nodes is wrong, and it is not known which.
	contested map[v1alpha1.MemberID]bool
	// ownLists is the fresh confirmed list of the node's own agent, if no binding makes the agent
	// an observer. The list proves no health. It can only prevent the deletion of its own node.
	ownLists []v1alpha1.Observation
}

// newTarget combines the Snapshot with the request.
func newTarget(s Snapshot, r Request) requestTarget {
	t := requestTarget{Snapshot: s, Request: r}
	t.assigned, t.contested = map[v1alpha1.MemberID]bool{}, map[v1alpha1.MemberID]bool{}
	for _, p := range r.places(s.Cluster) {
		switch {
		case p.By&place.Target == 0:
		case !t.isBoundElsewhere(p.Member) || t.isDoubtful(p.Member):
			t.assigned[p.Member] = true
		case p.By&place.Announced != 0:
			t.contested[p.Member] = true
		}
	}
	own, _ := s.OwnAnswer(v1alpha1.Binding{Node: r.Node, NodeUID: r.UID})
	isObserver := slices.ContainsFunc(s.Lists, func(l v1alpha1.Observation) bool { return l.Node == own.Node })
	if observation.IsConfirmed(own) && !isObserver {
		t.ownLists = []v1alpha1.Observation{own}
	}
	return t
}

// decisiveLists returns the member lists for each of which the deletion must be safe. Only those of
// Lists can show that it is.
func (t requestTarget) decisiveLists() []v1alpha1.Observation {
	return slices.Concat(t.Lists, t.ownLists)
}

// isBoundTo reports whether the binding is to the request's node, by name or by UID. A Node that
// was registered again under its old name is still the host of the member.
func isBoundTo(b v1alpha1.Binding, r Request) bool {
	return b.Node == r.Node || b.NodeUID == r.UID
}

// isBoundElsewhere reports whether the member is bound to another Node that exists. A Node that
// could not be read is not proven to exist.
func (t requestTarget) isBoundElsewhere(id v1alpha1.MemberID) bool {
	b := t.Bindings[id]
	n := t.Nodes[b.Node]
	return n.Known && n.UID == b.NodeUID && !isBoundTo(b, t.Request)
}

// isDoubtful reports whether a binding of the member may be that of a false claimant. Then every
// other source counts too: the deletion is decided as if the member were there.
func (t requestTarget) isDoubtful(id v1alpha1.MemberID) bool {
	switch t.Bindings[id].Basis {
	case v1alpha1.BasisRole, v1alpha1.BasisAddress:
		return false
	case v1alpha1.BasisDisputed:
		return t.Cluster.Spec.Observers != v1alpha1.NodesWithRole
	case v1alpha1.BasisClaim:
	}
	return true
}

// isLocatedElsewhere reports whether the member is known to run on another Node that exists.
func (t requestTarget) isLocatedElsewhere(id v1alpha1.MemberID) bool {
	return t.isBoundElsewhere(id) && observation.IsLocated(t.Cluster, id)
}

// membersOnNode returns the members of a list that are on the node: the assigned members, and those
// at its addresses that are not known to run on another Node. A host that joined again has a new
// member ID at its old address, while its old member ID may still be in the list.
func (t requestTarget) membersOnNode(list v1alpha1.Observation) []v1alpha1.MemberID {
	var found []v1alpha1.MemberID
	for _, m := range list.Members {
		if t.assigned[m.ID] || observation.IsAtAddress(m, t.Addresses) && !t.isLocatedElsewhere(m.ID) {
			found = append(found, m.ID)
		}
	}
	return found
}

// possibleMembers returns all members that may be on the node according to any source, fresh or
// not. It is for a decision without answers.
func (t requestTarget) possibleMembers() []v1alpha1.MemberID {
	found := maps.Clone(t.assigned)
	maps.Copy(found, t.contested)
	for _, o := range observation.Accepted(t.Cluster) {
		for _, id := range t.membersOnNode(o) {
			found[id] = true
		}
	}
	return observation.SortedIDs(found)
}

// possibleRejoins returns, sorted, the members that may be on the node although no source assigns
// them to it. It considers those of the lists that no longer contain any assigned member.
//
// A host whose member was removed may have joined again with another member ID and at an address
// that no Node has. Until the host's agent reports the new ID, no observer is bound to it. So every
// such member is possible, except a member that may be on another existing Node, and a member that
// ran at the same time as an assigned member.
func (t requestTarget) possibleRejoins(lists []v1alpha1.Observation) []v1alpha1.MemberID {
	if len(t.assigned) == 0 {
		return nil
	}
	found := map[v1alpha1.MemberID]bool{}
	for _, list := range lists {
		if slices.ContainsFunc(list.Members, func(m v1alpha1.MemberStatus) bool { return t.assigned[m.ID] }) {
			continue
		}
		for _, m := range list.Members {
			found[m.ID] = !t.mayRunElsewhere(m.ID) && !t.ranWithAssigned(m.ID)
		}
	}
	return observation.SortedIDs(found)
}

// mayRunElsewhere reports whether an observer is bound to the member, or a list has it at the
// address of another Node that exists. A claim shows nothing. Nor does the address of a Node
// without the role that an observer needs, because its kubelet writes it.
func (t requestTarget) mayRunElsewhere(id v1alpha1.MemberID) bool {
	return observation.HasObserver(t.Cluster, id) ||
		slices.ContainsFunc(t.PossibleNodes, func(b v1alpha1.Binding) bool {
			n := t.Nodes[b.Node]
			isElsewhere := b.Node != t.Node && n.UID == b.NodeUID
			return b.MemberID == id && b.Basis != v1alpha1.BasisClaim && isElsewhere && t.maySpeak(n)
		})
}

// ranWithAssigned reports whether the member was started while an assigned member was proven
// healthy. Then the two are different servers. If the assigned member was dead, the same machine
// may have become the other member. The leader records such members (v1alpha1.DistinctServer),
// because newer lists replace the list that shows it.
func (t requestTarget) ranWithAssigned(id v1alpha1.MemberID) bool {
	if slices.ContainsFunc(t.Cluster.Spec.DistinctServers, func(d v1alpha1.DistinctServer) bool {
		return t.assigned[d.MemberID] && slices.Contains(d.Others, id)
	}) {
		return true
	}
	return t.Counts(slices.DeleteFunc(observation.Accepted(t.Cluster), func(o v1alpha1.Observation) bool {
		return !slices.ContainsFunc(observation.SortedIDs(t.assigned), func(assigned v1alpha1.MemberID) bool {
			return ShowsDistinct(o, assigned, id)
		})
	}))
}

// ShowsDistinct reports whether the observation shows that a member and another one are different
// servers: a confirmed list contains the other one as started, and the member itself is proven
// healthy.
func ShowsDistinct(o v1alpha1.Observation, id, other v1alpha1.MemberID) bool {
	m, _ := observation.FindMember(o, id)
	started, _ := observation.FindMember(o, other)
	return observation.IsConfirmed(o) && m.Healthy && started.Name != "" && id != other
}

// refusePossibleRejoin refuses because one of these members may be on the node.
func (t requestTarget) refusePossibleRejoin(members []v1alpha1.MemberID) Verdict {
	return Verdict{
		Reason: UnknownMember, Final: len(t.Pending()) == 0,
		Facts: Facts{
			Finding: FoundRejoin, Request: t.Request, Members: members, Assigned: observation.SortedIDs(t.assigned),
		},
	}
}
