package quorum_test

import (
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// The steps of a refusal that promise an allowed deletion.
var (
	removeOthers = regexp.MustCompile(`\(without (.*) in the member list, this (?:deletion|drain) is allowed\)`)
	removeOwn    = regexp.MustCompile(`remove its members from the cluster \(etcd checks that this is safe\): (.*)`)
	addMembers   = regexp.MustCompile(`first add (\d) more members? and wait`)
	memberIDs    = regexp.MustCompile(`[( ]([0-9a-f])\b[),]?`)
)

// TestStepsLeadToAllowed follows the steps in the refusals of random clusters.
func TestStepsLeadToAllowed(t *testing.T) {
	tried := map[*regexp.Regexp]int{}
	r := rand.New(rand.NewSource(3))
	for range 800 {
		n := 1 + r.Intn(7)
		cluster := quorumtest.Voters(n)
		cluster.MinRemainingTolerance = r.Intn(8) / 7
		for i := range n {
			switch r.Intn(8) {
			case 0:
				cluster.Dead(i)
			case 1:
				cluster.Granted(i)
			case 4:
				cluster.Drained(i)
			case 2:
				cluster.Learner(i)
			case 3:
				cluster.State(i, quorumtest.Rebooting)
			}
		}
		request := quorumtest.Deletion(0)
		if r.Intn(3) == 0 {
			request = quorumtest.Drain(0)
			cluster.State(0, quorumtest.Cordoned)
		}
		before := quorum.Decide(cluster.View, request)
		if before.Allowed {
			continue
		}
		for _, step := range []*regexp.Regexp{addMembers, removeOthers, removeOwn} {
			match := step.FindStringSubmatch(words.Message(before))
			if match == nil {
				continue
			}
			tried[step]++
			changed := &quorumtest.Cluster{View: quorumtest.CopyOf(cluster.View)}
			if step == addMembers {
				for i := range int(match[1][0] - '0') {
					for o := range changed.Cluster.Observations {
						list := &changed.Cluster.Observations[o]
						list.Members = append(list.Members, quorumtest.Member(n+i))
					}
				}
			} else {
				for _, m := range memberIDs.FindAllStringSubmatch(match[1], -1) {
					changed.Removed(strings.Index("abcdef123456789", m[1]))
				}
			}
			after := quorum.Decide(changed.View, request)
			require.True(t, after.Allowed, "%s\nafter: %s", words.Message(before), match[0])
		}
	}
	require.Greater(t, min(tried[addMembers], tried[removeOthers], tried[removeOwn]), 20, "%v", tried)
	twoOfTwo := quorum.Decide(quorumtest.Voters(3).Dead(1).View, quorumtest.Deletion(0))
	require.NotContains(t, words.Message(twoOfTwo), "this deletion is allowed)")
}

// A member that counts as lost but still answers runs somewhere. The steps must not remove it from
// etcd. They must make it count again: TestMessages "another member moved" has them.
func TestMovedMember(t *testing.T) {
	cluster := movedAway()
	silent := quorum.Decide(quorumtest.Voters(3).Granted(1).Dead(1).View, quorumtest.Deletion(0))
	require.Contains(t, words.Message(silent), "etcdctl member remove b")

	nodes := quorumtest.Nodes(3)
	nodes[1] = observation.AnnouncingNode{
		Node: "w2b", UID: "u2b", Addresses: []string{quorumtest.Address(1)},
		Announced: []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: "b"}},
	}
	spec := &cluster.Cluster.Spec
	spec.Grants, spec.Members = membership.ResolveByHand(cluster.Cluster, "u2", cluster.Nodes)
	spec.Members, _ = membership.Bind(cluster.Cluster, nodes, cluster.Nonces, quorumtest.Noon())
	require.EqualValues(t, "u2b", spec.Members[1].NodeUID)
	quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(0))
}

// The refusal advises to wait for a Node only if no autoscaler has marked it.
func TestTaintedNodeIsNotAwaited(t *testing.T) {
	cluster := quorumtest.Voters(3).Granted(1)
	require.Contains(t, words.Message(quorum.Decide(cluster.View, quorumtest.Deletion(0))), "if it stays, wait")
	cluster.State(1, quorumtest.Departing)
	require.NotContains(t, words.Message(quorum.Decide(cluster.View, quorumtest.Deletion(0))), "if it stays, wait")
}

func TestNamesAreNotFormats(t *testing.T) {
	cluster := quorumtest.Voters(4).Dead(1).Everywhere(1, func(m *v1alpha1.MemberStatus) { m.Name = "50%d%s" })
	message := words.Message(quorum.Decide(cluster.View, quorumtest.Deletion(0)))
	require.Contains(t, message, "while 50%d%s (b) is in its member list")
	require.NotContains(t, message, "%!")
}

func TestLongReasonsAreClipped(t *testing.T) {
	cluster := quorumtest.Voters(3).Everywhere(1, func(m *v1alpha1.MemberStatus) {
		m.Healthy, m.Reason = false, strings.Repeat("dial tcp:\n refused ", 50)
	})
	for line := range strings.SplitSeq(words.Message(quorum.Decide(cluster.View, quorumtest.Deletion(0))), "\n") {
		require.Less(t, len(line), 300)
	}
}

// A late observer claims the member of another node, and names another distribution.
func TestDistributionOfFalseClaim(t *testing.T) {
	w := without(3).LocalMember(2, "a")
	w.Cluster.Observations[2].Access = &v1alpha1.Access{Distribution: v1alpha1.DistributionK3s}
	require.NotContains(t, words.Warning(quorum.Decide(w.View, quorumtest.Deletion(0))), "k3s removes")
	w.Observer(0).Access = &v1alpha1.Access{Distribution: v1alpha1.DistributionK3s}
	require.Contains(t, words.Warning(quorum.Decide(w.View, quorumtest.Deletion(0))), "k3s removes")
}
