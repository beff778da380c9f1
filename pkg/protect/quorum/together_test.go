package quorum_test

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// deletions returns the requests for these nodes.
func deletions(nodes ...int) []quorum.Request {
	var all []quorum.Request
	for _, i := range nodes {
		all = append(all, quorumtest.Deletion(i))
	}
	return all
}

func TestDecideTogether(t *testing.T) {
	claims := []quorum.Request{{Node: "w9", UID: "u9", Announced: []evidence.MemberRef{
		{Cluster: quorumtest.ClusterID, Member: quorumtest.ID(0)},
	}}}
	worker := []quorum.Request{{Node: "w9", UID: "u9", Labelled: true}}
	const ofFive = "3 of 5 voters must be healthy"
	voters := quorumtest.Voters
	kept, lost := quorum.QuorumKept, quorum.QuorumWouldBeLost
	longer := func(c *quorumtest.Cluster, i int) *quorumtest.Cluster {
		list := c.Observer(i)
		list.Members = append(list.Members, quorumtest.Member(5), quorumtest.Member(6))
		return c
	}
	for name, c := range map[string]struct {
		cluster  *quorumtest.Cluster
		requests []quorum.Request
		answer   quorum.Answer
		reason   quorum.Reason
		text     string
	}{
		"two of three": {
			quorumtest.Voters(3), deletions(0, 1), quorum.No, lost,
			"would lose quorum without nodes w1, w2: 2 of 3 voters must be healthy, and 1 would remain\n" +
				"  etcd1 (a): would be gone with node w1\n  etcd2 (b): would be gone with node w2\n" +
				"  etcd3 (c) on node w3: healthy",
		},
		"one of three": {
			voters(3), deletions(0), quorum.Yes, kept,
			"keeps quorum without node w1: 2 of 3 voters must be healthy, and 2 would remain",
		},
		"a silent one beside": {
			voters(5).Dead(2), deletions(0, 1), quorum.Unknown, lost, "may lose quorum without nodes w1, w2",
		},
		"the word of one other Node": {
			without(3).Unbound(1).Unbound(2), deletions(1), quorum.Unknown, quorum.CannotSee,
			"no two nodes returned the same confirmed member list",
		},
		"no member beside a broken cluster": {voters(3).Unhealthy(1, 2), worker, quorum.Yes, quorum.NothingToProtect, ""},
		"the only voter":                    {voters(1), deletions(0), quorum.No, lost, ""},
		"a claim of another's member":       {voters(5), claims, quorum.Unknown, quorum.UnknownMember, "another Node has it"},
		"a longer list of one observer":     {longer(voters(3), 0).Unhealthy(5, 6), deletions(0), quorum.No, lost, ofFive},
		"a longer list of its own agent":    {longer(voters(3), 0).Unbound(0), deletions(0), quorum.No, lost, ofFive},
	} {
		t.Run(name, func(t *testing.T) {
			c.cluster.MinRemainingTolerance = 2 // no part of the question
			v, answer := quorum.DecideTogether(c.cluster.View, c.requests)
			require.Equal(t, c.answer, answer, words.Message(v))
			require.Equal(t, c.reason, v.Reason, words.Message(v))
			require.Equal(t, answer == quorum.Yes, v.Allowed)
			require.Contains(t, words.Message(v), c.text)
		})
	}
}

// togetherFor returns the answer about the loss of the nodes "target" and "target2", over which the
// members with that place are spread.
func togetherFor(members []memberVariant) (quorum.Verdict, quorum.Answer, *quorumtest.Cluster) {
	c := clusterOf(members)
	c.Nodes["target2"] = observation.NodeState{Known: true, UID: "target2"}
	isOdd := false
	for b := range c.Cluster.Spec.Members {
		if binding := &c.Cluster.Spec.Members[b]; binding.Node == "target" {
			if isOdd {
				binding.Node, binding.NodeUID = "target2", "target2"
			}
			isOdd = !isOdd
		}
	}
	v, answer := quorum.DecideTogether(c.View, []quorum.Request{
		{Node: "target", UID: "target"}, {Node: "target2", UID: "target2"},
	})
	return v, answer, c
}

// TestTogetherAgreesWithRaft compares the answer about two nodes that are gone at once with raft,
// for random clusters of up to nine members. It is yes if and only if the surviving members win
// every possible vote. It is no if they lose one even if each member that no silent observer can
// still prove healthy is.
func TestTogetherAgreesWithRaft(t *testing.T) {
	r := rand.New(rand.NewSource(29))
	all := allVariants()
	answers := map[quorum.Answer]int{}
	for range 2000 {
		members := make([]memberVariant, 1+r.Intn(9))
		for i := range members {
			members[i] = all[r.Intn(len(all))]
			if r.Intn(2) == 0 {
				members[i] = memberVariant{place: []string{"target", "elsewhere"}[r.Intn(2)], health: "proven"}
			}
		}
		hopeful := slices.Clone(members)
		for i := range hopeful {
			if hopeful[i].health == "silent" && hopeful[i].place != "target" {
				hopeful[i].health = "proven"
			}
		}
		v, answer, c := togetherFor(members)
		answers[answer]++
		require.Equal(t, raftAllows(members), answer == quorum.Yes, "%+v\n%s", members, words.Message(v))
		hasSilent := slices.ContainsFunc(c.Cluster.Spec.Members, func(b v1alpha1.Binding) bool {
			n := c.Nodes[b.Node]
			return b.Node != "observer" && n.UID == b.NodeUID
		})
		if hasSilent {
			require.Equal(t, !raftAllows(hopeful), answer == quorum.No, "%+v\n%s", members, words.Message(v))
		}
	}
	for _, answer := range []quorum.Answer{quorum.Yes, quorum.No, quorum.Unknown} {
		require.Greater(t, answers[answer], 30, "%v", answers)
	}
}

