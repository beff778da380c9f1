package protect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestInvolved(t *testing.T) {
	a, b := voters(3).Cluster, voters(3).Cluster
	a.Name, b.Name = "aaa", "bbb"
	b.Spec.Members = b.Spec.Members[1:]
	all := []*v1alpha1.EtcdCluster{b, nil, a}
	granted := voters(3).neverBound().granted(0).Cluster
	for name, c := range map[string]struct {
		clusters []*v1alpha1.EtcdCluster
		request  Request
		want     []*v1alpha1.EtcdCluster
	}{
		"bound in one":                     {all, Request{Node: "w1", UID: "u1", Labelled: true, Addresses: []string{address(0)}}, []*v1alpha1.EtcdCluster{a}},
		"bound in both, sorted":            {all, Request{Node: "w2", UID: "u2"}, []*v1alpha1.EtcdCluster{a, b}},
		"bound in one, announced in other": {all, Request{Node: "w1", UID: "u1", Announced: []MemberRef{{"bbb", "a"}}}, []*v1alpha1.EtcdCluster{a, b}},
		"by name only":                     {all, Request{Node: "w1", UID: "u1-again"}, []*v1alpha1.EtcdCluster{a}},
		"by UID only":                      {all, Request{Node: "renamed", UID: "u1"}, []*v1alpha1.EtcdCluster{a}},
		"by an earlier grant":              {[]*v1alpha1.EtcdCluster{granted}, Request{Node: "w1", UID: "u1"}, []*v1alpha1.EtcdCluster{granted}},
		"by address":                       {all, Request{Node: "x", UID: "ux", Labelled: true, Addresses: []string{address(0)}}, []*v1alpha1.EtcdCluster{a, b}},
		"by address, without the label":    {all, Request{Node: "x", UID: "ux", Addresses: []string{address(0)}}, nil},
		"a worker":                         {all, Request{Node: "x", UID: "ux", Addresses: []string{"10.0.0.99"}}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Involved(c.clusters, c.request)) })
	}
}

func TestMissing(t *testing.T) {
	r := Request{Node: "w1", UID: "u1", Announced: []MemberRef{{clusterX, "a"}, {"f", "2"}, {"e", "3"}, {"f", "1"}}}
	verdicts := Missing([]*v1alpha1.EtcdCluster{voters(3).Cluster}, r)
	require.Len(t, verdicts, 2)
	require.EqualValues(t, "e", verdicts[0].Cluster)
	require.Equal(t, ids("1", "2"), verdicts[1].Members)
	for _, v := range verdicts {
		require.False(t, v.Allowed)
		require.True(t, v.Final)
		require.Equal(t, CannotSee, v.Reason)
		require.Contains(t, v.Message, "it has no EtcdCluster")
		require.Contains(t, v.Message, `{"uid":"u1"`)
	}
}

func TestUnattributed(t *testing.T) {
	v := Unattributed(deletion(0))
	require.False(t, v.Allowed)
	require.True(t, v.Final)
	require.Equal(t, UnknownMember, v.Reason)
	for _, words := range []string{"nothing says which", "kubectl label node w1 holdfast.dev/etcd-member-", `{"uid":"u1"`} {
		require.Contains(t, v.Message, words)
	}
}
