package protect

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// claims are the nodes of n members, each announcing its own.
func claims(n int) []NodeClaim {
	var all []NodeClaim
	for i := range n {
		all = append(all, NodeClaim{Node: node(i), UID: uid(i), Addresses: []string{address(i)}, Announced: []MemberRef{{clusterX, id(i)}}})
	}
	return all
}

func (w *world) neverBound() *world {
	w.Cluster.Spec.Members = nil
	return w
}

func (w *world) urls(i int, urls ...string) *world {
	return w.everywhere(i, func(m *v1alpha1.MemberStatus) { m.PeerURLs, m.ClientURLs = urls, nil })
}

func TestBind(t *testing.T) {
	worker := NodeClaim{Node: "worker", UID: "uw", Addresses: []string{"10.0.0.99"}, Announced: []MemberRef{{clusterX, "a"}}}
	reborn := claims(3)
	reborn[0].UID = "u1-again"
	for name, c := range map[string]struct {
		world   *world
		claims  []NodeClaim
		want    map[v1alpha1.MemberID]types.UID
		refused []string
	}{
		"a new cluster": {
			world: voters(3).neverBound(), claims: claims(3),
			want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"a new cluster, of which one claimant has a list": {
			world: voters(3).neverBound().blind(0, 1), claims: claims(3),
			refused: []string{"of 3 members 1 are claimed with the same list", "w2", "w3"},
		},
		"a new cluster that nobody lists": {
			world: voters(3).neverBound().blind(0, 1, 2), claims: claims(1),
			refused: []string{"node w1 announces member a of etcd cluster cdf818194e3a8c32, and is not bound to it: no confirmed member list of an observer has it"},
		},
		"a new cluster with lists that no quorum confirmed": {
			world: voters(1).neverBound().unconfirmed(0), claims: claims(1), refused: []string{"no confirmed member list of an observer has it"},
		},
		"a new cluster, listed by a Node that announces nothing": {
			world: voters(3).neverBound().blind(0, 1), claims: claims(2), refused: []string{"w1 announces", "w2 announces"},
		},
		"nothing to change": {
			world: voters(3), claims: claims(3), want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"another Node claims a member that is bound to one which exists": {
			world: voters(3), claims: append(claims(3), worker), want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
			refused: []string{"node worker announces member a of etcd cluster cdf818194e3a8c32, and is not bound to it: it is bound to node w1, which exists"},
		},
		"another Node claims it from afar": {
			world: voters(3).unbound(0), claims: append(claims(3)[1:], NodeClaim{Node: "w1", UID: "u1", Addresses: []string{address(0)}}, worker),
			want: map[v1alpha1.MemberID]types.UID{"b": "u2", "c": "u3"}, refused: []string{"its URLs name an address of node w1"},
		},
		"another Node has forged the address": {
			world: voters(3).unbound(0), claims: append(claims(3), NodeClaim{Node: "worker", UID: "uw", Addresses: []string{address(0)}, Announced: []MemberRef{{clusterX, "a"}}}),
			want: map[v1alpha1.MemberID]types.UID{"b": "u2", "c": "u3"}, refused: []string{"its URLs name addresses of several Nodes", "its URLs name addresses of several Nodes"},
		},
		"addresses that are no Node's, listed by an observer": {
			world: voters(3).unbound(0).urls(0, "https://192.168.7.1:2380"), claims: claims(3),
			want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"127.0.0.1, listed by an observer": {
			world: voters(3).unbound(0).urls(0, "https://127.0.0.1:2380"), claims: claims(3),
			want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"addresses that are no Node's, claimed twice": {
			world: voters(3).unbound(0).urls(0, "https://192.168.7.1:2380"), claims: append(claims(3), worker),
			want: map[v1alpha1.MemberID]types.UID{"b": "u2", "c": "u3"}, refused: []string{"several Nodes announce it", "several Nodes announce it"},
		},
		"a member that no observer lists": {
			world: voters(3), claims: append(claims(3), NodeClaim{Node: "worker", UID: "uw", Announced: []MemberRef{{clusterX, "f"}}}),
			want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"a member of another cluster": {
			world: voters(3).unbound(0), claims: append(claims(3)[1:], NodeClaim{Node: "w1", UID: "u1", Addresses: []string{address(0)}, Announced: []MemberRef{{"abc", "a"}}}),
			want: map[v1alpha1.MemberID]types.UID{"b": "u2", "c": "u3"},
		},
		"the Node is gone and nobody claims: a tombstone": {
			world: voters(3), claims: claims(3)[1:], want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"the Node registered anew, and a grant says so": {
			world: voters(3).granted(0), claims: reborn, want: map[v1alpha1.MemberID]types.UID{"a": "u1-again", "b": "u2", "c": "u3"},
		},
		"the Node registered anew, without a grant": {
			world: voters(3), claims: reborn, want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
			refused: []string{"its node w1 is gone, and no grant says so yet"},
		},
		"left every list": {
			world: voters(3).removed(0), claims: claims(3), want: map[v1alpha1.MemberID]types.UID{"b": "u2", "c": "u3"},
		},
		"left one list of three": {
			world: voters(3).removedFrom(1, 0), claims: claims(3), want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"left the list of a silent observer": {
			world: voters(3).removed(0).silent(0, 1, 2), claims: claims(3), want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
		"left a list that no quorum confirmed": {
			world: voters(3).removed(0).unconfirmed(0, 1, 2), claims: claims(3), want: map[v1alpha1.MemberID]types.UID{"a": "u1", "b": "u2", "c": "u3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.world.Cluster.DeepCopy()
			bindings, refused := Bind(c.world.Cluster, c.claims, c.world.Asked)
			got := map[v1alpha1.MemberID]types.UID{}
			for _, b := range bindings {
				got[b.MemberID] = b.NodeUID
			}
			if c.want == nil {
				c.want = map[v1alpha1.MemberID]types.UID{}
			}
			require.Equal(t, c.want, got)
			require.Len(t, refused, len(c.refused), "%q", refused)
			for i, words := range c.refused {
				require.Contains(t, refused[i], words)
			}
			require.Equal(t, before, c.world.Cluster, "the cluster that was given is left alone")
		})
	}
}

func TestTombstones(t *testing.T) {
	gone := func(n *NodeState) { n.UID = "" }
	require.Empty(t, Tombstones(voters(3).View))
	for name, c := range map[string]struct {
		world *world
		want  []v1alpha1.Grant
	}{
		"gone":            {voters(3).state(1, gone), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}}},
		"registered anew": {voters(3).state(1, func(n *NodeState) { n.UID = "u2-again" }), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}}},
		"not read":        {voters(3).state(1, func(n *NodeState) { *n = NodeState{} }), nil},
		"being deleted":   {voters(3).state(1, func(n *NodeState) { n.Deleting = true }), nil},
		"granted":         {voters(3).state(1, gone).granted(1), nil},
		"two members":     {voters(3).rebound(2, 1).state(1, gone), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b", "c")}}},
		"granted for one of two members": {
			voters(3).rebound(2, 1).state(1, gone).granted(1),
			[]v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b", "c"), User: "alice", Time: grantFor(1).Time}},
		},
		"gone, and its member had been removed": {voters(3).state(1, gone).removed(1).silent(1), nil},
		"gone, and one list lacks its member":   {voters(3).state(1, gone).removedFrom(0, 1), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}}},
		"gone, and one voice alone says that its member was removed": {
			voters(3).state(1, gone).removed(1).silent(1, 2), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}},
		},
		"gone, and old lists lack its member": {
			voters(3).state(1, gone).removed(1).silent(0, 1, 2), []v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}},
		},
		"two nodes": {
			voters(3).state(2, gone).state(1, gone),
			[]v1alpha1.Grant{{NodeUID: "u2", Node: "w2", Members: ids("b")}, {NodeUID: "u3", Node: "w3", Members: ids("c")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.world.Cluster.DeepCopy()
			require.Equal(t, c.want, Tombstones(c.world.View))
			require.Equal(t, before, c.world.Cluster)
		})
	}
}

