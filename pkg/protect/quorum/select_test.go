package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func TestSelect(t *testing.T) {
	a, b := quorumtest.Voters(3).Cluster, quorumtest.Voters(3).Cluster
	a.Name, b.Name = "aaa", "bbb"
	b.Spec.Members = b.Spec.Members[1:]
	all := []*v1alpha1.EtcdCluster{b, a}
	granted := quorumtest.Voters(3).NeverBound().Granted(0).Cluster
	oneList := quorumtest.Voters(3).WithoutList(0, 1).Cluster
	unconfirmed := quorumtest.Voters(3).Unconfirmed(0, 1, 2).Cluster
	oldLists := probed(quorumtest.Voters(4).Removed(3).RemovedFrom(0, 0).RemovedFrom(1, 0).Silent(2, 3))
	worker := quorum.Request{Node: "x", UID: "ux", Addresses: []string{quorumtest.Address(0)}}
	atAddress := worker
	atAddress.Labelled = true
	forced := atAddress
	forced.BreakGlass = &quorum.BreakGlass{}
	bound := quorum.Request{Node: "w1", UID: "u1", Labelled: true}
	boundAtAddress, announcing := bound, bound
	boundAtAddress.Addresses = worker.Addresses
	announcing.Announced = []evidence.MemberRef{{Cluster: "bbb", Member: "a"}}
	type clusters = []*v1alpha1.EtcdCluster
	farWorker := quorum.Request{Node: "x", UID: "ux", Addresses: []string{"10.0.0.99"}}
	for name, c := range map[string]struct {
		clusters clusters
		request  quorum.Request
		want     clusters
	}{
		"bound in one":                        {all, bound, clusters{a}},
		"bound in one, at address in another": {all, boundAtAddress, clusters{a, b}},
		"bound in one, announced in another":  {all, announcing, clusters{a, b}},
		"bound in both":                       {all, quorum.Request{Node: "w2", UID: "u2"}, clusters{a, b}},
		"bound by name only":                  {all, quorum.Request{Node: "w1", UID: "u1-again"}, clusters{a}},
		"bound by UID only":                   {all, quorum.Request{Node: "renamed", UID: "u1"}, clusters{a}},
		"earlier grant":                       {clusters{granted}, quorum.Request{Node: "w1", UID: "u1"}, clusters{granted}},
		"at address":                          {all, atAddress, clusters{a, b}},
		"at address in one list":              {clusters{oneList}, atAddress, clusters{}},
		"at address in one list, break-glass": {clusters{oneList}, forced, clusters{oneList}},
		"at address in old lists":             {clusters{oldLists}, atAddress, clusters{}},
		"F89 at address in unconfirmed lists": {clusters{unconfirmed}, atAddress, clusters{unconfirmed}},
		"at address without the label":        {all, worker, clusters{a, b}},
		"worker":                              {all, farWorker, clusters{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, quorum.Select(c.clusters, c.request)) })
	}
}

// unreported returns the request for a node whose agent has not reported.
func unreported(r quorum.Request) quorum.Request {
	r.AgentSilent = true
	return r
}

// probed gives the EtcdCluster the nonce of the answers.
func probed(c *quorumtest.Cluster) *v1alpha1.EtcdCluster {
	c.Cluster.Spec.Nonce = quorumtest.Nonce
	return c.Cluster
}

