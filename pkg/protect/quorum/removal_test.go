package quorum_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	raftquorum "go.etcd.io/raft/v3/quorum"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// TestRemovalArithmetic has what TestRemovalAgreesWithRaft lacks: a member on the node that is lost
// already takes no part, and the reserve.
func TestRemovalArithmetic(t *testing.T) {
	three, four := quorumtest.Voters(3), quorumtest.Voters(4).Unhealthy(1)
	quorumtest.RequireAllowed(t, four, quorumtest.Removal(0)) // Then 2 of 3.
	require.False(t, quorum.Decide(four.View, quorumtest.Deletion(0)).Allowed)
	four.MinRemainingTolerance = 1
	quorumtest.RequireRefused(t, four, quorumtest.Removal(0), "1 more must be in reserve")
	quorumtest.RequireAllowed(t, three.Drained(0), quorumtest.Removal(0))
	quorumtest.RequireRefused(t, quorumtest.Voters(4).Unhealthy(1).Drained(0), quorumtest.Removal(0),
		"3 of 4 voters must be healthy")
}

// TestRemovalAgreesWithRaft compares the removal of a member with raft, for every cluster of up to
// five members: can the survivors win every vote after the removal, and can they and the member win
// every vote until then?
func TestRemovalAgreesWithRaft(t *testing.T) {
	plain := variants([]string{"target", "granted", "elsewhere"}, []string{"proven", "silent"})
	counts := map[bool]int{}
	for _, stopsFirst := range []bool{false, true} {
		compare := func(members []memberVariant) {
			r := quorum.Request{Node: "target", UID: "target", Door: quorum.DoorRemove, StopsFirst: stopsFirst}
			v := quorum.Decide(clusterOf(members).View, r)
			if want := raftAllowsRemoval(members, stopsFirst); v.Allowed != want {
				require.Equal(t, want, v.Allowed, "%+v, stops first: %v\n%s", members, stopsFirst, words.Message(v))
			}
			counts[v.Allowed]++
		}
		for n := 1; n <= 5; n++ {
			combinations(plain, n, 0, len(plain), compare)
		}
		for n := 1; n <= 2; n++ {
			combinations(allVariants(), n, 0, len(allVariants()), compare)
		}
	}
	require.Greater(t, counts[true], 3_000)
	require.Greater(t, counts[false], 3_000)
}

// raftAllowsRemoval reports whether no vote is lost while one member on the target is removed, and
// after that, whichever member it is, and whichever of the lost learners are promoted before.
func raftAllowsRemoval(members []memberVariant, stopsFirst bool) bool {
	isOnTarget := func(m memberVariant) bool { return m.place == "target" }
	if !slices.ContainsFunc(members, isOnTarget) {
		return true
	}
	isPromotable := func(m memberVariant) bool { return m.learner && m.isLost() }
	takesPart := func(m memberVariant) bool { return isOnTarget(m) && !m.learner && m.health == "proven" && !stopsFirst }
	for promoted := range 1 << len(members) {
		isVoter := func(i int) bool { return !members[i].learner || isPromotable(members[i]) && promoted&(1<<i) != 0 }
		for removed := -1; removed < len(members); removed++ { // -1: until then
			if removed >= 0 && !isOnTarget(members[removed]) {
				continue
			}
			config, votes := raftquorum.MajorityConfig{}, map[uint64]bool{}
			for i, m := range members {
				if i == removed || !isVoter(i) {
					continue
				}
				config[uint64(i)+1] = struct{}{}
				votes[uint64(i)+1] = m.survives() || removed < 0 && takesPart(m)
			}
			hadVoters := slices.ContainsFunc(members, func(m memberVariant) bool { return !m.learner || isPromotable(m) })
			if (len(config) == 0 && hadVoters && removed >= 0) || config.VoteResult(votes) != raftquorum.VoteWon {
				return false
			}
		}
	}
	return true
}