// The answer about one node is that of a deletion, and more nodes never make it better.
func TestTogetherIsMonotone(t *testing.T) {
	r := rand.New(rand.NewSource(30))
	yes := 0
	for range 600 {
		c, n := randomCluster(r, true)
		alone, _ := quorum.DecideTogether(c.View, deletions(0))
		deletion := quorum.Decide(c.View, quorumtest.Deletion(0))
		require.Equal(t, deletion.Allowed, alone.Allowed, "%s\n%s", words.Message(deletion), words.Message(alone))
		both, answer := quorum.DecideTogether(c.View, deletions(0, 1+r.Intn(n-1)))
		if answer == quorum.Yes {
			yes++
			require.True(t, alone.Allowed, "%s\n%s", words.Message(alone), words.Message(both))
		}
	}
	require.Greater(t, yes, 20)
}

func TestSpread(t *testing.T) {
	zones := func(zones ...string) map[string]string {
		found := map[string]string{"worker": "z"}
		for i, zone := range zones {
			if zone != "" {
				found[quorumtest.Node(i)] = zone
			}
		}
		return found
	}
	holding := func(shares []quorum.ZoneShare) (found []string) {
		for _, s := range shares {
			if s.HoldsQuorum {
				found = append(found, s.Zone)
			}
		}
		return found
	}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		zones   map[string]string
		want    []string
	}{
		"one in each of three":     {quorumtest.Voters(3), zones("a", "b", "c"), nil},
		"two of three":             {quorumtest.Voters(3), zones("a", "a", "b"), []string{"a"}},
		"all of three":             {quorumtest.Voters(3), zones("a", "a", "a"), []string{"a"}},
		"two and two":              {quorumtest.Voters(4), zones("a", "a", "b", "b"), []string{"a", "b"}},
		"two, two and one":         {quorumtest.Voters(5), zones("a", "a", "b", "b", "c"), nil},
		"three and two":            {quorumtest.Voters(5), zones("a", "a", "a", "b", "b"), []string{"a"}},
		"health does not matter":   {quorumtest.Voters(3).Unhealthy(0), zones("a", "b", "c"), nil},
		"a learner does not count": {quorumtest.Voters(4).Learner(3), zones("a", "b", "c", "a"), nil},
		"two voters":               {quorumtest.Voters(2), zones("a", "a"), nil},
		"no label":                 {quorumtest.Voters(3), zones("", "", ""), nil},
		"two of three, no zone":    {quorumtest.Voters(3), zones("", "", "a"), nil},
		"voters without a zone":    {quorumtest.Voters(3), map[string]string{"worker": "z", "other": "y"}, nil},
		"all Nodes in one zone":    {quorumtest.Voters(3), map[string]string{"w1": "a", "w2": "a", "w3": "a"}, nil},
		"no list":                  {quorumtest.Voters(3).Silent(0, 1, 2), zones("a", "a", "b"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, holding(quorum.Summarize(c.cluster.View).Spread(c.zones)))
		})
	}
	require.Equal(t, []quorum.ZoneShare{
		{Zone: "", Voters: 1, Nodes: []string{"w3"}},
		{Zone: "a", Voters: 2, Nodes: []string{"w1", "w2"}, HoldsQuorum: true},
		{Zone: "z", HasRoom: true},
	}, quorum.Summarize(quorumtest.Voters(3).View).Spread(zones("a", "a")))
	rooms := quorum.Summarize(quorumtest.Voters(5).View).Spread(zones("a", "a", "b", "b", "c"))
	for _, share := range rooms {
		require.Equal(t, share.Zone == "c" || share.Zone == "z", share.HasRoom, share.Zone)
	}
	require.Equal(t, []quorum.ZoneShare{{Voters: 3, Nodes: []string{"w1", "w2", "w3"}}, {Zone: "z"}},
		quorum.Summarize(quorumtest.Voters(3).View).Spread(zones()), "one zone has no room")
	require.Equal(t, quorum.ZoneShare{Voters: 1},
		quorum.Summarize(quorumtest.Voters(3).Unbound(2).View).Spread(zones("a", "b"))[0], "a member on no Node")
	twoPlaces := quorumtest.Voters(3).Unbound(2).MayRunAt(2, 0).MayRunAt(2, 1)
	require.Equal(t, []quorum.ZoneShare{
		{Zone: "a", Voters: 2, Nodes: []string{"w1"}, HoldsQuorum: true},
		{Zone: "b", Voters: 2, Nodes: []string{"w2"}, HoldsQuorum: true},
		{Zone: "z", HasRoom: true},
	}, quorum.Summarize(twoPlaces.View).Spread(zones("a", "b")), "a member that may be in two zones counts in both")
}
