package quorum_test

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// TestMonotone changes random views for the worse. No refusal may become an allowance.
func TestMonotone(t *testing.T) {
	worse := map[string]func(*rand.Rand, *quorumtest.Cluster, int){
		"grant": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			g := quorumtest.GrantFor(r.Intn(n))
			g.Members = append(g.Members, quorumtest.ID(r.Intn(n)))
			cluster.Cluster.Spec.Grants = append(cluster.Cluster.Spec.Grants, g)
		},
		"failed probe": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			cluster.InList(r.Intn(n), r.Intn(n), func(m *v1alpha1.MemberStatus) { m.Healthy = false })
		},
		"alarm": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			cluster.InList(r.Intn(n), r.Intn(n), func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} })
		},
		"alarms unread": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) { cluster.AlarmsUnknown(r.Intn(n)) },
		"list of the unbound own agent": func(_ *rand.Rand, cluster *quorumtest.Cluster, n int) {
			bindings := &cluster.Cluster.Spec.Members
			*bindings = slices.DeleteFunc(*bindings, func(b v1alpha1.Binding) bool { return b.MemberID == quorumtest.ID(0) })
			cluster.Observer(0).LocalMember = quorumtest.ID(n - 1)
		},
		"node lost": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			i := r.Intn(n)
			cluster.State(i, func(s *observation.NodeState) {
				*s = []observation.NodeState{
					{}, {Known: true}, {Known: true, UID: "x"}, {Known: true, UID: quorumtest.UID(i), Deleting: true},
				}[r.Intn(4)]
			})
		},
		"node marked": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			marks := []func(*observation.NodeState){quorumtest.Departing, quorumtest.Rebooting, quorumtest.ShuttingDown}
			cluster.State(r.Intn(n), marks[r.Intn(len(marks))])
		},
		"unbound agent": func(r *rand.Rand, cluster *quorumtest.Cluster, n int) {
			o := *cluster.Observer(r.Intn(n)).DeepCopy()
			o.Node, o.NodeUID, o.Nonce, o.Linearizable = "stranger", "stranger", quorumtest.Nonce, true
			for i := range o.Members {
				o.Members[i].Healthy, o.Members[i].Learner = true, i > 0
			}
			cluster.With(o)
		},
	}
	for name, change := range worse {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewSource(1))
			allowed := 0
			for range 500 {
				// Without its Node, a list does not count. So that may hide a member which only this list has.
				cluster, n := randomCluster(r, name != "node lost")
				before := quorum.Decide(cluster.View, quorumtest.Deletion(0))
				change(r, cluster, n)
				after := quorum.Decide(cluster.View, quorumtest.Deletion(0))
				if before.Allowed {
					allowed++
				} else {
					require.False(t, after.Allowed, "before: %s\nafter: %s", words.Message(before), words.Message(after))
				}
			}
			require.Greater(t, allowed, 75)
		})
	}
}

// randomCluster returns a cluster of 3 to 7 members with some problems, one of which are lists that
// differ.
func randomCluster(r *rand.Rand, mayDiffer bool) (*quorumtest.Cluster, int) {
	n := 3 + r.Intn(5)
	cluster := quorumtest.Voters(n)
	for o := range n {
		for m := range n {
			cluster.InList(o, m, func(s *v1alpha1.MemberStatus) { s.Healthy = r.Intn(3) > 0 })
		}
		if r.Intn(4) == 0 {
			cluster.Silent(o)
		}
		if r.Intn(8) == 0 {
			cluster.Unconfirmed(o)
		}
		if r.Intn(8) == 0 {
			cluster.Learner(o)
		}
		if r.Intn(8) == 0 {
			cluster.Granted(o)
		}
		if mayDiffer && r.Intn(12) == 0 {
			cluster.RemovedFrom(r.Intn(n), o)
		}
	}
	return cluster, n
}
