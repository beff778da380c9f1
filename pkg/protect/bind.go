package protect

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// NodeClaim is a Node as the leader sees it, with the members that its agent announces on it.
type NodeClaim struct {
	Node      string
	UID       types.UID
	Addresses []string
	Announced []MemberRef
	Deleting  bool
}

// Bind returns the bindings that the cluster should have next, sorted by member, and why each claim that was refused
// was. The claims are all Nodes, also those that announce nothing: addresses identify only if they are compared with
// everybody's.
//
// A binding makes a node an observer, whose word counts, so that a claim alone makes none: the member's URLs must name an
// address of that Node and of no other, or, if they name no Node's (127.0.0.1, an access address), a bound observer must
// list the member. In a cluster without bindings the claimants' own lists stand in for that (founding).
//
// The binding of a Node that exists is never overridden. That of a Node which is gone (a tombstone) passes to a valid
// claim of another Node once a grant names the member, so that what was on the old Node stays lost until the grant ends
// (Tombstones makes that grant). It passes only to a Node of the old one's name: names are the kubelets' own, while any
// agent can announce a member whose host is gone, and any kubelet write the address that nobody has any more into its own
// Node. A host that comes back under another name waits until an operator settles the grant, which ends the binding too. A
// binding goes only when the confirmed lists in answer to one of the nonces asked lack the member, and more than one Node
// says so, or nobody could contradict.
func Bind(c *v1alpha1.EtcdCluster, claims []NodeClaim, asked []string) (bindings []v1alpha1.Binding, refused []string) {
	b := binder{cluster: c, nodes: claims}
	b.lists, b.awaited = urlLists(c, claims)
	s := newSight(View{Cluster: c, Asked: asked, Nodes: statesOf(c, claims)})
	fresh := s.lists
	for _, old := range c.Spec.Members {
		if s.conclusive() && !listedByAny(fresh, old.MemberID) {
			continue
		}
		bindings = append(bindings, old)
	}
	for _, id := range b.claimed() {
		if len(fresh) > 0 && !listedByAny(fresh, id) {
			continue // it has left, and its agent's announcement is about to follow
		}
		i := slices.IndexFunc(bindings, func(old v1alpha1.Binding) bool { return old.MemberID == id })
		next, why := b.bind(id, bindings, i)
		refused = append(refused, why...)
		switch {
		case next == nil:
		case i < 0:
			bindings = append(bindings, *next)
		default:
			bindings[i] = *next
		}
	}
	slices.SortFunc(bindings, func(a, b v1alpha1.Binding) int { return cmp.Compare(a.MemberID, b.MemberID) })
	return bindings, refused
}

type binder struct {
	cluster *v1alpha1.EtcdCluster
	nodes   []NodeClaim
	lists   []v1alpha1.Observation
	// awaited says what a cluster without bindings waits for, empty if nothing.
	awaited string
}

// urlLists returns the lists that say where members live: those of bound observers, or, in a cluster without bindings,
// those that found it. Old ones count as well, since where a member lives does not go stale by silence.
func urlLists(c *v1alpha1.EtcdCluster, claims []NodeClaim) (lists []v1alpha1.Observation, awaited string) {
	if len(c.Spec.Members) > 0 {
		return confirmedOf(observers(c)), ""
	}
	return founding(c, claims)
}

// statesOf returns the states of the bound Nodes as far as claims tell: those that are not among them are gone.
func statesOf(c *v1alpha1.EtcdCluster, claims []NodeClaim) map[string]NodeState {
	states := map[string]NodeState{}
	for _, b := range c.Spec.Members {
		states[b.Node] = NodeState{Known: true}
	}
	for _, n := range claims {
		states[n.Node] = NodeState{Known: true, UID: n.UID, Deleting: n.Deleting}
	}
	return states
}

func (n NodeClaim) announces(c v1alpha1.ClusterID, m v1alpha1.MemberID) bool {
	return n.UID != "" && slices.Contains(n.Announced, MemberRef{Cluster: c, Member: m})
}

