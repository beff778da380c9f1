package quorum_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	raftquorum "go.etcd.io/raft/v3/quorum"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func TestRemovalArithmetic(t *testing.T) {
	for _, c := range []struct {
		voters, otherFailures                     int
		isTargetDead, stopsFirst, isDrained, want bool
	}{
		{voters: 1},
		{voters: 2, want: true},
		{voters: 2, stopsFirst: true},
		{voters: 2, isDrained: true},
		{voters: 2, otherFailures: 1},
		{voters: 3, want: true},
		{voters: 3, isTargetDead: true, want: true},
		{voters: 3, stopsFirst: true, want: true},
		{voters: 3, otherFailures: 1},
		{voters: 4, want: true},
		{voters: 4, otherFailures: 1, want: true}, // Then 2 of 3. Its deletion would be refused.
		{voters: 4, otherFailures: 1, stopsFirst: true},
		{voters: 4, otherFailures: 1, isDrained: true},
		{voters: 4, otherFailures: 2},
		{voters: 5, otherFailures: 1, want: true},
		{voters: 5, otherFailures: 1, isTargetDead: true, want: true},
		{voters: 5, otherFailures: 2},
		{voters: 6, otherFailures: 2, want: true},
		{voters: 6, otherFailures: 2, stopsFirst: true},
		{voters: 6, otherFailures: 3},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			cluster := quorumtest.Voters(c.voters)
			for i := range c.otherFailures {
				cluster.Unhealthy(i + 1)
			}
			if c.isTargetDead {
				cluster.Unhealthy(0)
			}
			if c.isDrained {
				cluster.Drained(0)
			}
			r := quorumtest.Removal(0)
			r.StopsFirst = c.stopsFirst
			v := quorum.Decide(cluster.View, r)
			require.Equal(t, c.want, v.Allowed, words.Message(v))
			require.Equal(t, quorumtest.IDs("a"), v.Members)
			require.Equal(t, c.voters-1-c.otherFailures, v.Healthy)
			r.Door = quorum.DoorDelete
			require.True(t, v.Allowed || !quorum.Decide(cluster.View, r).Allowed, "a removal needs no more than a deletion")
		})
	}
	tolerant := quorumtest.Voters(4).Unhealthy(1)
	tolerant.MinRemainingTolerance = 1
	require.False(t, quorum.Decide(tolerant.View, quorumtest.Removal(0)).Allowed)
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
