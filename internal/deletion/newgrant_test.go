package deletion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// viewWithGrant returns a cluster with a grant for the Node w1. Its member a is still listed, and
// its machine has joined again as member d, at an address that the Node does not have.
func viewWithGrant(g v1alpha1.Grant) quorum.View {
	c := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{
		Members: []v1alpha1.Binding{{MemberID: "d", Node: "w1", NodeUID: "u1"}}, Grants: []v1alpha1.Grant{g},
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

// TestNewGrant: a grant that replaces another one is never weaker.
func TestNewGrant(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	deletion := v1alpha1.Grant{
		NodeUID: "u1", Node: "w1", Members: []v1alpha1.MemberID{"a"}, Time: at, User: "bob",
		Addresses: []string{"etcd-a.example.com", "10.0.0.8"},
	}
	drain := deletion
	drain.Reason, drain.Drained = v1alpha1.GrantDrain, &at
	forced, forcedDeletion := drain, deletion
	forced.BreakGlass, forcedDeletion.BreakGlass = true, true
	elsewhere, same := deletion, deletion
	elsewhere.ProviderID, same.Members = "cloud:///0", []v1alpha1.MemberID{"a", "d", "e"}
	addedDrain := func(g *v1alpha1.Grant) {
		// The Node may be on another machine now, so the IDs stay unknown.
		g.User, g.Reason, g.Drained, g.MachineID, g.SystemUUID = "bob", "", &g.Time, "", ""
		g.Members = []v1alpha1.MemberID{"a", "d"}
		g.Addresses = []string{"etcd-a.example.com", "etcd-d.example.com", "10.0.0.1", "10.0.0.8"}
	}
	deletionOf := func(version string) v1alpha1.Grant {
		g := deletion
		g.NodeVersion = version
		return g
	}
	addedForcedDrain := func(g *v1alpha1.Grant) { addedDrain(g); g.BreakGlass = true }
	for name, test := range map[string]struct {
		old               v1alpha1.Grant
		isDrain, isForced bool
		version           string
		want              func(*v1alpha1.Grant)
	}{
		"drain after a deletion":        {old: deletion, isDrain: true, want: addedDrain},
		"drain after a forced deletion": {old: forcedDeletion, isDrain: true, want: addedForcedDrain},
		"forced drain after a deletion": {old: deletion, isDrain: true, isForced: true, want: addedForcedDrain},
		"drain after a deletion of another machine": {old: elsewhere, isDrain: true, want: func(g *v1alpha1.Grant) {
			addedDrain(g)
			g.ProviderID = "cloud:///0"
		}},
		"drain after a deletion with the same member": {old: same, isDrain: true, want: func(g *v1alpha1.Grant) {
			addedDrain(g)
			g.Members = same.Members
		}},
		"drain after a forced drain": {old: forced, isDrain: true, want: func(g *v1alpha1.Grant) {
			g.User, g.Reason, g.Drained, g.BreakGlass = "bob", v1alpha1.GrantDrain, &g.Time, true
		}},
		"drain after a drain": {old: drain, isDrain: true, want: func(g *v1alpha1.Grant) {
			g.Reason, g.Drained = v1alpha1.GrantDrain, &g.Time
		}},
		"deletion after a forced drain": {old: forced, want: func(g *v1alpha1.Grant) { g.Drained = &at }},
		"deletion after a deletion":     {old: deletion, want: func(*v1alpha1.Grant) {}},
		"later version": {
			old: deletionOf("9"), version: "10", want: func(g *v1alpha1.Grant) { g.NodeVersion = "10" },
		},
		"slow review of an earlier version": {
			old: deletionOf("10"), version: "9", want: func(g *v1alpha1.Grant) { g.NodeVersion = "10" },
		},
		"F80 end of the machine, then the Node": {old: deletion, version: "9", want: func(*v1alpha1.Grant) {}},
		"F80 the Node, then its machine":        {old: deletionOf("9"), want: func(*v1alpha1.Grant) {}},
		"deletion after a drain, of a version": {old: drain, version: "9", want: func(g *v1alpha1.Grant) {
			g.Drained, g.NodeVersion = &at, "9"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			req := quorum.Request{
				Node: "w1", UID: "u1", User: "alice", Drain: test.isDrain, Addresses: []string{"10.0.0.1"},
				Version: test.version,
			}
			if test.isForced {
				req.BreakGlass = &quorum.BreakGlass{UID: "u1"}
			}
			got := newGrant(viewWithGrant(test.old), req, quorum.Verdict{Members: []v1alpha1.MemberID{"d"}})
			want := v1alpha1.Grant{
				NodeUID: "u1", Node: "w1", Members: []v1alpha1.MemberID{"d"}, User: "alice",
				Time: metav1.NewTime(at.Add(time.Minute)), Reason: v1alpha1.GrantDeletion, MachineID: "m", SystemUUID: "s",
				ProviderID: "cloud:///1", Addresses: []string{"etcd-d.example.com", "10.0.0.1"},
			}
			test.want(&want)
			require.Equal(t, want, got)
		})
	}
}
