package protect

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

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
		"bound in one":                      {all, Request{Node: "w1", UID: "u1", Labelled: true}, []*v1alpha1.EtcdCluster{a}},
		"bound in one, by address in other": {all, Request{Node: "w1", UID: "u1", Labelled: true, Addresses: []string{address(0)}}, []*v1alpha1.EtcdCluster{a, b}},
		"by address, on one Node's word":    {[]*v1alpha1.EtcdCluster{voters(3).blind(0, 1).Cluster}, Request{Node: "x", UID: "ux", Labelled: true, Addresses: []string{address(0)}}, nil},
		"by address, in old lists only":     {[]*v1alpha1.EtcdCluster{asking(voters(4).removed(3).removedFrom(0, 0).removedFrom(1, 0).silent(2, 3))}, Request{Node: "x", UID: "ux", Labelled: true, Addresses: []string{address(0)}}, nil},
		"bound in both, sorted":             {all, Request{Node: "w2", UID: "u2"}, []*v1alpha1.EtcdCluster{a, b}},
		"bound in one, announced in other":  {all, Request{Node: "w1", UID: "u1", Announced: []MemberRef{{"bbb", "a"}}}, []*v1alpha1.EtcdCluster{a, b}},
		"by name only":                      {all, Request{Node: "w1", UID: "u1-again"}, []*v1alpha1.EtcdCluster{a}},
		"by UID only":                       {all, Request{Node: "renamed", UID: "u1"}, []*v1alpha1.EtcdCluster{a}},
		"by an earlier grant":               {[]*v1alpha1.EtcdCluster{granted}, Request{Node: "w1", UID: "u1"}, []*v1alpha1.EtcdCluster{granted}},
		"by address":                        {all, Request{Node: "x", UID: "ux", Labelled: true, Addresses: []string{address(0)}}, []*v1alpha1.EtcdCluster{a, b}},
		"by address, without the label":     {all, Request{Node: "x", UID: "ux", Addresses: []string{address(0)}}, nil},
		"a worker":                          {all, Request{Node: "x", UID: "ux", Addresses: []string{"10.0.0.99"}}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Involved(c.clusters, c.request)) })
	}
}

// asking gives the cluster the nonce that the answers of a world carry.
func asking(w *world) *v1alpha1.EtcdCluster {
	w.Cluster.Spec.Nonce = asked
	return w.Cluster
}

func TestUnlabelledVerdict(t *testing.T) {
	again := Request{Node: "w1", UID: "u1-again"}
	unseen := Request{Node: "w2", UID: "u2", Addresses: []string{address(1)}}
	agentless := func() *world {
		w := voters(3).unbound(1)
		w.Cluster.Status.Observations = []v1alpha1.Observation{*w.observer(0), *w.observer(2)}
		return w
	}
	announcing := again
	announcing.Announced = []MemberRef{{clusterX, "a"}}
	for name, c := range map[string]struct {
		world   *world
		request Request
		members []v1alpha1.MemberID
		says    string
	}{
		"its agent has never run":                            {agentless(), unseen, ids("b"), "kubectl label node w2 holdfast.dev/etcd-member=true"},
		"its agent has never run, the others are silent":     {agentless().silent(0, 2), unseen, ids("b"), "etcdctl member remove b"},
		"one Node alone lists a member at its address":       {agentless().blind(0), unseen, nil, ""},
		"the member at its address has left the new lists":   {&world{View{Cluster: asking(voters(4).unbound(1).removedFrom(0, 1).removedFrom(2, 1).silent(1, 3))}}, unseen, nil, ""},
		"the member at its address is bound to another":      {agentless().rebound(0, 2), Request{Node: "w9", UID: "u9", Addresses: []string{address(0)}}, nil, ""},
		"a used name, before the grant is there":             {voters(3).dead(0), again, ids("a"), "etcdctl member remove a"},
		"a used name, what was on the old Node is given up":  {voters(3).dead(0).granted(0), again, nil, ""},
		"a used name, given up, and it announces the member": {voters(3).dead(0).granted(0), announcing, ids("a"), ""},
		"a used name, given up, and two members bound":       {voters(3).rebound(1, 0).granted(0), again, ids("b"), "etcdctl member remove b"},
		"a used name, given up, and a grant of its own": {
			voters(3).granted(0).grantedTo("u1-again", 0), again, ids("a"), "",
		},
		"the same Node, given up": {voters(3).granted(0), Request{Node: "w1", UID: "u1"}, ids("a"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := UnlabelledVerdict([]*v1alpha1.EtcdCluster{c.world.Cluster}, c.request)
			require.Equal(t, len(c.members) == 0, v.Allowed, v.Message)
			require.Equal(t, c.members, v.Members)
			require.Contains(t, v.Message, c.says)
			require.True(t, v.Final)
		})
	}
}

// grantedTo allows the deletion of another Node with member i on it.
func (w *world) grantedTo(node types.UID, i int) *world {
	g := grantFor(i)
	g.NodeUID = node
	w.Cluster.Spec.Grants = append(w.Cluster.Spec.Grants, g)
	return w
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
