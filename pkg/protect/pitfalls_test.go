package protect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Each test is a trace by which an earlier draft of this design lost quorum or got stuck, as far as it can be told without
// a ledger. The F numbers are those of docs/verdict.md; more of F1 and F11 is in settle_test.go, of F12 and F13 in
// bind_test.go.

func refuses(t *testing.T, w *world, r Request, says string) {
	t.Helper()
	v := Decide(w.View, r)
	require.False(t, v.Allowed, v.Message)
	require.Equal(t, QuorumWouldBeLost, v.Reason)
	require.Contains(t, v.Message, says)
}

func allows(t *testing.T, w *world, r Request) {
	t.Helper()
	v := Decide(w.View, r)
	require.True(t, v.Allowed, v.Message)
}

func TestF1ARequestDecidesUnderOldAndNewLists(t *testing.T) {
	// The granted member was removed: w3's list says so already, w1's does not, and the grant is settled.
	refuses(t, voters(3).removedFrom(2, 1), deletion(0), "of 2 voters 2 must live")
}

func TestF2ANodeThatIsGoneWithoutAGrantIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*NodeState)
		says   string
	}{
		"gone":           {func(n *NodeState) { n.UID = "" }, "given up: its node w2 is gone; it still answers, so its etcd runs on\n"},
		"name used anew": {func(n *NodeState) { n.UID = "u2-again" }, "the Node that has the name now is another"},
		"being deleted":  {func(n *NodeState) { n.Deleting = true }, "its node w2 is being deleted"},
		"tainted": {
			func(n *NodeState) { n.DeletionTaint = "ToBeDeletedByClusterAutoscaler" },
			"its node w2 is about to be deleted (taint ToBeDeletedByClusterAutoscaler)",
		},
		"not read": {func(n *NodeState) { n.Known = false }, "its node w2 could not be read"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, voters(3).state(1, c.change), deletion(0), c.says) })
	}
	w := voters(3)
	delete(w.Nodes, "w2")
	refuses(t, w, deletion(0), "its node w2 could not be read")
	allows(t, voters(3).unbound(1), deletion(0)) // it never had a Node: it counts by probe
}

func TestF3AnUnlabelledNodeIsAnsweredWithoutAsking(t *testing.T) {
	w := voters(3).silent(0, 1, 2)
	clusters := []*v1alpha1.EtcdCluster{w.Cluster}
	for name, r := range map[string]Request{
		"bound":                    {Node: "w1", UID: "u1"},
		"registered anew":          {Node: "w1", UID: "u1-again"},
		"announced, not bound yet": {Node: "w9", UID: "u9", Announced: []MemberRef{{clusterX, "f"}}},
		"announced, no object yet": {Node: "w9", UID: "u9", Announced: []MemberRef{{"abc", "f"}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := UnlabelledVerdict(clusters, r)
			require.False(t, v.Allowed)
			require.True(t, v.Final)
			require.Contains(t, v.Message, "label holdfast.dev/etcd-member is missing")
			require.NotEmpty(t, v.Members, "a grant must name them")
		})
	}
	v := UnlabelledVerdict(clusters, Request{Node: "w9", UID: "u9", Addresses: []string{address(0)}})
	require.True(t, v.Allowed, "a worker that has the address of a member that is long gone")
	require.Equal(t, NothingToProtect, v.Reason)
}

func TestF4OnlyAnswersToThisQuestionProveHealth(t *testing.T) {
	w := voters(3).silent(1, 2).inList(0, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = false })
	refuses(t, w, deletion(0), "etcd2 (b) on node w2: not proven healthy")
	never := voters(3)
	for i := range never.Cluster.Status.Observations {
		never.Cluster.Status.Observations[i].Nonce = ""
	}
	never.Asked = []string{""}
	require.Equal(t, CannotSee, Decide(never.View, deletion(0)).Reason, "an empty nonce was never asked")
}

func TestF6OneProofIsEnoughAndAFailedProbeProvesNothing(t *testing.T) {
	w := voters(5)
	for o := range 5 { // k0s: every client URL is 127.0.0.1, so that each agent reaches its own member only
		for m := range 5 {
			w.inList(o, m, func(s *v1alpha1.MemberStatus) {
				s.ClientURLs, s.Healthy = []string{"https://127.0.0.1:2379"}, o == m
			})
		}
	}
	allows(t, w, deletion(0))
	allows(t, w.silent(1), deletion(0))
	refuses(t, w.silent(2), deletion(0), "only 2 would be left")
}

func TestF7WhoHasNoListVetoesNothing(t *testing.T) {
	allows(t, voters(5).blind(1), deletion(0))
	allows(t, voters(5).removedFrom(3, 4), deletion(0)) // lists differ, and both are safe
	refuses(t, voters(4).removedFrom(2, 3).sick(1), deletion(0), "of 4 voters 3 must live")
}

func TestF9ADoomedLearnerCountsAsAVoter(t *testing.T) {
	w := voters(4).learner(3)
	allows(t, w, deletion(3))
	refuses(t, w.granted(3), deletion(0), "etcd4 (d): given up")
	refuses(t, voters(4).learner(3).granted(0), deletion(3), "a learner: it counts as a voter")
}

func TestF12ADeadMemberThatNobodyRemovedIsNamed(t *testing.T) {
	w := voters(4).dead(3).state(3, func(n *NodeState) { n.UID = "" }).granted(3)
	refuses(t, w, deletion(0), "etcdctl member remove d\n    (with etcd4 (d) out of the list, this deletion is allowed)")
	allows(t, w.removed(3), deletion(0))
}

func TestF13WhoIsNotBoundIsNotHeard(t *testing.T) {
	liar := v1alpha1.Observation{
		Node: "w9", NodeUID: "u9", Nonce: asked, LocalMember: "b", Linearizable: true,
		Members: []v1alpha1.MemberStatus{member(1), member(2)},
	}
	w := voters(3).sick(1)
	w.Cluster.Status.Observations = append(w.Cluster.Status.Observations, liar)
	refuses(t, w, deletion(0), "of 3 voters 2 must live, and only 1")

	reused := voters(3).sick(1)
	reused.observer(2).NodeUID = "u3-again"
	reused.inList(2, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = true })
	refuses(t, reused, deletion(0), "only 1 would be left")
}

func TestF13ABogusClusterInvolvesNobodyElse(t *testing.T) {
	bogus := &v1alpha1.EtcdCluster{}
	bogus.Name = "bad"
	bogus.Spec.Members = []v1alpha1.Binding{{MemberID: "f", Node: "worker", NodeUID: "uw"}}
	bogus.Status.Observations = []v1alpha1.Observation{{
		Node: "worker", NodeUID: "uw", Nonce: asked, Linearizable: true, LocalMember: "f", Members: []v1alpha1.MemberStatus{member(0)},
	}}
	w := voters(3)
	require.Equal(t, []*v1alpha1.EtcdCluster{w.Cluster}, Involved([]*v1alpha1.EtcdCluster{bogus, w.Cluster}, deletion(0)))
}

func TestF19Tolerance(t *testing.T) {
	w := voters(5)
	w.MinRemainingTolerance = 1
	allows(t, w, deletion(0))
	v := Decide(w.sick(1).View, deletion(0))
	require.False(t, v.Allowed)
	require.Contains(t, v.Message, "of 5 voters 3 must live and 1 more must be expendable, and only 3 would be left")
	w.MinRemainingTolerance = -4
	refuses(t, w.sick(2), deletion(0), "only 2 would be left")
}
