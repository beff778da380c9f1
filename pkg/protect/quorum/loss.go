package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// How the predicates about one member and one grant include one another:
//
//	mayBeGivenUp = isGivenUp or mayHaveRejoined
//	isGivenUp    = isCovered or hasRejoined
//
// Each of them makes the member lost. Only isGivenUp prolongs the grant.

// PossibleNodes returns the Nodes where the members may run that are not located, sorted. A member
// may run on every Node that has one of its addresses in a confirmed list. The result makes no Node
// an observer. It means only that the member is lost if the Node is. The argument contains all
// Nodes; their announcements do not matter.
func PossibleNodes(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, id := range observation.Unlocated(c) {
		for _, o := range observation.ListsWith(c, id) {
			m, _ := observation.FindMember(o, id)
			for _, n := range observation.NodesAt(m, nodes) {
				found = append(found, v1alpha1.Binding{MemberID: m.ID, Node: n.Node, NodeUID: n.UID})
			}
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Binding) int {
		return cmp.Or(cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Node, b.Node))
	})
	return slices.Compact(found)
}

// A memberLoss is the reason why a member counts as lost. Without a reason, the member is not lost.
type memberLoss struct {
	problem healthProblem
	node    string
	reason  string
}

// lossOf returns why the member counts as lost: a grant names it or its Node, or its Node is gone
// or about to go. A member that is not located is lost with each Node where it may run.
func (s Snapshot) lossOf(id v1alpha1.MemberID) memberLoss {
	for _, g := range s.Cluster.Spec.Grants {
		switch {
		case s.isCovered(id, g):
			return memberLoss{problemNodeLost, s.Bindings[id].Node, describeGrant(g, "its node")}
		case s.hasRejoined(id, g):
			return memberLoss{problemMachineGivenUp, g.Node, describeRejoin(g)}
		case s.mayHaveRejoined(id, g):
			return memberLoss{problemMachineGivenUp, g.Node, describePossibleRejoin(g)}
		}
	}
	if loss := s.lossByOthers(id); loss.reason != "" {
		return loss
	}
	for _, b := range s.nodesOf(id) {
		n := s.Nodes[b.Node]
		if reason := LostReason(b.Node, b.NodeUID, n); reason != "" {
			problem := problemNodeLost
			if !n.Known {
				problem = problemNodeUnread
			}
			return memberLoss{problem, b.Node, reason}
		}
	}
	return memberLoss{}
}

// lossByOthers returns why the member counts as lost because of another etcd cluster: a grant there
// is for a Node where the member runs or may run.
func (s Snapshot) lossByOthers(id v1alpha1.MemberID) memberLoss {
	for _, c := range s.others {
		for _, g := range withoutVoid(c, s.Nodes).Spec.Grants {
			isOn := func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID }
			if c.Name != s.Cluster.Name && slices.ContainsFunc(s.nodesOf(id), isOn) {
				return memberLoss{problemNodeLost, g.Node, fmt.Sprintf("%s, which had a member of etcd cluster %s too",
					describeGrant(g, "its node"), observation.ClusterIDOf(c))}
			}
		}
	}
	return memberLoss{}
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

// mayBeGivenUp reports whether the member counts as lost because of the grant.
func (s Snapshot) mayBeGivenUp(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	return s.isGivenUp(id, g) || s.mayHaveRejoined(id, g)
}

// isGivenUp reports whether the member is known to be lost with the Node or the machine of the
// grant.
func (s Snapshot) isGivenUp(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	return s.isCovered(id, g) || s.hasRejoined(id, g)
}

// isCovered reports whether the grant names the member or is for its Node.
func (s Snapshot) isCovered(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	return slices.Contains(g.Members, id) ||
		slices.ContainsFunc(s.nodesOf(id), func(b v1alpha1.Binding) bool { return b.NodeUID == g.NodeUID })
}

// HasGrant reports whether a grant for the Node of the binding names the member.
func HasGrant(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool {
		return g.NodeUID == b.NodeUID && slices.Contains(g.Members, b.MemberID)
	})
}

