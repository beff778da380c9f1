package protect

import (
	"encoding/json"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// FuzzDecide decides about any deletion from any EtcdCluster that JSON can say, as if no schema stood before it.
func FuzzDecide(f *testing.F) {
	add := func(w *world, r Request) {
		cluster, err := json.Marshal(w.Cluster)
		require.NoError(f, err)
		request, err := json.Marshal(r)
		require.NoError(f, err)
		nodes, err := json.Marshal(w.Nodes)
		require.NoError(f, err)
		f.Add(cluster, request, nodes, asked, 0)
	}
	add(voters(1), deletion(0))
	add(voters(3).granted(1), deletion(0))
	add(voters(3).dead(1).silent(2), deletion(1))
	add(voters(3).state(2, goneNode).blind(0), deletion(2))
	add(voters(4).learner(3).unbound(0).twice(1, func(m *v1alpha1.MemberStatus) { m.Healthy = false }), deletion(0))
	add(voters(5).rebound(1, 0).alarmsUnknown(0), Request{Node: "w9", UID: "u9", Labelled: true, Addresses: []string{address(2)}})
	f.Fuzz(func(t *testing.T, cluster, request, nodes []byte, nonce string, tolerance int) {
		v, r := View{Cluster: &v1alpha1.EtcdCluster{}, Asked: []string{nonce}, MinRemainingTolerance: tolerance % 4}, Request{}
		if len(cluster) > 1<<16 || json.Unmarshal(cluster, v.Cluster) != nil || json.Unmarshal(request, &r) != nil || json.Unmarshal(nodes, &v.Nodes) != nil {
			return
		}
		examine(t, v, r)
	})
}

// FuzzDecideWorlds does the same with objects that are made of few names, so that they have something to do with each
// other: every byte is a choice.
func FuzzDecideWorlds(f *testing.F) {
	f.Add([]byte("\x03\x01\x02\x03 holdfast \x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Add([]byte(strings.Repeat("\x01\x02\x00\x03\x05\x07", 40)))
	f.Add([]byte(strings.Repeat("\x02\x04\x01\x00", 80)))
	f.Fuzz(func(t *testing.T, choices []byte) {
		if d := (&dice{choices}); len(choices) < 4096 {
			examine(t, d.view(), d.request())
		}
	})
}

// TestDecideOnRandomWorlds is the same without the fuzzer, so that every run of the tests tries some.
func TestDecideOnRandomWorlds(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 1000 {
		choices := make([]byte, 300)
		r.Read(choices)
		d := &dice{choices}
		examine(t, d.view(), d.request())
	}
}

func examine(t *testing.T, v View, r Request) {
	t.Helper()
	before := copyOf(v)
	verdict := Decide(v, r)
	require.Equal(t, verdict, Decide(v, r), "the same again")
	sound(t, v, r, verdict)
	nothingKnown(t, v, r)
	strangersChangeNothing(t, v, r, verdict)
	finalRefusalsStay(t, v, r, verdict)
	survive(v, r)
	require.Equal(t, before, copyOf(v), "what was given is left alone")
}

// dice takes every choice from the next byte, and the first possibility when there is none left.
type dice struct{ left []byte }

func (d *dice) roll(n int) int {
	if len(d.left) == 0 {
		return 0
	}
	b := d.left[0]
	d.left = d.left[1:]
	return int(b) % n
}

func (d *dice) one(in ...string) string { return in[d.roll(len(in))] }
func (d *dice) yes() bool               { return d.roll(2) == 1 }
func (d *dice) id() v1alpha1.MemberID {
	return v1alpha1.MemberID(d.one("a", "b", "c", "d", "a", "b", "c", "d", "e", "0", "", "etcd"))
}
func (d *dice) node() string    { return d.one("w1", "w2", "w3", "w4", "") }
func (d *dice) uid() types.UID  { return types.UID(d.one("u1", "u2", "u3", "u4", "")) }
func (d *dice) address() string { return d.one("10.0.0.1", "10.0.0.2", "[::1]", "127.0.0.1", "") }

// home is a Node with its UID, which is seldom another than it was.
func (d *dice) home() (string, types.UID) {
	node := d.node()
	if d.roll(8) == 7 {
		return node, d.uid()
	}
	return node, types.UID(strings.Replace(node, "w", "u", 1))
}

func (d *dice) refs() []MemberRef {
	var refs []MemberRef
	for range d.roll(3) {
		refs = append(refs, MemberRef{v1alpha1.ClusterID(d.one(clusterX, "abc")), d.id()})
	}
	return refs
}

func (d *dice) request() Request {
	node, uid := d.home()
	return Request{Node: node, UID: uid, Labelled: d.yes(), Announced: d.refs(), Addresses: []string{d.address()}, Unverified: make([]string, d.roll(2))}
}

func (d *dice) view() View {
	v := View{Cluster: &v1alpha1.EtcdCluster{}, Asked: []string{d.one(asked, "before", "")}, Nodes: map[string]NodeState{}, MinRemainingTolerance: d.roll(3) - 1}
	v.Cluster.Name, v.Cluster.Spec.Nonce = clusterX, asked
	for range d.roll(6) {
		node, uid := d.home()
		v.Cluster.Spec.Members = append(v.Cluster.Spec.Members, v1alpha1.Binding{MemberID: d.id(), Node: node, NodeUID: uid})
	}
	for range d.roll(3) {
		v.Cluster.Spec.Grants = append(v.Cluster.Spec.Grants, v1alpha1.Grant{NodeUID: d.uid(), Node: d.node(), Members: []v1alpha1.MemberID{d.id()}, User: d.one("alice", ""), BreakGlass: d.yes()})
	}
	for range d.roll(9) {
		node, uid := d.home()
		v.Nodes[node] = NodeState{Known: d.roll(8) < 7, UID: uid, Deleting: d.roll(8) == 1, DeletionTaint: d.one("", "", "", "", "", "ToBeDeleted")}
	}
	for range d.roll(5) {
		node, uid := d.home()
		o := v1alpha1.Observation{
			Node: node, NodeUID: uid, Nonce: d.one(asked, "before", ""), LocalMember: d.id(), Linearizable: !d.yes(), AlarmsUnknown: d.yes(), Problem: d.one("", "tls"),
		}
		for range d.roll(7) {
			o.Members = append(o.Members, v1alpha1.MemberStatus{
				ID: d.id(), Name: d.one("etcd1", "etcd2", ""), Healthy: !d.yes(), Learner: d.roll(4) == 1,
				PeerURLs: []string{"https://" + d.address() + ":2380"}, Alarms: []string{d.one("", "", "", "", "", "CORRUPT", "NOSPACE")},
			})
		}
		v.Cluster.Status.Observations = append(v.Cluster.Status.Observations, o)
	}
	return v
}

// sound checks what is true of every verdict.
func sound(t *testing.T, v View, r Request, verdict Verdict) {
	t.Helper()
	require.NotEmpty(t, verdict.Message)
	require.Equal(t, clusterID(v.Cluster), verdict.Cluster)
	require.True(t, slices.IsSorted(verdict.Members))
	if verdict.Voters > 0 {
		require.Equal(t, verdict.Voters/2+1, verdict.Quorum)
		require.Less(t, verdict.Healthy, verdict.Voters, "what goes does not count")
	}
	switch {
	case !verdict.Allowed:
		require.Contains(t, verdict.Message, BreakGlassAnnotation+`='{"uid":"`+string(r.UID)+`"`)
	case verdict.Reason == QuorumKept:
		require.GreaterOrEqual(t, verdict.Healthy, verdict.Quorum+max(0, v.MinRemainingTolerance))
		require.NotEmpty(t, verdict.Members, "a grant must name what goes")
		require.NotEmpty(t, v.Asked[0], "nobody was asked")
	default:
		require.Equal(t, NothingToProtect, verdict.Reason)
	}
	require.True(t, Force(v, r).Allowed)
}

// nothingKnown takes away all that was seen: then nothing that is bound or announced may go.
func nothingKnown(t *testing.T, v View, r Request) {
	t.Helper()
	v = copyOf(v)
	v.Cluster.Status.Observations = nil
	holds := slices.ContainsFunc(v.Cluster.Spec.Members, func(b v1alpha1.Binding) bool { return boundTo(b, r) }) ||
		slices.ContainsFunc(r.Announced, func(a MemberRef) bool { return a.Cluster == clusterID(v.Cluster) })
	if holds {
		require.False(t, Decide(v, r).Allowed, "from nothing")
		require.False(t, UnlabelledVerdict([]*v1alpha1.EtcdCluster{v.Cluster}, Request{Node: r.Node, UID: r.UID, Announced: r.Announced}).Allowed &&
			slices.ContainsFunc(r.Announced, func(a MemberRef) bool { return a.Cluster == clusterID(v.Cluster) }), "without the label")
	}
}

// strangersChangeNothing adds the word of a Node that no member is bound to, which is not the one to be deleted.
func strangersChangeNothing(t *testing.T, v View, r Request, verdict Verdict) {
	t.Helper()
	stranger := r.Node + "-" + strings.Repeat("x", 300)
	if len(v.Cluster.Status.Observations) == 0 || slices.ContainsFunc(v.Cluster.Spec.Members, func(b v1alpha1.Binding) bool { return b.Node == stranger }) {
		return
	}
	v = copyOf(v)
	lie := *v.Cluster.Status.Observations[0].DeepCopy()
	lie.Node, lie.NodeUID, lie.Nonce, lie.Linearizable, lie.AlarmsUnknown = stranger, types.UID(stranger), v.Asked[0], true, false
	for i := range lie.Members {
		lie.Members[i].Healthy, lie.Members[i].Learner, lie.Members[i].Alarms = true, i > 0, []string{corruptAlarm}[:i%2]
	}
	v.Cluster.Status.Observations = append(v.Cluster.Status.Observations, lie)
	require.Equal(t, verdict, Decide(v, r))
}

// finalRefusalsStay lets everybody who is awaited answer, and prove everybody healthy.
func finalRefusalsStay(t *testing.T, v View, r Request, verdict Verdict) {
	t.Helper()
	if verdict.Allowed || !verdict.Final || v.Asked[0] == "" {
		return
	}
	v = copyOf(v)
	pending := newSight(v).pending()
	var all []v1alpha1.MemberStatus
	for _, o := range v.Cluster.Status.Observations {
		all = append(all, o.Members...)
	}
	all = slices.DeleteFunc(distinct(all), func(m v1alpha1.MemberStatus) bool { return !validID(string(m.ID)) })
	for i := range all {
		all[i].Healthy, all[i].Alarms = true, nil
	}
	for _, b := range v.Cluster.Spec.Members {
		if slices.Contains(pending, b.Node) {
			v.Cluster.Status.Observations = append(v.Cluster.Status.Observations, v1alpha1.Observation{
				Node: b.Node, NodeUID: b.NodeUID, Nonce: v.Asked[0], Linearizable: true, Members: copied(all),
			})
		}
	}
	after := Decide(v, r)
	require.False(t, after.Allowed, "before: %s\nafter: %s", verdict.Message, after.Message)
}

// survive asks everything else that reads such an object.
func survive(v View, r Request) {
	all := []*v1alpha1.EtcdCluster{v.Cluster, nil}
	claims := []NodeClaim{{Node: r.Node, UID: r.UID, Addresses: r.Addresses, Announced: r.Announced}}
	Involved(all, r)
	Missing(all, r)
	UnlabelledVerdict(all, r)
	Summarise(v)
	SelfProven(v)
	Unheard(v.Cluster, noon())
	Tombstones(v)
	Placed(v.Cluster, claims)
	Bind(v.Cluster, claims, v.Asked)
	for _, g := range v.Cluster.Spec.Grants {
		Settle(v, g, SettleEvidence{Now: noon(), Node: v.Nodes[g.Node]})
		SettledByHand(v.Cluster, g.NodeUID, v.Nodes)
	}
	Assess(HostEvidence{Found: []Found{unitServer().silent()}}, Known{
		Node: r.Node, UID: r.UID, Announced: r.Announced, Clusters: []v1alpha1.EtcdCluster{*v.Cluster}, ClustersKnown: true,
	})
}
