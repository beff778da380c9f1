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
// may run on every Node that has one of its addresses in a confirmed list. The result makes no Node
// an observer. It means only that the member is lost if the Node is. The argument contains all
// Nodes; their announcements do not matter.
func PossibleNodes(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, p := range place.Of(c, nodes) {
		if p.By&place.Lost != 0 {
			found = append(found, v1alpha1.Binding{MemberID: p.Member, Node: p.Node, NodeUID: p.UID})
		}
	}
	return found
}

// lossOf returns why the member counts as lost: a grant names it or its Node, or its Node is gone
// or about to go. A member that is not located is lost with each Node where it may run. The result
// is the zero value if the member is not lost.
func (s Snapshot) lossOf(id v1alpha1.MemberID) Cause {
	for _, g := range s.Cluster.Spec.Grants {
		switch s.giveUpOf(id, g) {
		case givenUpWithNode:
			return Cause{Problem: Granted, Node: s.Bindings[id].Node, Grant: &g}
		case givenUpWithMachine:
			return Cause{Problem: Rejoined, Node: g.Node, Grant: &g}
		case perhapsGivenUp:
			return Cause{Problem: PerhapsRejoined, Node: g.Node, Grant: &g}
		case notGivenUp:
		}
	}
	if loss := s.lossByOthers(id); loss.Problem != NoProblem {
		return loss
	}
	for _, b := range s.nodesOf(id) {
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
	for _, c := range s.others {
		for _, g := range withoutVoid(c, s.Nodes).Spec.Grants {
			isOn := func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID }
			if c.Name != s.Cluster.Name && slices.ContainsFunc(s.nodesOf(id), isOn) {
				return Cause{Problem: GrantedElsewhere, Node: g.Node, Grant: &g, Cluster: observation.ClusterIDOf(c)}
			}
		}
	}
	return Cause{}
}

// awayNode returns the Node of the member that is away for a while, and its mark. It returns an
// empty Node if there is none.
func (s Snapshot) awayNode(id v1alpha1.MemberID) (node string, mark departure.Mark) {
	for _, b := range s.nodesOf(id) {
		if mark := s.Nodes[b.Node].Departure; mark.Class == departure.ForAWhile {
			return b.Node, mark
		}
	}
	return "", departure.Mark{}
}

// nodesOf returns the Node that the member is bound to, and the Nodes where it may run if it is not
// located.
func (s Snapshot) nodesOf(id v1alpha1.MemberID) []v1alpha1.Binding {
	possible := slices.DeleteFunc(slices.Clone(s.possibleNodes), func(b v1alpha1.Binding) bool { return b.MemberID != id })
	if b, bound := s.Bindings[id]; bound {
		return append([]v1alpha1.Binding{b}, possible...)
	}
	return possible
}

// A giveUp is how a grant gives up a member. Each one except notGivenUp makes the member lost, and
// each one except perhapsGivenUp prolongs the grant.
type giveUp int

const (
	notGivenUp giveUp = iota
	// givenUpWithNode: the grant names the member, or is for a Node where it may run.
	givenUpWithNode
	// givenUpWithMachine: the member joined again on the machine. It is on a Node that this machine
	// has registered under another name, or on a younger Node of the same name. Or it is at an address
	// of the machine, and no binding shows that it runs elsewhere: etcd may start before the kubelet
	// registers. The claim of another Node alone does not show that.
	givenUpWithMachine
	// perhapsGivenUp: the addresses of the machine are not known, because the Node was gone and no
	// list had its members when the grant was written. Then every member may be there that no binding
	// shows elsewhere, except one that is known to be another server than those of the grant.
	perhapsGivenUp
)

// giveUpOf returns how the grant gives up the member.
func (s Snapshot) giveUpOf(id v1alpha1.MemberID, g v1alpha1.Grant) giveUp {
	n, at := s.Nodes[g.Node], s.nodesOf(id)
	hosts, isUnlocated := s.unlocatedHosts[id]
	isNode := func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID }
	isSame := func(b v1alpha1.Binding) bool { return s.isSameMachine(b, g) }
	isYounger := func(b v1alpha1.Binding) bool { return b.Node == g.Node && b.NodeUID == n.UID }
	isAtMachine := func(host string) bool { return slices.Contains(g.Addresses, host) }
	isDistinct := func(d v1alpha1.DistinctServer) bool {
		return slices.Contains(g.Members, d.MemberID) && slices.Contains(d.Others, id)
	}
	switch {
	case slices.Contains(g.Members, id), slices.ContainsFunc(at, isNode):
		return givenUpWithNode
	case slices.ContainsFunc(at, isSame):
		return givenUpWithMachine
	case IsReplaced(g, n):
		return notGivenUp
	case slices.ContainsFunc(at, isYounger), slices.ContainsFunc(hosts, isAtMachine):
		return givenUpWithMachine
	case isUnlocated && len(g.Addresses) == 0 && !slices.ContainsFunc(s.Cluster.Spec.DistinctServers, isDistinct):
		return perhapsGivenUp
	}
	return notGivenUp
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
	return n.Known && n.UID != "" && n.UID != g.NodeUID && machine.IsOther(n.Machine)
}

// unlocatedHosts returns the hosts of the peer URLs of the members that are not located, according
// to all confirmed lists of observers. Only grants need them.
func unlocatedHosts(c *v1alpha1.EtcdCluster) map[v1alpha1.MemberID][]string {
	if len(c.Spec.Grants) == 0 {
		return nil
	}
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
		found[id] = how == givenUpWithNode || how == givenUpWithMachine
	}
	return observation.SortedIDs(found)
}

// isSameMachine reports whether the machine of a grant, whose Node is gone, has registered this
// Node too. An equal provider ID shows that, unless the hardware is another one: k3s makes the ID
// from the name.
func (s Snapshot) isSameMachine(b v1alpha1.Binding, g v1alpha1.Grant) bool {
	n := s.Nodes[b.Node]
	isGone := s.Nodes[g.Node].UID != g.NodeUID
	return isGone && n.UID == b.NodeUID && g.ProviderID != "" && n.ProviderID == g.ProviderID &&
		!observation.NewMachine(g.MachineID, g.SystemUUID).IsOther(n.Machine)
}