// LostReason returns why a member on the Node with this UID counts as lost, or "" if it does not.
func LostReason(node string, uid types.UID, n observation.NodeState) string {
	switch {
	case !n.Known:
		return fmt.Sprintf("its node %s could not be read", node)
	case n.UID == "":
		return fmt.Sprintf("its node %s is gone", node)
	case n.UID != uid:
		return fmt.Sprintf("its node %s is gone; a different Node has the name now", node)
	case n.Deleting:
		return fmt.Sprintf("its node %s is being deleted", node)
	case n.Departure.Class == departure.ForGood:
		return fmt.Sprintf("its node %s %s (%s)", node, n.Departure.Says, n.Departure)
	}
	return ""
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
	for _, id := range g.Members {
		found[id] = true
	}
	for id := range s.Bindings {
		found[id] = s.isGivenUp(id, g)
	}
	for id := range s.unlocatedHosts {
		found[id] = s.isGivenUp(id, g)
	}
	return observation.SortedIDs(found)
}

// hasRejoined reports whether the member joined again on the machine that the grant gives up. It is
// then on a Node that this machine has registered under another name, or on a younger Node of the
// same name. Or it is at an address of the machine, and no binding shows that it runs elsewhere:
// etcd may start before the kubelet registers. The claim of another Node alone does not show that.
func (s Snapshot) hasRejoined(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	n := s.Nodes[g.Node]
	isSame := func(b v1alpha1.Binding) bool { return s.isSameMachine(b, g) }
	switch {
	case slices.ContainsFunc(s.nodesOf(id), isSame):
		return true
	case IsReplaced(g, n):
		return false
	}
	isOnYounger := func(b v1alpha1.Binding) bool {
		return b.Node == g.Node && b.NodeUID == n.UID // The grant names the members of its own Node.
	}
	isAtMachine := func(host string) bool { return slices.Contains(g.Addresses, host) }
	return slices.ContainsFunc(s.nodesOf(id), isOnYounger) || slices.ContainsFunc(s.unlocatedHosts[id], isAtMachine)
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

// mayHaveRejoined reports whether the member may have joined again on the machine of a grant that
// has no addresses. They are unknown if, when the grant was written, the Node was gone and no list
// had its members. Then every member may be there that no binding shows elsewhere, except a member
// that is known to be another server than those of the grant.
func (s Snapshot) mayHaveRejoined(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	_, isUnlocated := s.unlocatedHosts[id]
	isDistinct := func(d v1alpha1.DistinctServer) bool {
		return slices.Contains(g.Members, d.MemberID) && slices.Contains(d.Others, id)
	}
	return isUnlocated && len(g.Addresses) == 0 && !IsReplaced(g, s.Nodes[g.Node]) &&
		!slices.ContainsFunc(s.Cluster.Spec.DistinctServers, isDistinct)
}

// describeRejoin explains why a member that joined again counts as lost, and until when.
func describeRejoin(g v1alpha1.Grant) string {
	if IsDrainOnly(g) {
		return "it joined again on a machine that may still restart or go: " + describeGrant(g, "the machine's node")
	}
	return fmt.Sprintf("it joined again on a machine that may still be removed: %s; it counts again when the agent "+
		"of its node has proven it healthy for %s, not before %s", describeGrant(g, "the machine's earlier node"),
		ResolveMovedAfter, endOfRejoin(g))
}

// describePossibleRejoin explains why a member that may have joined again counts as lost, and until
// when.
func describePossibleRejoin(g v1alpha1.Grant) string {
	return fmt.Sprintf("no node is known to run it, and it may have joined again on a machine that may still be removed: "+
		"%s; it counts again as soon as a node announces it, otherwise not before %s",
		describeGrant(g, "the machine's earlier node"), endOfRejoin(g))
}

// endOfRejoin returns the earliest time at which a member that joined again counts.
func endOfRejoin(g v1alpha1.Grant) string {
	return LastOpened(g).Add(ResolveMovedAfter).UTC().Format(time.RFC3339)
}