func TestDecideUnlabelled(t *testing.T) {
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	same := quorum.Request{Node: "w1", UID: "u1"}
	reused := quorum.Request{Node: "w1", UID: "u1-again"}
	announcing := reused
	announcing.Announced = []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: "a"}}
	joined, ofOther := reused, reused
	joined.Announced = []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: "f"}}
	ofOther.Announced = []evidence.MemberRef{{Cluster: "abc", Member: "f"}}
	reported := same
	reported.Announced = announcing.Announced
	second := quorum.Request{Node: "w2", UID: "u2", Addresses: []string{quorumtest.Address(1)}}
	silent := unreported(second)
	other := quorum.Request{Node: "w9", UID: "u9", Addresses: []string{quorumtest.Address(0)}}
	agentless := func() *quorumtest.Cluster {
		cluster := quorumtest.Voters(3).Unbound(1)
		cluster.Cluster.Observations = []v1alpha1.Observation{*cluster.Observer(0), *cluster.Observer(2)}
		cluster.Cluster.Spec.Nonce = quorumtest.Nonce
		return cluster
	}
	removed := func() *quorumtest.Cluster { return three().Emptied(0).Drained(0).Removed(0).Unbound(0) }
	dead := quorumtest.Voters(5).Emptied(0).Drained(0).Removed(0).Unbound(0).Dead(3)
	dead.Observer(3).Members = append(dead.Observer(3).Members, quorumtest.Member(0))
	dead.Cluster.Spec.Nonce = quorumtest.Nonce
	removedFromOne := three().Emptied(0).Drained(0).RemovedFrom(1, 0).Unbound(0)
	twoOnNode, unprobed := three().Rebound(1, 0), three().Silent(0, 1, 2)
	inOldLists := quorumtest.Voters(4).Unbound(1).RemovedFrom(0, 1).RemovedFrom(2, 1).Silent(1, 3)
	probed(inOldLists)
	const missing = "its label holdfast.dev/etcd-member is missing"
	ownCluster := quorumtest.Voters(2).Unbound(1)
	ownCluster.Cluster.Observations = ownCluster.Cluster.Observations[:1]
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		request quorum.Request
		members []v1alpha1.MemberID
		text    string
	}{
		// F3: the entry waited for agents longer than its deadline, and an unlabelled node was deleted.
		"F3 bound":                        {unprobed, same, quorumtest.IDs("a"), missing},
		"F3 announced, unbound":           {unprobed, joined, quorumtest.IDs("a", "f"), missing},
		"F3 announced, no EtcdCluster":    {unprobed, ofOther, quorumtest.IDs("a"), missing},
		"F3 worker at a member's address": {unprobed, other, nil, ""},
		"F3 worker, no EtcdCluster": {
			unprobed, quorum.Request{Node: "w9", UID: "u9", Announced: ofOther.Announced}, quorumtest.IDs("f"), missing,
		},
		"agent never ran": {agentless(), second, quorumtest.IDs("b"), "kubectl label node w2 " +
			"holdfast.dev/etcd-member=true"},
		"agent never ran, others silent": {agentless().Silent(0, 2), second, quorumtest.IDs("b"), "etcdctl member remove b"},
		"at address in one list":         {agentless().WithoutList(0), second, nil, ""},
		"at address in old lists":        {inOldLists, second, nil, ""},
		// F32: a member joined between two lists, and its unlabelled node was deleted.
		"F32 agent silent, one list": {agentless().WithoutList(0), silent, quorumtest.IDs("b"), "node w3 lists it"},
		"agent silent, learner in one list": {
			agentless().WithoutList(0).Learner(1), silent, quorumtest.IDs("b"), "has not reported whether etcd runs here",
		},
		"agent silent, the lists differ": {
			agentless().RemovedFrom(0, 1), silent, quorumtest.IDs("b"), "the list of node w1 does not have it there",
		},
		"F89 agent never ran, no list confirmed": {
			agentless().Unconfirmed(0, 2), second, quorumtest.IDs("b"), "",
		},
		"F89 agent silent, no list confirmed": {
			agentless().Unconfirmed(0).WithoutList(2), silent, quorumtest.IDs("b"), "node w1 lists it",
		},
		"F89 beside a confirmed list": {
			agentless().Unconfirmed(0).RemovedFrom(1, 1), silent, nil, "",
		},
		"F89 beside an older confirmed list": {
			agentless().Unconfirmed(0).RemovedFrom(1, 1).Silent(2), silent, quorumtest.IDs("b"), "node w1 lists it",
		},
		"agent silent, in no list":           {agentless().Removed(1), silent, nil, ""},
		"agent silent, bound elsewhere":      {agentless().WithoutList(0).Rebound(0, 2), unreported(other), nil, ""},
		"agent silent, worker's own cluster": {ownCluster, silent, nil, ""},
		"at address, bound elsewhere":        {agentless().Rebound(0, 2), other, nil, ""},
		"name reused, no grant":              {three().Dead(0), reused, quorumtest.IDs("a"), "etcdctl member remove a"},
		"name reused, granted":               {three().Dead(0).Granted(0), reused, nil, ""},
		"F84 name reused, granted, silent": {
			three().Granted(0), unreported(reused), quorumtest.IDs("a"),
			"an earlier Node of this name had it, and the agent of this node has not reported",
		},
		"F84 name reused, granted, silent, no list confirmed": {
			three().Granted(0).Unconfirmed(0, 1, 2), unreported(reused), quorumtest.IDs("a"), "etcdctl member remove a",
		},
		"name reused, silent, one of two announced": {
			twoOnNode, unreported(announcing), quorumtest.IDs("a", "b"), missing,
		},
		"name reused, removed, silent":    {three().Removed(0).Granted(0), unreported(reused), nil, ""},
		"name reused, granted, announced": {three().Dead(0).Granted(0), announcing, quorumtest.IDs("a"), ""},
		"name reused, one of two granted": {twoOnNode.Granted(0), reused, quorumtest.IDs("b"), "etcdctl member remove b"},
		"name reused, both Nodes granted": {three().Granted(0).GrantedTo("u1-again", 0), reused, quorumtest.IDs("a"), ""},
		"same Node, granted":              {three().Granted(0), same, quorumtest.IDs("a"), ""},
		// F58, F60: a removed member was in the grant of a drain, or had left data: the deletion was
		// refused permanently.
		"F58 drained, member removed":        {removed(), same, nil, ""},
		"F58 removed, an observer is dead":   {dead, same, nil, ""},
		"F58 drained, removed, announced":    {removed(), reported, quorumtest.IDs("a"), ""},
		"F58 drained, removed from one list": {removedFromOne, same, quorumtest.IDs("a"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := quorum.DecideUnlabelled([]*v1alpha1.EtcdCluster{c.cluster.Cluster}, c.request)
			require.Equal(t, len(c.members) == 0, v.Allowed, words.Message(v))
			require.Equal(t, c.members, v.Members)
			require.Contains(t, words.Message(v), c.text)
			require.True(t, v.Final)
		})
	}
}