// claimed returns the members of this cluster that some Node announces, sorted.
func (b binder) claimed() []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, n := range b.nodes {
		for _, a := range n.Announced {
			if a.Cluster == clusterID(b.cluster) && n.UID != "" {
				found[a.Member] = true
			}
		}
	}
	return sorted(found)
}

// bind judges the claims to one member, whose binding is bindings[i], or which has none if i is negative.
func (b binder) bind(id v1alpha1.MemberID, bindings []v1alpha1.Binding, i int) (next *v1alpha1.Binding, refused []string) {
	var claimants []NodeClaim
	for _, n := range b.nodes {
		if n.announces(clusterID(b.cluster), id) && (i < 0 || bindings[i].NodeUID != n.UID) {
			claimants = append(claimants, n)
		}
	}
	refuse := func(why string) (*v1alpha1.Binding, []string) {
		for _, n := range claimants {
			refused = append(refused, fmt.Sprintf("node %s announces member %s of etcd cluster %s, and is not bound to it: %s", n.Node, id, clusterID(b.cluster), why))
		}
		return nil, refused
	}
	if len(claimants) == 0 {
		return nil, nil
	}
	if i >= 0 {
		if b.exists(bindings[i]) {
			return refuse(fmt.Sprintf("it is bound to node %s, which exists", bindings[i].Node))
		}
		if !granted(b.cluster, bindings[i]) {
			return refuse(fmt.Sprintf("its node %s is gone, and no grant says so yet", bindings[i].Node))
		}
		heir := slices.IndexFunc(claimants, func(n NodeClaim) bool { return n.Node == bindings[i].Node })
		if heir < 0 {
			return refuse(fmt.Sprintf("its node %s is gone: only a Node of that name can take it over, or any once the grant for UID %s is settled by hand (annotation %s)",
				bindings[i].Node, bindings[i].NodeUID, SettleAnnotation))
		}
		claimants = claimants[heir : heir+1]
	}
	at, isListed := b.livesOn(id)
	switch {
	case !isListed:
		return refuse("no confirmed member list of an observer has it" + b.awaited)
	case len(at) == 0 && len(claimants) > 1:
		return refuse("its URLs name no Node's address, and several Nodes announce it")
	case len(at) == 0:
	case len(at) > 1:
		return refuse("its URLs name addresses of several Nodes")
	default:
		mine := slices.IndexFunc(claimants, func(n NodeClaim) bool { return n.UID == at[0].UID })
		if mine < 0 {
			return refuse(fmt.Sprintf("its URLs name an address of node %s", at[0].Node))
		}
		claimants = claimants[mine : mine+1]
	}
	return &v1alpha1.Binding{MemberID: id, Node: claimants[0].Node, NodeUID: claimants[0].UID}, nil
}

// livesOn returns the Nodes of which one of the member's URLs names an address, by all lists that have the member.
func (b binder) livesOn(id v1alpha1.MemberID) (at []NodeClaim, isListed bool) {
	for _, o := range b.lists {
		m, found := listed(o, id)
		if !found {
			continue
		}
		isListed = true
		for _, n := range nodesAt(m, b.nodes) {
			if !slices.ContainsFunc(at, func(a NodeClaim) bool { return a.UID == n.UID }) {
				at = append(at, n)
			}
		}
	}
	return at, isListed
}

// nodesAt returns the Nodes of which one of the member's URLs names an address.
func nodesAt(m v1alpha1.MemberStatus, nodes []NodeClaim) []NodeClaim {
	return slices.DeleteFunc(slices.Clone(nodes), func(n NodeClaim) bool { return !livesAt(m, n.Addresses) })
}

func (b binder) exists(old v1alpha1.Binding) bool {
	return slices.ContainsFunc(b.nodes, func(n NodeClaim) bool { return n.Node == old.Node && n.UID == old.NodeUID })
}

func granted(c *v1alpha1.EtcdCluster, b v1alpha1.Binding) bool {
	return slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool {
		return g.NodeUID == b.NodeUID && slices.Contains(g.Members, b.MemberID)
	})
}