func TestF12AHostThatStaysIsSettledByHand(t *testing.T) {
	w := voters(3).state(0, func(n *NodeState) { n.UID = "" }).granted(0)
	refuses(t, w, deletion(1), "not before 2026-05-01T12:01:00Z, and only if etcd1 (a) lives on, there or on another machine that stays: kubectl annotate --overwrite etcdcluster cdf818194e3a8c32 holdfast.dev/settle=u1")
	grants, bindings, ok := SettledByHand(w.Cluster, "u1", w.Nodes)
	require.True(t, ok)
	w.Cluster.Spec.Grants, w.Cluster.Spec.Members = grants, bindings
	require.Empty(t, Tombstones(w.View), "the grant does not come back")
	allows(t, w, deletion(1))

	lives := voters(3).granted(0)
	_, bindings, ok = SettledByHand(lives.Cluster, "u1", lives.Nodes)
	require.True(t, ok)
	require.Len(t, bindings, 3, "the binding of a Node that exists stays")
	lives.state(0, func(n *NodeState) { *n = NodeState{} })
	_, bindings, _ = SettledByHand(lives.Cluster, "u1", lives.Nodes)
	require.Len(t, bindings, 3, "so does that of one that could not be read")
	_, _, ok = SettledByHand(lives.Cluster, "u2", lives.Nodes)
	require.False(t, ok, "no such grant")
}