// TestLabelReleasesReusedName: the refusal of F84 suggests to set the label if no agent can run.
// The deletion of a Node of another machine is then allowed, because its members are lost already.
func TestLabelReleasesReusedName(t *testing.T) {
	cluster := quorumtest.Voters(3).Dead(0).Granted(0)
	request := quorum.Request{Node: "w1", UID: "u1-again", AgentSilent: true}
	refused := quorum.DecideUnlabelled([]*v1alpha1.EtcdCluster{cluster.Cluster}, request)
	require.Contains(t, words.Message(refused), "kubectl label node w1 holdfast.dev/etcd-member=true")
	cluster.State(0, func(n *observation.NodeState) { n.UID = request.UID })
	request.Labelled = true
	selected, decided := quorum.SelectOrDecide([]*v1alpha1.EtcdCluster{cluster.Cluster}, request)
	require.NotEmpty(t, selected, decided.Message)
	v := quorum.Decide(cluster.View, request)
	require.True(t, v.Allowed, words.Message(v))
}

func TestRefuseMissing(t *testing.T) {
	r := quorum.Request{Node: "w1", UID: "u1", Announced: []evidence.MemberRef{
		{Cluster: quorumtest.ClusterID, Member: "a"},
		{Cluster: "f", Member: "2"},
		{Cluster: "e", Member: "3"},
		{Cluster: "f", Member: "1"},
	}}
	verdicts := quorum.RefuseUndecidable([]*v1alpha1.EtcdCluster{quorumtest.Voters(3).Cluster}, r)
	require.Len(t, verdicts, 2)
	require.EqualValues(t, "e", verdicts[0].Cluster)
	require.Equal(t, quorumtest.IDs("1", "2"), verdicts[1].Members)
	for _, v := range verdicts {
		require.False(t, v.Allowed)
		require.True(t, v.Final)
		require.Equal(t, quorum.CannotSee, v.Reason)
		require.Contains(t, words.Message(v), "it has no EtcdCluster")
		require.Contains(t, words.Message(v), `{"uid":"u1"`)
	}
}

