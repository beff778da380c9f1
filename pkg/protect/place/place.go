// Package place tells on which Nodes the members of an etcd cluster may be. Of returns every place
// with the sources that name it. A Use names the sources on which one part of Holdfast acts.
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

// The sources.
const (
	// Bound: a binding names this Node.
	Bound Source = 1 << iota
	// Name: a binding names an earlier Node of this name. Its machine may have registered this Node.
	Name
	// NameGivenUp: like Name, but a grant gives the member up, so it counts as lost in any case.
	NameGivenUp
	// NameLeft: like NameGivenUp, and no list has the member any more.
	NameLeft
	// Announced: the Node announces the member.
	Announced
	// Own: the node's own agent reports the member.
	Own
	// OwnEarlier: like Own, but the agent has found none since, or the member has left its cluster.
	OwnEarlier
	// Granted: a grant for this Node names the member.
	Granted
	// GrantedLeft: like Granted, but the member has left its cluster.
	GrantedLeft
	// OneList: the list of one observer has the member at an address of the Node. Members are bound to
	// several Nodes.
	OneList
	// SoleList: like OneList, but all bindings are to one Node. A worker can found such a cluster.
	SoleList
	// TwoLists: the lists of observers on two Nodes have the member at an address of the Node.
	TwoLists
	// AnyList: a confirmed list, however old, has the member at an address of the Node, and the member
	// is not located.
	AnyList
)

// ByBinding are the sources that rest on a binding.
const ByBinding = Bound | Name | NameGivenUp | NameLeft

// A Place is a Node on which a member may be.
type Place struct {
	Member v1alpha1.MemberID
	Node   string
	UID    types.UID
	By     Source
	// IsLocated means that a binding shows where the member runs, on whichever Node.
	IsLocated bool
}

// Of returns the places of the cluster's members on these Nodes, sorted by member and Node.
func Of(c *v1alpha1.EtcdCluster, nodes []observation.AnnouncingNode) []Place {
	s := sources{EtcdCluster: c, placing: Lists(c), found: map[Place]Source{}}
	for _, n := range nodes {
		s.addBindings(n)
		s.addAnnouncement(n)
		s.addReport(n)
		s.addGrants(n)
	}
	s.addLists(nodes)
	places := make([]Place, 0, len(s.found))
	for p, by := range s.found {
		p.By, p.IsLocated = s.withoutLeft(p.Member, by), observation.IsLocated(c, p.Member)
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.Node, b.Node), cmp.Compare(a.UID, b.UID))
	})
	return places
}

// On returns the places on one Node. An announcement that cannot be parsed claims nothing.
func On(c *v1alpha1.EtcdCluster, node *corev1.Node) []Place {
	n := observation.NodeOf(node)
	n.Announced, _ = observation.AnnouncedOn(node)
	return Of(c, []observation.AnnouncingNode{n})
}

// sources collects the sources of one cluster.
type sources struct {
	*v1alpha1.EtcdCluster
	placing []v1alpha1.Observation
	// found has the sources of each place. The keys have none.
	found map[Place]Source
}

func (s sources) add(id v1alpha1.MemberID, n observation.AnnouncingNode, by Source) {
	s.found[Place{Member: id, Node: n.Node, UID: n.UID}] |= by
}

func (s sources) addBindings(n observation.AnnouncingNode) {
	for _, b := range s.Spec.Members {
		switch {
		case b.NodeUID == n.UID && n.UID != "":
			s.add(b.MemberID, n, Bound)
		case b.Node != n.Node:
		case !observation.HasGrant(s.EtcdCluster, b):
			s.add(b.MemberID, n, Name)
		case observation.IsListedByAny(s.placing, b.MemberID):
			s.add(b.MemberID, n, NameGivenUp)
		default:
			s.add(b.MemberID, n, NameLeft)
		}
	}
}

func (s sources) addAnnouncement(n observation.AnnouncingNode) {
	for _, a := range n.Announced {
		if a.Cluster == observation.ClusterIDOf(s.EtcdCluster) {
			s.add(a.Member, n, Announced)
		}
	}
}

func (s sources) addReport(n observation.AnnouncingNode) {
	for _, o := range s.Observations {
		switch {
		case o.Node != n.Node || o.NodeUID != n.UID || n.UID == "" || o.LocalMember == "" || !observation.IsValid(o):
		case o.NoMember:
			s.add(o.LocalMember, n, OwnEarlier)
		default:
			s.add(o.LocalMember, n, Own)
		}
	}
}

func (s sources) addGrants(n observation.AnnouncingNode) {
	for _, g := range s.Spec.Grants {
		for _, id := range g.Members {
			if g.NodeUID == n.UID && n.UID != "" {
				s.add(id, n, Granted)
			}
		}
	}
}

// withoutLeft replaces the sources that do not count for a member that has left its cluster, unless
// a grant and the agent agree. The older list of an observer that has become silent does not count.
func (s sources) withoutLeft(id v1alpha1.MemberID, by Source) Source {
	if by&(Own|Granted) == 0 || by&(Own|Granted) == Own|Granted ||
		!observation.HasLeftLists(s.EtcdCluster, currentLists(s.EtcdCluster), id) {
		return by
	}
	if by&Own != 0 {
		return by&^Own | OwnEarlier
	}
	return by&^Granted | GrantedLeft
}

func (s sources) addLists(nodes []observation.AnnouncingNode) {
	one := SoleList
	if slices.ContainsFunc(s.Spec.Members, func(b v1alpha1.Binding) bool { return b.NodeUID != s.Spec.Members[0].NodeUID }) {
		one = OneList
	}
	for _, o := range s.placing {
		for _, m := range o.Members {
			for _, n := range observation.NodesAt(m, nodes) {
				by := one
				if s.found[Place{Member: m.ID, Node: n.Node, UID: n.UID}]&one != 0 {
					by = TwoLists
				}
				s.add(m.ID, n, by)
			}
		}
	}
	for _, id := range observation.Unlocated(s.EtcdCluster) {
		for _, o := range observation.ListsWith(s.EtcdCluster, id) {
			m, _ := observation.FindMember(o, id)
			for _, n := range observation.NodesAt(m, nodes) {
				s.add(id, n, AnyList)
			}
		}
	}
}

// Lists returns the lists that show which members may run at an address: the current ones,
// or the last ones that the observers know if no confirmed list answers the last probe request.
// While etcd has no leader, no list is confirmed, and a member that no Node announces would be on
// no list, or only on those that are older than it (docs/verdict.md, F89).
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
