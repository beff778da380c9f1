package quorum_test

import (
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	raftquorum "go.etcd.io/raft/v3/quorum"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A memberVariant is everything about one member that a verdict may depend on.
type memberVariant struct {
	place   string // target, granted, gone, unbound, elsewhere
	health  string // proven, silent, corrupt, unstarted
	learner bool
}

// isLost reports whether the member counts as lost after the deletion.
func (m memberVariant) isLost() bool { return m.place != "unbound" && m.place != "elsewhere" }

// survives reports whether the member is proven to be healthy after the deletion.
func (m memberVariant) survives() bool { return !m.isLost() && m.health == "proven" }

func variants(places, healths []string) []memberVariant {
	var all []memberVariant
	for _, p := range places {
		for _, h := range healths {
			all = append(all, memberVariant{p, h, false}, memberVariant{p, h, true})
		}
	}
	return all
}

func allVariants() []memberVariant {
	return variants(
		[]string{"target", "granted", "gone", "unbound", "elsewhere"},
		[]string{"proven", "silent", "corrupt", "unstarted"})
}

// TestDecideAgreesWithRaft compares Decide with raft for every cluster of up to five members:
// can the surviving members still win a vote, whichever of the lost learners are promoted before
// they are lost? The order of members does not matter (TestMemberOrder), so every multiset of
// variants is every cluster. Clusters of up to three members are tried with all variants.
func TestDecideAgreesWithRaft(t *testing.T) {
	plain := variants([]string{"target", "granted", "elsewhere"}, []string{"proven", "silent"})
	var allowed, refused atomic.Int64
	compare := func(t *testing.T) func([]memberVariant) {
		return func(members []memberVariant) {
			if decideLikeRaft(t, members) {
				allowed.Add(1)
			} else {
				refused.Add(1)
			}
		}
	}
	t.Run("all", func(t *testing.T) {
		for n := 1; n <= 5; n++ {
			for first := range plain { // Splits the largest n among the processors.
				t.Run(fmt.Sprint(n, " members from ", plain[first]), func(t *testing.T) {
					t.Parallel()
					combinations(plain, n, first, first+1, compare(t))
				})
			}
		}
		for n := 1; n <= 3; n++ {
			combinations(allVariants(), n, 0, len(allVariants()), compare(t))
		}
	})
	require.EqualValues(t, 6_187+12_340, allowed.Load()+refused.Load(), "17 over 5, and 43 over 3, without the empty "+
		"clusters")
	require.Greater(t, allowed.Load(), int64(2_000))
	require.Greater(t, refused.Load(), int64(2_000))
}

// combinations calls f with every multiset of n variants whose first index is in [first, end).
func combinations(from []memberVariant, n, first, end int, f func([]memberVariant)) {
	chosen := make([]memberVariant, n)
	var choose func(at, start, end int)
	choose = func(at, start, end int) {
		if at == n {
			f(chosen)
			return
		}
		for i := start; i < end; i++ {
			chosen[at] = from[i]
			choose(at+1, i, len(from))
		}
	}
	choose(0, first, end)
}

// decideLikeRaft requires that Decide and raft agree, and returns whether they allow the deletion.
func decideLikeRaft(t *testing.T, members []memberVariant) bool {
	v := decideFor(members)
	if want := raftAllows(members); v.Allowed != want {
		require.Equal(t, want, v.Allowed, "%+v\n%s", members, words.Message(v))
	}
	return v.Allowed
}

func decideFor(members []memberVariant) quorum.Verdict {
	return quorum.Decide(clusterOf(members).View, quorum.Request{Node: "target", UID: "target"})
}

func TestMemberOrder(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	all := allVariants()
	for range 1000 {
		members := make([]memberVariant, 1+r.Intn(7))
		for i := range members {
			members[i] = all[r.Intn(len(all))]
		}
		before := decideFor(members)
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		after := decideFor(members)
		require.Len(t, after.Members, len(before.Members), "%+v", members)
		for _, v := range []*quorum.Verdict{&before, &after} {
			tally := quorum.Tally{Voters: v.Facts.Tally.Voters, Healthy: v.Facts.Tally.Healthy, Quorum: v.Facts.Tally.Quorum}
			v.Members, v.Facts, v.Final = nil, quorum.Facts{Tally: tally}, false
		}
		require.Equal(t, before, after, "%+v", members)
	}
}

// raftAllows reports whether the surviving members can win every possible vote.
func raftAllows(members []memberVariant) bool {
	if !slices.ContainsFunc(members, func(m memberVariant) bool { return m.place == "target" }) {
		return true
	}
	var lostLearners []int
	for i, m := range members {
		if m.learner && m.isLost() {
			lostLearners = append(lostLearners, i)
		}
	}
	for promoted := range 1 << len(lostLearners) {
		config, votes := raftquorum.MajorityConfig{}, map[uint64]bool{}
		for i, m := range members {
			bit := slices.Index(lostLearners, i)
			if m.learner && (bit < 0 || promoted&(1<<bit) == 0) {
				continue
			}
			config[uint64(i)+1] = struct{}{}
			votes[uint64(i)+1] = m.survives()
		}
		if len(config) > 0 && config.VoteResult(votes) != raftquorum.VoteWon {
			return false
		}
	}
	return true
}

// clusterOf returns a cluster of these members. The observer is another Node, which is bound to a
// member that has left.
func clusterOf(members []memberVariant) *quorumtest.Cluster {
	cluster := quorumtest.Voters(0)
	o := v1alpha1.Observation{Node: "observer", NodeUID: "observer", Nonce: quorumtest.Nonce, Linearizable: true}
	cluster.Cluster.Spec.Members = []v1alpha1.Binding{{
		MemberID: "ffff", Node: "observer", NodeUID: "observer", Basis: v1alpha1.BasisRole,
	}}
	cluster.Nodes["observer"] = observation.NodeState{Known: true, UID: "observer", HasRole: true}
	cluster.Nodes["target"] = observation.NodeState{Known: true, UID: "target", HasRole: true}
	for i, m := range members {
		if m.place != "unbound" {
			cluster.Bind(i)
		}
		last := &cluster.Cluster.Spec.Members[len(cluster.Cluster.Spec.Members)-1]
		switch m.place {
		case "target":
			last.Node, last.NodeUID = "target", "target"
		case "granted":
			cluster.Granted(i)
		case "gone":
			cluster.Nodes[quorumtest.Node(i)] = observation.NodeState{Known: true}
		}
		status := v1alpha1.MemberStatus{
			ID: quorumtest.ID(i), Name: quorumtest.Node(i), Learner: m.learner, Healthy: m.health != "silent",
		}
		switch m.health {
		case "corrupt":
			status.Alarms = []string{"CORRUPT"}
		case "unstarted":
			status.Name = ""
		}
		o.Members = append(o.Members, status)
	}
	cluster.Cluster.Observations = []v1alpha1.Observation{o}
	return cluster
}