func TestUnidentifiedServer(t *testing.T) {
	one := []string{"systemd unit etcd-events.service"}
	two := []string{one[0], "process 9"}
	earlier := quorumtest.Voters(3).Cluster
	earlier.Spec.Members[0].NodeUID = "u0-of-before"
	three, four := quorumtest.Voters(3).Cluster, quorumtest.Voters(4).Unbound(3)
	oneList := quorumtest.Voters(4).Unbound(3).WithoutList(1, 2).Cluster
	for name, c := range map[string]struct {
		cluster    *v1alpha1.EtcdCluster
		node       int
		announced  bool
		unverified []string
		refused    bool
	}{
		"announced member only":                 {three, 0, true, nil, false},
		"announced member and a server":         {three, 0, true, one, true},
		"bound member, unannounced":             {three, 0, false, one, false},
		"bound member and a server":             {three, 0, false, two, true},
		"unbound member at address":             {four.Cluster, 3, false, one, false},
		"unbound member at address, a server":   {four.Cluster, 3, false, two, true},
		"unbound member at address in one list": {oneList, 3, false, one, true},
		"server only":                           {three, 8, false, one, true},
		"member of an earlier Node":             {earlier, 0, false, one, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := quorumtest.Deletion(c.node)
			r.Unverified = c.unverified
			if !c.announced {
				r.Announced = nil
			}
			clusters := []*v1alpha1.EtcdCluster{c.cluster}
			verdicts := quorum.RefuseUndecidable(clusters, r)
			require.Equal(t, c.refused, len(verdicts) > 0, verdicts)
			if c.refused {
				v := verdicts[0]
				require.Equal(t, quorum.Verdict{Reason: quorum.UnknownMember, Final: true, Facts: v.Facts}, v)
				require.Contains(t, words.Message(v), "systemd unit etcd-events.service")
				require.Contains(t, words.Message(v), "--etcd-cert")
				require.Contains(t, words.Message(v), `"uid":"`+string(r.UID)+`"`)
			}
			unlabelled := quorum.Request{Node: "w9", UID: "u9", Unverified: c.unverified}
			v := quorum.DecideUnlabelled(clusters, unlabelled)
			require.Equal(t, len(c.unverified) > 0, !v.Allowed, words.Message(v))
		})
	}
}

// The only answer to the last probe request lacks a member that older lists of others have.
func TestSelectByOlderLists(t *testing.T) {
	w := quorumtest.Voters(4).Unbound(3)
	w.Cluster.Observations = w.Cluster.Observations[:3]
	w.RemovedFrom(0, 3).Silent(1, 2).Cluster.Spec.Nonce = quorumtest.Nonce
	clusters, r := []*v1alpha1.EtcdCluster{w.Cluster}, quorumtest.Deletion(3)
	r.Announced = nil
	require.Len(t, quorum.Select(clusters, r), 1)
	require.False(t, quorum.DecideUnlabelled(clusters, r).Allowed)
	w.RemovedFrom(1, 3).Observer(1).Nonce = quorumtest.Nonce
	require.Empty(t, quorum.Select(clusters, r), "two answers agree that the member has left")
	require.True(t, quorum.DecideUnlabelled(clusters, r).Allowed)
}
