package quorum

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// PossibleNodes returns the Nodes where the members may run that are not located, sorted. A member
// may run on every Node that has one of its addresses in a confirmed list, and on every Node that
// announces it, which has the basis Claim in the result. The result makes no Node an observer. It
// means only that the member is lost if the Node is. The argument contains all Nodes.
func PossibleNodes(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	unlocated := observation.Unlocated(c)
	for _, p := range place.Of(c, nodes) {
		if p.By&place.Lost == 0 || !slices.Contains(unlocated, p.Member) {
			continue
		}
		b := v1alpha1.Binding{MemberID: p.Member, Node: p.Node, NodeUID: p.UID}
		if p.By&place.AnyList == 0 {
			b.Basis = v1alpha1.BasisClaim
		}
		found = append(found, b)
	}
	return found
}

// lossOf returns why the member counts as lost: a grant names it or its Node, or its Node is gone
// or about to go. A member that is not located is lost with each Node where it may run. The result
// is the zero value if the member is not lost.
func (s Snapshot) lossOf(id v1alpha1.MemberID) Cause {
	for _, g := range s.Cluster.Spec.Grants {
		switch problem := s.giveUpOf(id, g); problem {
		case NoProblem:
		case Granted:
			return Cause{Problem: problem, Node: s.Bindings[id].Node, Grant: &g}
		default:
			return Cause{Problem: problem, Node: g.Node, Grant: &g}
		}
	}
	if loss := s.lossByOthers(id); loss.Problem != NoProblem {
		return loss
	}
	for _, b := range s.nodesOf[id] {
		n := s.Nodes[b.Node]
		if problem := NodeProblem(b.NodeUID, n); problem != NoProblem {
			return Cause{Problem: problem, Node: b.Node, Mark: n.Departure}
		}
	}
	return Cause{}
}

// lossByOthers returns why the member counts as lost because of another etcd cluster: a grant there
// is for a Node where the member runs or may run.
func (s Snapshot) lossByOthers(id v1alpha1.MemberID) Cause {
	for _, c := range s.Others {
		for _, g := range withoutVoid(c, s.Nodes).Spec.Grants {
			isOn := func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID }
			if c.Name != s.Cluster.Name && slices.ContainsFunc(s.nodesOf[id], isOn) {
				return Cause{Problem: GrantedElsewhere, Node: g.Node, Grant: &g, Cluster: observation.ClusterIDOf(c)}
			}
		}
	}
	return Cause{}
}

// absenceOf returns why the member counts as lost or as away for a while, the zero value if it does
// neither. No wait helps a broken voter, so it is not away.
func (s Snapshot) absenceOf(m v1alpha1.MemberStatus) Cause {
	loss, isBroken := s.lossOf(m.ID), !m.Learner && (m.Name == "" || s.Corrupt[m.ID])
	if loss.Problem != NoProblem || isBroken {
		return loss
	}
	for _, b := range s.nodesOf[m.ID] {
		if mark := s.Nodes[b.Node].Departure; mark.Class == departure.ForAWhile {
			return Cause{Problem: NodeAway, Node: b.Node, Mark: mark}
		}
	}
	return Cause{}
}

// giveUpOf returns how the grant gives up the member: each problem but NoProblem makes it lost, and
// each one but PerhapsRejoined prolongs the grant.
func (s Snapshot) giveUpOf(id v1alpha1.MemberID, g v1alpha1.Grant) Problem {
	n, at := s.Nodes[g.Node], s.nodesOf[id]
	hosts, isUnlocated := s.unlocatedHosts[id]
	isNode := func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID }
	isSame := func(b v1alpha1.Binding) bool { return s.isSameMachine(b, g) }
	isYounger := func(b v1alpha1.Binding) bool { return b.NodeUID == n.UID }
	isAtMachine := func(host string) bool { return slices.Contains(g.Addresses, host) }
	isDistinct := func(d v1alpha1.DistinctServer) bool {
		return slices.Contains(g.Members, d.MemberID) && slices.Contains(d.Others, id)
	}
	switch {
	case slices.Contains(g.Members, id), slices.ContainsFunc(at, isNode):
		return Granted
	case slices.ContainsFunc(at, isSame):
		return Rejoined
	case IsReplaced(g, n):
		return NoProblem
	case slices.ContainsFunc(at, isYounger), slices.ContainsFunc(hosts, isAtMachine):
		return Rejoined
	case isUnlocated && len(g.Addresses) == 0 && !slices.ContainsFunc(s.Cluster.Spec.DistinctServers, isDistinct):
		return PerhapsRejoined
	}
	return NoProblem
}

// NodeProblem returns why a member on the Node with this UID counts as lost.
func NodeProblem(uid types.UID, n observation.NodeState) Problem {
	switch {
	case !n.Known:
		return NodeUnread
	case n.UID == "":
		return NodeGone
	case n.UID != uid:
		return NodeReplaced
	case n.Deleting:
		return NodeDeleting
	case n.Departure.Class == departure.ForGood:
		return NodeLeaving
	}
	return NoProblem
}

// MachineAddresses returns the Addresses of a grant for the Node of these members. The members that
// no confirmed list contains add nothing.
func MachineAddresses(c *v1alpha1.EtcdCluster, ids []v1alpha1.MemberID, nodeAddresses []string) []string {
	var members []v1alpha1.MemberStatus
	for _, o := range observation.Confirmed(observation.Accepted(c)) {
		for _, m := range o.Members {
			if slices.Contains(ids, m.ID) {
				members = append(members, m)
			}
		}
	}
	return observation.MachineAddresses(members, nodeAddresses)
}

// IsReplaced reports whether a machine that is known to be different has registered a Node with the
// name of the grant's Node.
func IsReplaced(g v1alpha1.Grant, n observation.NodeState) bool {
	machine := observation.NewMachine(g.MachineID, g.SystemUUID)
	return n.UID != g.NodeUID && machine.IsOther(n.Machine)
}

// unlocatedHosts returns the hosts of the peer URLs of the members that are not located, according
// to all confirmed lists of observers.
func unlocatedHosts(c *v1alpha1.EtcdCluster) map[v1alpha1.MemberID][]string {
	found := map[v1alpha1.MemberID][]string{}
	for _, o := range observation.Confirmed(observation.Accepted(c)) {
		for _, m := range o.Members {
			if !observation.IsLocated(c, m.ID) {
				found[m.ID] = append(found[m.ID], observation.PeerHosts(m)...)
			}
		}
	}
	return found
}

// GivenUpBy returns, sorted, the members that are known to be lost with the Node or the machine of
// a grant. A member that only may be there does not prolong the grant.
func (s Snapshot) GivenUpBy(g v1alpha1.Grant) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, id := range slices.Concat(g.Members, slices.Collect(maps.Keys(s.Bindings)),
		slices.Collect(maps.Keys(s.unlocatedHosts))) {
		how := s.giveUpOf(id, g)
		found[id] = how == Granted || how == Rejoined
	}
	return observation.SortedIDs(found)
}

// isSameMachine reports whether the machine of a grant has registered this Node too. An equal
// provider ID shows that, unless the hardware is another one: k3s makes the ID from the name. The
// Node of a drain may still exist (F100).
func (s Snapshot) isSameMachine(b v1alpha1.Binding, g v1alpha1.Grant) bool {
	n := s.Nodes[b.Node]
	return n.UID == b.NodeUID && g.ProviderID != "" && n.ProviderID == g.ProviderID &&
		!observation.NewMachine(g.MachineID, g.SystemUUID).IsOther(n.Machine)
}
