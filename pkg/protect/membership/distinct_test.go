package membership_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// mixedCluster returns a cluster of the members a, b and c on Nodes, and d and e on hosts that are
// no Nodes.
func mixedCluster() *quorumtest.Cluster {
	w := quorumtest.Voters(5).Unbound(3).Unbound(4)
	for i := 3; i < 5; i++ {
		w.URLs(i, fmt.Sprintf("https://203.0.113.%d:2380", i+1))
	}
	w.Cluster.Observations = w.Cluster.Observations[:3]
	return w
}

// record writes what the leader records in one round.
func record(w *quorumtest.Cluster) []v1alpha1.DistinctServer {
	bind(w, quorumtest.Nodes(3))
	w.Cluster.Spec.DistinctServers = membership.DistinctServers(w.View, quorumtest.Nodes(3))
	return w.Cluster.Spec.DistinctServers
}

// The host w1 dies. The last list of its agent is not confirmed, its member is removed, and then
// its Node is deleted.
// F23: a dead Node was kept because members on hosts without a Node might be its new one.
func TestF23DeadNodeInMixedCluster(t *testing.T) {
	w := mixedCluster()
	require.Equal(t, []v1alpha1.DistinctServer{
		{MemberID: "a", Others: quorumtest.IDs("d", "e")},
		{MemberID: "b", Others: quorumtest.IDs("d", "e")},
		{MemberID: "c", Others: quorumtest.IDs("d", "e")},
	}, record(w))

	w.Unconfirmed(0).Silent(0).Unhealthy(0)
	require.Len(t, record(w), 3)
	w.RemovedFrom(1, 0).RemovedFrom(2, 0)
	records := record(w)
	require.Equal(t, "b=u2 c=u3", uids(w.Cluster.Spec.Members))
	require.Equal(t, quorumtest.IDs("d", "e"), records[0].Others, "the record outlives the binding")
	w.Granted(0)
	nodes := quorumtest.Nodes(3)[1:] // No Node announces the member.
	require.Equal(t, records, membership.DistinctServers(w.View, nodes), "the grant keeps the record")
	w.Cluster.Spec.Grants = nil
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))

	joinedSince := quorumtest.Member(5)
	joinedSince.PeerURLs, joinedSince.ClientURLs = []string{"https://203.0.113.9:2380"}, nil
	for _, i := range []int{1, 2} {
		w.Observer(i).Members = append(w.Observer(i).Members, joinedSince)
	}
	record(w)
	v := quorum.Decide(w.View, quorumtest.Deletion(0))
	require.Equal(t, quorum.UnknownMember, v.Reason, "host w1 may have joined again as the new member")
	require.Contains(t, words.Message(v), "member f is in that list")
	require.NotContains(t, words.Message(v), "member d")
}

func TestDistinctServers(t *testing.T) {
	unhealthy := func(m *v1alpha1.MemberStatus) { m.Healthy = false }
	unstarted := func(m *v1alpha1.MemberStatus) { m.Name = "" }
	old := func() *quorumtest.Cluster {
		w := mixedCluster()
		record(w)
		return w
	}
	ofOther := mixedCluster().Silent(0, 1, 2)
	ofOther.Cluster.Spec.DistinctServers = []v1alpha1.DistinctServer{{MemberID: "b", Others: quorumtest.IDs("d")}}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		want    []v1alpha1.MemberID
	}{
		"healthy":                     {mixedCluster(), quorumtest.IDs("d", "e")},
		"the member is dead":          {mixedCluster().Everywhere(0, unhealthy), nil},
		"the other one never started": {mixedCluster().Everywhere(3, unstarted), quorumtest.IDs("e")},
		"unconfirmed lists":           {mixedCluster().Unconfirmed(0, 1, 2), nil},
		"healthy by an unconfirmed list": {
			mixedCluster().Unconfirmed(0).InList(1, 0, unhealthy).InList(2, 0, unhealthy), nil,
		},
		"silent":            {mixedCluster().Silent(0, 1, 2), nil},
		"one word, no role": {mixedCluster().WithoutRoles().Silent(0, 2), nil},
		"healthy by one word, no role": {
			mixedCluster().WithoutRoles().InList(0, 0, unhealthy).InList(1, 0, unhealthy), nil,
		},
		"no roles":                     {mixedCluster().WithoutRoles(), quorumtest.IDs("d", "e")},
		"recorded of another member":   {ofOther, nil},
		"recorded, then silent":        {old().Silent(0, 1, 2), quorumtest.IDs("d", "e")},
		"recorded, then dead":          {old().Dead(0), quorumtest.IDs("d", "e")},
		"recorded, then it left":       {old().Removed(3), quorumtest.IDs("e")},
		"recorded, left the only list": {old().RemovedFrom(2, 3).Silent(0, 1), quorumtest.IDs("e")},
		"recorded, left one, no role": {
			old().WithoutRoles().RemovedFrom(2, 3).Silent(0, 1), quorumtest.IDs("d", "e"),
		},
		"all members on Nodes":           {quorumtest.Voters(3), nil},
		"recorded, then bound to a Node": {boundLater(old()), quorumtest.IDs("e")},
		"disputed, no role": {
			boundLater(mixedCluster()).WithoutRoles().Basis(v1alpha1.BasisDisputed, 3), quorumtest.IDs("d", "e"),
		},
		"recorded, then claimed": {
			boundLater(old()).Basis(v1alpha1.BasisClaim, 3), quorumtest.IDs("d", "e"),
		},
		"healthy in one list, started in another": {
			mixedCluster().Silent(2).InList(0, 0, unhealthy).InList(1, 3, unstarted), quorumtest.IDs("e"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var others []v1alpha1.MemberID
			for _, d := range membership.DistinctServers(c.cluster.View, nil) {
				require.NotEmpty(t, d.Others)
				if d.MemberID == "a" {
					others = d.Others
				}
			}
			require.Equal(t, c.want, others)
		})
	}
}

func boundLater(w *quorumtest.Cluster) *quorumtest.Cluster {
	w.Bind(3)
	return w
}
