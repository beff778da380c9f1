// Package place tells on which Nodes the members of an etcd cluster may be. Of returns every place
// with the sources that name it. Each part of Holdfast names the sources on which it acts.
//
// All functions are pure.
package place

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A Source is a set of sources that place a member on a Node.
type Source uint16

// The sources. A list is that of an observer, and has the member at an address of the Node.
const (
	// Bound: a binding names this Node.
	Bound Source = 1 << iota
	// Name: a binding names an earlier Node of this name. Its machine may have registered this Node.
	Name
	// NameGivenUp: like Name, but a grant gives the member up, so it counts as lost in any case.
	NameGivenUp
	// Announced: the Node announces the member.
	Announced
	// Own: the node's own agent reports the member.
	Own
	// Granted: a grant for this Node names the member.
	Granted
	// Left: NameGivenUp or Granted, but no list has the member any more.
	Left
	// OwnLeft: like Own, but the agent has found none since, or no list has the member any more.
	OwnLeft
	// TwoLists: the lists of two Nodes have the member, which is not located.
	TwoLists
	// OneList: one list has the member, which is not located. Members are bound to several Nodes.
	OneList
	// LocatedTwoLists: like TwoLists, but a binding shows where the member runs.
	LocatedTwoLists
	// WeakList: one list has the member, which is located, or all bindings are to one Node. A worker
	// can found such a cluster.
	WeakList
	// AnyList: a confirmed list, however old, has the member, which is not located.
	AnyList
)

// The sources on which each part of Holdfast acts. docs/verdict.md has the same table.
const (
	// Review: the request is decided for the cluster. The claim of one other Node is never sufficient,
	// so a Node can involve only itself and the leader.
	Review = Bound | Name | NameGivenUp | Announced | Granted | Left | TwoLists | LocatedTwoLists
	// Override: the same with a break-glass override, which only adds a grant.
	Override = Review | OneList | WeakList
	// Target: the member is on the node of the request, whatever its addresses are.
	Target = Bound | Name | NameGivenUp | Announced | Own | Granted | Left | OwnLeft
	// Verified: the member explains a server on the Node that has never identified itself.
	Verified = Bound | TwoLists
	// Unlabelled: the Node is kept while it has no label. UnlabelledSilent: the same until its agent
	// has reported whether it found a member.
	Unlabelled       = Bound | Name | Announced | Own | Granted | TwoLists
	UnlabelledSilent = Unlabelled | NameGivenUp | OneList
	// Label: the leader sets the label.
	Label = Bound | Granted | TwoLists
	// GuardPod: the Node has a guard pod.
	GuardPod = Bound | Announced
	// Lost: a member that is not located is lost with the Node. It is also lost by its binding and by
	// grants.
	Lost = Announced | AnyList
)

// A Place is a Node on which a member may be.
type Place struct {
	Member v1alpha1.MemberID
	Node   string
	UID    types.UID
	By     Source
}

// Of returns the places of the cluster's members on these Nodes, sorted by member and Node.
func Of(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []Place {
	placing, current, found := Lists(c), currentLists(c), map[Place]Source{}
	hasLeft := func(id v1alpha1.MemberID) bool { return observation.HasLeftLists(c, current, id) }
	for _, n := range nodes {
		add := func(id v1alpha1.MemberID, by Source) { found[Place{Member: id, Node: n.Node, UID: n.UID}] |= by }
		for _, b := range c.Spec.Members {
			switch {
			case b.NodeUID == n.UID:
				add(b.MemberID, Bound)
			case b.Node != n.Node:
			case !observation.HasGrant(c, b):
				add(b.MemberID, Name)
			case observation.IsListedByAny(placing, b.MemberID):
				add(b.MemberID, NameGivenUp)
			default:
				add(b.MemberID, Left)
			}
		}
		for _, a := range n.Announced {
			if a.Cluster == observation.ClusterIDOf(c) {
				add(a.Member, Announced)
			}
		}
		reported := map[v1alpha1.MemberID]bool{}
		for _, o := range c.Observations {
			isOwn := o.Node == n.Node && o.NodeUID == n.UID && o.LocalMember != "" && observation.IsValid(o)
			switch {
			case !isOwn:
			case o.NoMember:
				add(o.LocalMember, OwnLeft)
			default:
				reported[o.LocalMember] = true
				add(o.LocalMember, pick(hasLeft(o.LocalMember), OwnLeft, Own))
			}
		}
		for _, g := range c.Spec.Grants {
			if g.NodeUID != n.UID {
				continue
			}
			for _, id := range g.Members {
				add(id, pick(!reported[id] && hasLeft(id), Left, Granted))
			}
		}
	}
	addLists(found, c, nodes, placing)
	places := make([]Place, 0, len(found))
	for p, by := range found {
		p.By = by
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Node, b.Node), cmp.Compare(a.UID, b.UID))
	})
	return places
}

