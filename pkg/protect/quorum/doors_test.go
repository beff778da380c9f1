package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// viewOfGranted returns the view of a cluster. Its member a is still listed, and the machine of w1
// has joined again as member d, at an address that the Node does not have.
func viewOfGranted() quorum.View {
	c := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{
		Members: []v1alpha1.Binding{{MemberID: "d", Node: "w1", NodeUID: "u1", Basis: v1alpha1.BasisRole}},
	}}
	c.Observations = []v1alpha1.Observation{{
		Node: "w1", NodeUID: "u1", LocalMember: "d", Linearizable: true, Members: []v1alpha1.MemberStatus{
			{ID: "a", Name: "etcd-a", PeerURLs: []string{"https://etcd-a.example.com:2380"}},
			{ID: "d", Name: "etcd-d", PeerURLs: []string{"https://etcd-d.example.com:2380"}},
		},
	}}
	nodes := map[string]observation.NodeState{"w1": {
		Known: true, UID: "u1", Machine: observation.NewMachine("m", "s"), ProviderID: "cloud:///1",
	}}
	return quorum.View{Cluster: c, Now: time.Date(2026, 5, 1, 12, 1, 0, 0, time.UTC), Nodes: nodes}
}

// TestWith: a door is added to those that are open, and takes nothing from them.
func TestWith(t *testing.T) {
	before := metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	now := metav1.NewTime(before.Add(time.Minute))
	old := func(version string) *v1alpha1.Door {
		return &v1alpha1.Door{Time: before, User: "bob", Version: version}
	}
	young := func(version string) *v1alpha1.Door { return &v1alpha1.Door{Time: now, User: "alice", Version: version} }
	forced := func(d *v1alpha1.Door) *v1alpha1.Door { d.BreakGlass = true; return d }
	type doors struct{ Delete, Machine, Drain, Remove, Gone *v1alpha1.Door }
	for name, test := range map[string]struct {
		old      doors
		door     quorum.DoorKind
		isForced bool
		version  string
		want     doors
	}{
		"first removal": {door: quorum.DoorRemove, version: "9", want: doors{Remove: young("9")}},
		"removal by an EtcdMember, then by a mark": {
			old: doors{Remove: old("")}, door: quorum.DoorRemove, version: "9", want: doors{Remove: young("")},
		},
		"removal after a drain": {
			old: doors{Drain: old("")}, door: quorum.DoorRemove, want: doors{Drain: old(""), Remove: young("")},
		},
		"deletion after a removal": {
			old: doors{Remove: old("")}, version: "9", want: doors{Delete: young("9"), Remove: old("")},
		},
		"first deletion":              {version: "9", want: doors{Delete: young("9")}},
		"first drain":                 {door: quorum.DoorDrain, want: doors{Drain: young("")}},
		"first deletion of a machine": {door: quorum.DoorMachine, want: doors{Machine: young("")}},
		"drain after a deletion": {
			old: doors{Delete: old("9")}, door: quorum.DoorDrain, want: doors{Delete: old("9"), Drain: young("")},
		},
		"drain after a forced deletion": {
			old: doors{Delete: forced(old("9"))}, door: quorum.DoorDrain,
			want: doors{Delete: forced(old("9")), Drain: young("")},
		},
		"forced drain after a deletion": {
			old: doors{Delete: old("9")}, door: quorum.DoorDrain, isForced: true,
			want: doors{Delete: old("9"), Drain: forced(young(""))},
		},
		"drain after a drain": {old: doors{Drain: old("")}, door: quorum.DoorDrain, want: doors{Drain: young("")}},
		"F86 drain after a forced drain": {
			old: doors{Drain: forced(old(""))}, door: quorum.DoorDrain,
			want: doors{Drain: &v1alpha1.Door{Time: now, User: "bob", BreakGlass: true}},
		},
		"F35 deletion after a drain": {
			old: doors{Drain: old("")}, version: "9", want: doors{Delete: young("9"), Drain: old("")},
		},
		"later version": {old: doors{Delete: old("9")}, version: "10", want: doors{Delete: young("10")}},
		"slow review of an earlier version": {
			old: doors{Delete: old("10")}, version: "9", want: doors{Delete: young("10")},
		},
		"versions that cannot be compared": {old: doors{Delete: old("x")}, version: "9", want: doors{Delete: young("")}},
		"F80 end of the machine, then the Node": {
			old: doors{Machine: old("")}, version: "9", want: doors{Delete: young("9"), Machine: old("")},
		},
		"F80 the Node, then its machine": {
			old: doors{Delete: old("9")}, door: quorum.DoorMachine, want: doors{Delete: old("9"), Machine: young("")},
		},
		"after a tombstone": {old: doors{Gone: old("")}, version: "9", want: doors{Delete: young("9"), Gone: old("")}},
	} {
		t.Run(name, func(t *testing.T) {
			req := quorum.Request{
				Node: "w1", UID: "u1", User: "alice", Door: test.door, Version: test.version,
			}
			if test.isForced {
				req.BreakGlass = &quorum.BreakGlass{UID: "u1"}
			}
			g := v1alpha1.Grant{
				NodeUID: "u1", Node: "w1", Delete: test.old.Delete, Machine: test.old.Machine, Drain: test.old.Drain,
				Remove: test.old.Remove, Gone: test.old.Gone,
			}
			unchanged := g.DeepCopy()
			got := quorum.With(viewOfGranted(), g, req, []v1alpha1.MemberID{"d"})
			require.Equal(t, test.want, doors{got.Delete, got.Machine, got.Drain, got.Remove, got.Gone})
			require.Equal(t, *unchanged, g, "the argument must not change")
		})
	}
}

