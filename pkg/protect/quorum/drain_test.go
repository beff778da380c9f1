package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// F36: a program that evicts pods from nodes that stay drains nothing.
// F36: a descheduler evicted the guard pod of a node that stayed, so no other node could be
// drained.
func TestF36NotDraining(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observation.NodeState)
		want   quorum.Reason
	}{
		"open":           {func(*observation.NodeState) {}, quorum.NotDraining},
		"cordoned":       {quorumtest.Cordoned, quorum.QuorumKept},
		"marked":         {quorumtest.Departing, quorum.QuorumKept},
		"away":           {quorumtest.Rebooting, quorum.QuorumKept},
		"shutting down":  {quorumtest.ShuttingDown, quorum.QuorumKept},
		"being deleted":  {func(n *observation.NodeState) { n.Deleting = true }, quorum.QuorumKept},
		"other Node now": {func(n *observation.NodeState) { n.UID = "u1-again" }, quorum.QuorumKept},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := quorumtest.Voters(3).State(0, c.change)
			v := quorum.Decide(cluster.View, quorumtest.Drain(0))
			require.Equal(t, c.want, v.Reason, words.Message(v))
			require.Equal(t, c.want == quorum.QuorumKept, v.Allowed)
			require.True(t, quorum.Decide(cluster.View, quorumtest.Deletion(0)).Allowed, "a deletion needs no cordon")
			forced := quorum.Force(cluster.View, quorumtest.Drain(0))
			require.True(t, forced.Allowed)
			require.Equal(t, quorumtest.IDs("a"), forced.Members)
		})
	}
}

// F33: a drain and a deletion are decided by the same arithmetic, and each counts for the other.
// F33: three nodes were drained at once for a reboot, because etcd has no pod.
func TestF33DrainsAndDeletions(t *testing.T) {
	for voters := 1; voters <= 5; voters++ {
		for lost := range 1 << voters {
			for _, isDrained := range []bool{true, false} {
				cluster := quorumtest.Voters(voters).State(0, quorumtest.Cordoned)
				for i := 1; i < voters; i++ {
					switch {
					case lost&(1<<i) == 0:
					case isDrained:
						cluster.Drained(i)
					default:
						cluster.Granted(i)
					}
				}
				drain := quorum.Decide(cluster.View, quorumtest.Drain(0))
				deletion := quorum.Decide(cluster.View, quorumtest.Deletion(0))
				require.Equal(t, voters == 1 || deletion.Allowed, drain.Allowed, words.Message(drain))
				require.Equal(t, deletion.Members, drain.Members)
				require.Equal(t, deletion.Facts.Tally.Healthy, drain.Facts.Tally.Healthy)
			}
		}
	}
	two := quorumtest.Voters(2).State(0, quorumtest.Cordoned)
	quorumtest.RequireRefused(t, two, quorumtest.Drain(0), "holdfast.dev/break-glass")
}

func TestDrainOfOnlyMember(t *testing.T) {
	one := func() *quorumtest.Cluster { return quorumtest.Voters(1).State(0, quorumtest.Cordoned) }
	decide := func(c *quorumtest.Cluster, r quorum.Request) quorum.Verdict { return quorum.Decide(c.View, r) }
	v := decide(one(), quorumtest.Drain(0))
	require.True(t, v.Allowed, words.Message(v))
	require.Equal(t, quorum.OnlyMember, v.Reason)
	require.Equal(t, quorumtest.IDs("a"), v.Members, "the grant names it")
	two := func() *quorumtest.Cluster { return quorumtest.Voters(2).State(0, quorumtest.Cordoned) }
	for name, v := range map[string]quorum.Verdict{
		"deletion":             decide(one(), quorumtest.Deletion(0)),
		"no list":              decide(one().WithoutList(0), quorumtest.Drain(0)),
		"silent":               decide(one().Silent(0), quorumtest.Drain(0)),
		"a learner joins":      decide(two().Learner(1), quorumtest.Drain(0)),
		"an unbound learner":   decide(two().Learner(1).Unbound(1), quorumtest.Drain(0)),
		"another bound member": decide(two().Removed(1).Silent(1), quorumtest.Drain(0)),
		"lists differ":         decide(two().RemovedFrom(0, 1), quorumtest.Drain(0)),
	} {
		require.False(t, v.Allowed, name)
	}
}