func pick(isFirst bool, first, second Source) Source {
	if isFirst {
		return first
	}
	return second
}

func addLists(
	found map[Place]Source, c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode, placing []v1alpha1.Observation,
) {
	isAlone := !slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.NodeUID != c.Spec.Members[0].NodeUID
	})
	for _, o := range placing {
		for _, m := range o.Members {
			isLocated := observation.IsLocated(c, m.ID)
			for _, n := range observation.NodesAt(m, nodes) {
				p := Place{Member: m.ID, Node: n.Node, UID: n.UID}
				if found[p]&(OneList|WeakList) != 0 {
					found[p] |= pick(isLocated, LocatedTwoLists, TwoLists)
				}
				found[p] |= pick(isLocated || isAlone, WeakList, OneList)
			}
		}
	}
	for _, id := range observation.Unlocated(c) {
		for _, o := range observation.ListsWith(c, id) {
			m, _ := observation.FindMember(o, id)
			for _, n := range observation.NodesAt(m, nodes) {
				found[Place{Member: id, Node: n.Node, UID: n.UID}] |= AnyList
			}
		}
	}
}

// Keep returns the sources by which a guard pod stays, and the Machine of the Node has the hook.
func Keep(n *corev1.Node) Source {
	if observation.HasReported(n) {
		return Bound
	}
	return Bound | Name | NameGivenUp | Left
}

// On returns the places on these Nodes.
func On(c *v1alpha1.EtcdCluster, nodes ...*corev1.Node) []Place {
	all := make([]observation.AnnouncingNode, len(nodes))
	for i, node := range nodes {
		all[i] = observation.NodeOf(node)
	}
	return Of(c, all)
}

// Members returns, sorted, the members of the places of one Node that one of the sources shows.
func Members(places []Place, by Source) (found []v1alpha1.MemberID) {
	for _, p := range places {
		if p.By&by != 0 {
			found = append(found, p.Member)
		}
	}
	return found
}

// Lists returns the lists that show which members may run at an address: the current ones, or the
// last ones that the observers know if no confirmed list answers the last probe request. While etcd
// has no leader, no list is confirmed, and a member that no Node announces would be on no list, or
// only on those that are older than it (docs/verdict.md, F89).
func Lists(c *v1alpha1.EtcdCluster) []v1alpha1.Observation {
	isAnswer := func(o v1alpha1.Observation) bool { return observation.IsAnswer(o, []string{c.Spec.Nonce}) }
	if lists := currentLists(c); slices.ContainsFunc(lists, isAnswer) {
		return lists
	}
	return observation.Accepted(c)
}

// currentLists returns the confirmed lists of observers. If two of them answered the last
// probe request, the older lists of the others are not among them.
func currentLists(c *v1alpha1.EtcdCluster) []v1alpha1.Observation {
	latest := observation.Confirmed(observation.AcceptedWithNonce(c, []string{c.Spec.Nonce}))
	if len(latest) > 1 {
		return latest
	}
	return observation.Confirmed(observation.Accepted(c))
}