// TestWithGrows: members, addresses and identities of a grant only grow (F85, F88).
func TestWithGrows(t *testing.T) {
	old := v1alpha1.Grant{
		NodeUID: "u1", Node: "w1", Members: []v1alpha1.MemberID{"a"}, Addresses: []string{"10.0.0.8"},
		MachineID: "m0", SystemUUID: "s0", ProviderID: "cloud:///0",
	}
	req := quorum.Request{Node: "w1", UID: "u1", Door: quorum.DoorDrain, Addresses: []string{"10.0.0.1"}}
	v := viewOfGranted()
	got := quorum.With(v, old, req, []v1alpha1.MemberID{"d"})
	require.Equal(t, []v1alpha1.MemberID{"a", "d"}, got.Members)
	require.Equal(t, []string{"etcd-a.example.com", "etcd-d.example.com", "10.0.0.1", "10.0.0.8"}, got.Addresses)
	require.Equal(t, []string{"m", "s", "cloud:///1"}, []string{got.MachineID, got.SystemUUID, got.ProviderID})
	require.Equal(t, "an account without a name", got.Drain.User)

	v.Nodes["w1"] = observation.NodeState{Known: true, UID: "u1"}
	got = quorum.With(v, old, req, nil)
	require.Equal(t, []string{"m0", "s0", "cloud:///0"}, []string{got.MachineID, got.SystemUUID, got.ProviderID})
	require.Equal(t, []v1alpha1.MemberID{"a"}, got.Members)
	require.Equal(t, quorumtest.IDs("a", "d"), quorum.With(v, old, req, quorumtest.IDs("d", "a")).Members, "a set")
	first := quorum.With(v, v1alpha1.Grant{}, req, quorumtest.IDs("d"))
	require.Equal(t, "w1 u1", first.Node+" "+string(first.NodeUID))
}

// TestDoors: the door that was opened last is the last one, and each kind describes what shuts it.
func TestDoors(t *testing.T) {
	at := func(minute int) *v1alpha1.Door {
		return &v1alpha1.Door{Time: metav1.NewTime(time.Date(2026, 5, 1, 12, minute, 0, 0, time.UTC))}
	}
	g := v1alpha1.Grant{Delete: at(2), Machine: at(1), Drain: at(4), Remove: at(0), Gone: at(3)}
	var kinds []quorum.DoorKind
	for _, d := range quorum.Doors(g) {
		kinds = append(kinds, d.Kind)
		require.NotEmpty(t, words.ShutWhen(d.Kind))
	}
	require.Equal(t, []quorum.DoorKind{
		quorum.DoorRemove, quorum.DoorMachine, quorum.DoorDelete, quorum.DoorGone, quorum.DoorDrain,
	}, kinds)
	require.True(t, quorum.AreSame(quorum.Doors(g), quorum.Doors(g)))
	elsewhere := *g.DeepCopy()
	elsewhere.Drain.Time.Time = elsewhere.Drain.Time.In(time.FixedZone("CEST", 7200))
	require.True(t, quorum.AreSame(quorum.Doors(g), quorum.Doors(elsewhere)))
	elsewhere.Drain.BreakGlass = true
	require.False(t, quorum.AreSame(quorum.Doors(g), quorum.Doors(elsewhere)), "opened again in the same second")
	require.Equal(t, at(4).Time, quorum.LastOpened(g))
	require.Zero(t, quorum.LastOpened(v1alpha1.Grant{}))
	require.True(t, quorum.IsDrainOnly(v1alpha1.Grant{Drain: at(1)}))
	for _, other := range []v1alpha1.Grant{
		{}, g, {Drain: at(1), Delete: at(1)}, {Drain: at(1), Machine: at(1)}, {Drain: at(1), Gone: at(1)},
	} {
		require.False(t, quorum.IsDrainOnly(other))
		require.True(t, quorum.AllowsDeletion(other))
	}
	for _, other := range []v1alpha1.Grant{{Drain: at(1)}, {Remove: at(1)}, {Drain: at(1), Remove: at(1)}} {
		require.False(t, quorum.AllowsDeletion(other))
	}
}
