package quorum_test

import (
	"strings"
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

// doorsOf returns the doors of a grant in words, such as "delete 9 by bob at noon, forced".
func doorsOf(g v1alpha1.Grant) string {
	var all []string
	for _, d := range []struct {
		kind string
		door *v1alpha1.Door
	}{{"delete", g.Delete}, {"machine", g.Machine}, {"drain", g.Drain}, {"remove", g.Remove}, {"gone", g.Gone}} {
		if d.door == nil {
			continue
		}
		text := strings.TrimSpace(d.kind+" "+d.door.Version) + " by " + d.door.User + d.door.Time.Format(" 15:04")
		if d.door.BreakGlass {
			text += " forced"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// TestWith: a door is added to those that are open, and takes nothing from them. A door by bob was
// opened at 12:00, and alice opens one at 12:01.
func TestWith(t *testing.T) {
	before := metav1.NewTime(viewOfGranted().Now.Add(-time.Minute))
	old := func(version string) *v1alpha1.Door {
		return &v1alpha1.Door{Time: before, User: "bob", Version: version}
	}
	forced := func(d *v1alpha1.Door) *v1alpha1.Door { d.BreakGlass = true; return d }
	type grant = v1alpha1.Grant
	const remove, drain, machine = quorum.DoorRemove, quorum.DoorDrain, quorum.DoorMachine
	const oldDelete, oldDrain, oldRemove = "delete 9 by bob 12:00", "drain by bob 12:00", "remove by bob 12:00"
	const newDelete, newDrain, newRemove = "delete 9 by alice 12:01", "drain by alice 12:01", "remove by alice 12:01"
	for name, test := range map[string]struct {
		old      grant
		door     quorum.DoorKind
		isForced bool
		version  string
		want     string
	}{
		"first removal": {grant{}, remove, false, "9", "remove 9 by alice 12:01"},
		"removal by an EtcdMember, then by a mark": {grant{Remove: old("")}, remove, false, "9", newRemove},
		"removal after a drain":                    {grant{Drain: old("")}, remove, false, "", oldDrain + ", " + newRemove},
		"deletion after a removal":                 {grant{Remove: old("")}, "", false, "9", newDelete + ", " + oldRemove},
		"first deletion":                           {grant{}, "", false, "9", newDelete},
		"first drain":                              {grant{}, drain, false, "", newDrain},
		"first deletion of a machine":              {grant{}, machine, false, "", "machine by alice 12:01"},
		"drain after a deletion":                   {grant{Delete: old("9")}, drain, false, "", oldDelete + ", " + newDrain},
		"drain after a forced deletion": {
			grant{Delete: forced(old("9"))}, drain, false, "", oldDelete + " forced, " + newDrain,
		},
		"forced drain after a deletion": {
			grant{Delete: old("9")}, drain, true, "", oldDelete + ", " + newDrain + " forced",
		},
		"drain after a drain":               {grant{Drain: old("")}, drain, false, "", newDrain},
		"F86 drain after a forced drain":    {grant{Drain: forced(old(""))}, drain, false, "", "drain by bob 12:01 forced"},
		"F35 deletion after a drain":        {grant{Drain: old("")}, "", false, "9", newDelete + ", " + oldDrain},
		"later version":                     {grant{Delete: old("9")}, "", false, "10", "delete 10 by alice 12:01"},
		"slow review of an earlier version": {grant{Delete: old("10")}, "", false, "9", "delete 10 by alice 12:01"},
		"versions that cannot be compared":  {grant{Delete: old("x")}, "", false, "9", "delete by alice 12:01"},
		"F80 end of the machine, then the Node": {
			grant{Machine: old("")}, "", false, "9", newDelete + ", machine by bob 12:00",
		},
		"F80 the Node, then its machine": {
			grant{Delete: old("9")}, machine, false, "", oldDelete + ", machine by alice 12:01",
		},
		"after a tombstone": {grant{Gone: old("")}, "", false, "9", newDelete + ", gone by bob 12:00"},
	} {
		t.Run(name, func(t *testing.T) {
			req := quorum.Request{Node: "w1", UID: "u1", User: "alice", Door: test.door, Version: test.version}
			if test.isForced {
				req.BreakGlass = &quorum.BreakGlass{UID: "u1"}
			}
			g := test.old
			g.NodeUID, g.Node = "u1", "w1"
			unchanged := g.DeepCopy()
			require.Equal(t, test.want, doorsOf(quorum.With(viewOfGranted(), g, req, quorumtest.IDs("d"))))
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
	for _, other := range []v1alpha1.Grant{
		{}, g, {Drain: at(1), Delete: at(1)}, {Drain: at(1), Machine: at(1)}, {Drain: at(1), Gone: at(1)},
	} {
		require.False(t, quorum.IsDrainOnly(other))
		require.True(t, quorum.AllowsDeletion(other))
	}
	for _, other := range []v1alpha1.Grant{{Drain: at(1)}, {Remove: at(1)}, {Drain: at(1), Remove: at(1)}} {
		require.False(t, quorum.AllowsDeletion(other))
		require.Equal(t, other.Drain != nil, quorum.IsDrainOnly(other))
	}
}
