package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// Each test is a trace by which an earlier draft of the design lost quorum or blocked deletions.
// The F numbers are those of docs/verdict.md.

func TestF1OldAndNewLists(t *testing.T) {
	// The granted member was removed, and the grant is resolved. Only the list of w3 shows it.
	removed := quorumtest.Voters(3).RemovedFrom(2, 1)
	quorumtest.RequireRefused(t, removed, quorumtest.Deletion(0), "2 of 2 voters must be healthy")
}

// A lostState is a state of a node with which its member is lost, and a part of the refusal.
type lostState struct {
	change func(*observation.NodeState)
	text   string
}

func lostStates(node string) map[string]lostState {
	its := "its node " + node + " "
	reused := func(n *observation.NodeState) { n.UID = "of another Node" }
	return map[string]lostState{
		"gone":          {quorumtest.Gone, its + "is gone"},
		"name reused":   {reused, "a different Node has the name now"},
		"being deleted": {deleting, its + "is being deleted"},
		"tainted":       {quorumtest.Departing, its + "is about to be deleted (taint ToBeDeletedByClusterAutoscaler)"},
		"unread":        {unread, its + "could not be read"},
	}
}

func TestF2NodeGoneWithoutGrant(t *testing.T) {
	for name, c := range lostStates("w2") {
		t.Run(name, func(t *testing.T) {
			quorumtest.RequireRefused(t, quorumtest.Voters(3).State(1, c.change), quorumtest.Deletion(0), c.text)
		})
	}
	quorumtest.RequireRefused(t, quorumtest.Voters(3).State(1, quorumtest.Gone), quorumtest.Deletion(0),
		"counts as lost: its node w2 is gone; it still answers, so its etcd is still running\n")
	cluster := quorumtest.Voters(3)
	delete(cluster.Nodes, "w2")
	quorumtest.RequireRefused(t, cluster, quorumtest.Deletion(0), "its node w2 could not be read")
	// A member that never had a Node counts if a probe succeeds.
	quorumtest.RequireAllowed(t, quorumtest.Voters(3).Unbound(1), quorumtest.Deletion(0))
}

func TestF4EarlierAnswers(t *testing.T) {
	cluster := quorumtest.Voters(3).Silent(1, 2).InList(0, 1, unhealthy)
	quorumtest.RequireRefused(t, cluster, quorumtest.Deletion(0), "etcd2 (b) on node w2: not confirmed healthy")
	never := quorumtest.Voters(3)
	for i := range never.Cluster.Observations {
		never.Cluster.Observations[i].Nonce = ""
	}
	never.Nonces = []string{""}
	require.Equal(t, quorum.CannotSee, quorum.Decide(never.View, quorumtest.Deletion(0)).Reason, "empty nonce")
}

// F6: failed probes outweighed one proof that a member is healthy.
func TestF6OneProofSuffices(t *testing.T) {
	cluster := quorumtest.Voters(5)
	// In k0s every client URL is 127.0.0.1, so each agent reaches only its own member.
	for o := range 5 {
		for m := range 5 {
			cluster.InList(o, m, func(s *v1alpha1.MemberStatus) {
				s.ClientURLs, s.Healthy = []string{"https://127.0.0.1:2379"}, o == m
			})
		}
	}
	quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(0))
	quorumtest.RequireAllowed(t, cluster.Silent(1), quorumtest.Deletion(0))
	quorumtest.RequireRefused(t, cluster.Silent(2), quorumtest.Deletion(0), "only 2 would remain")
}

// F7: an observer with an old list, or with none, blocked every deletion.
func TestF7ObserverWithoutList(t *testing.T) {
	quorumtest.RequireAllowed(t, quorumtest.Voters(5).WithoutList(1), quorumtest.Deletion(0))
	// The lists differ, and the deletion is safe for both.
	quorumtest.RequireAllowed(t, quorumtest.Voters(5).RemovedFrom(3, 4), quorumtest.Deletion(0))
	differ := quorumtest.Voters(4).RemovedFrom(2, 3).Unhealthy(1)
	quorumtest.RequireRefused(t, differ, quorumtest.Deletion(0), "3 of 4 voters must be healthy")
}

func TestF9LostLearner(t *testing.T) {
	cluster := quorumtest.Voters(4).Learner(3)
	quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(3))
	quorumtest.RequireRefused(t, cluster.Granted(3), quorumtest.Deletion(0), "etcd4 (d): counts as lost")
	granted := quorumtest.Voters(4).Learner(3).Granted(0)
	quorumtest.RequireRefused(t, granted, quorumtest.Deletion(3), "a learner; it counts as a voter")
}

// F13: a worker claimed a member, an address or a cluster.
func TestF13UnboundObserver(t *testing.T) {
	forged := quorumtest.Voters(3).Unhealthy(1).With(v1alpha1.Observation{
		Node: "w9", NodeUID: "u9", Nonce: quorumtest.Nonce, LocalMember: "b", Linearizable: true,
		Members: []v1alpha1.MemberStatus{quorumtest.Member(1), quorumtest.Member(2)},
	})
	quorumtest.RequireRefused(t, forged, quorumtest.Deletion(0), "2 of 3 voters must be healthy, and only 1")

	reused := quorumtest.Voters(3).Unhealthy(1)
	reused.Observer(2).NodeUID = "u3-again"
	reused.InList(2, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = true })
	quorumtest.RequireRefused(t, reused, quorumtest.Deletion(0), "only 1 would remain")
}

func TestF13ForgedCluster(t *testing.T) {
	forged := &v1alpha1.EtcdCluster{}
	forged.Name = "bad"
	forged.Spec.Members = []v1alpha1.Binding{{MemberID: "f", Node: "worker", NodeUID: "uw", Basis: v1alpha1.BasisAddress}}
	_, o := quorumtest.Intruder(5, quorumtest.Member(0))
	forged.Observations = []v1alpha1.Observation{o}
	cluster := quorumtest.Voters(3).Cluster
	selected := quorum.Select([]*v1alpha1.EtcdCluster{forged, cluster}, quorumtest.Deletion(0))
	require.Equal(t, []*v1alpha1.EtcdCluster{cluster}, selected)
}

// F19: static pods were not protected, and no voter could be kept in reserve.
func TestF19Tolerance(t *testing.T) {
	cluster := quorumtest.Voters(5)
	cluster.MinRemainingTolerance = 1
	quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(0))
	quorumtest.RequireRefused(t, cluster.Unhealthy(1), quorumtest.Deletion(0),
		"3 of 5 voters must be healthy and 1 more must be in reserve, and only 3 would remain")
	cluster.MinRemainingTolerance = -4
	quorumtest.RequireRefused(t, cluster.Unhealthy(2), quorumtest.Deletion(0), "only 2 would remain")
}

// TestF24AnnouncedAbsence marks another node of three. The member on it still answers, but must not
// count: kured reboots its node, or an autoscaler deletes it. TestMessages has the refusals.
func TestF24AnnouncedAbsence(t *testing.T) {
	for name, change := range map[string]func(*observation.NodeState){
		"rebooted by kured": quorumtest.Rebooting, "shutdown of the host": quorumtest.ShuttingDown,
		"deleted by an autoscaler": quorumtest.Departing,
	} {
		t.Run(name, func(t *testing.T) {
			quorumtest.RequireRefused(t, quorumtest.Voters(3).State(1, change), quorumtest.Deletion(0), "node w2")
			refused := quorum.Decide(quorumtest.Voters(3).State(1, change).View, quorumtest.Deletion(0))
			require.NotContains(t, words.Message(refused), "etcdctl member remove b")
			require.Equal(t, 1, refused.Facts.Tally.Healthy)
			require.True(t, refused.Final, "no answer can change it")

			own := quorumtest.Voters(3).State(0, change)
			quorumtest.RequireAllowed(t, own, quorumtest.Deletion(0))
			quorumtest.RequireAllowed(t, quorumtest.Voters(5).State(1, change), quorumtest.Deletion(0))
			unbound := quorumtest.Voters(3).Unbound(1).MayRunAt(1, 1).State(1, change)
			quorumtest.RequireRefused(t, unbound, quorumtest.Deletion(0), "its node w2")
		})
	}
	// A voter that is corrupt or has never started has to be repaired in any case.
	for text, change := range map[string]func(*v1alpha1.MemberStatus){
		"replace etcd2 (b)":                   alarmed,
		"it was added, but has never started": unstarted,
	} {
		broken := quorumtest.Voters(3).State(1, quorumtest.Rebooting).Everywhere(1, change)
		quorumtest.RequireRefused(t, broken, quorumtest.Deletion(0), text)
	}
}

// TestF81NewLearnerOnRebootedNode: a learner has just been added on a node that is being rebooted.
// Whether or not it has started, it may be promoted before the reboot.
// F81: a learner on a node that rebooted was promoted meanwhile: two of four were left.
func TestF81NewLearnerOnRebootedNode(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.MemberStatus){
		"started":       func(*v1alpha1.MemberStatus) {},
		"never started": unstarted,
		"corrupt":       alarmed,
	} {
		t.Run(name, func(t *testing.T) {
			c := quorumtest.Voters(4).Unbound(3).MayRunAt(3, 3).Learner(3).Everywhere(3, change)
			quorumtest.RequireAllowed(t, c, quorumtest.Deletion(0))
			c.State(3, quorumtest.Rebooting)
			quorumtest.RequireRefused(t, c, quorumtest.Deletion(0), "it may be promoted before its node is away")
			quorumtest.RequireRefused(t, c, quorumtest.Deletion(0), "is being rebooted by kured")
			refused := quorum.Decide(c.View, quorumtest.Deletion(0)).Facts.Tally
			require.Equal(t, []int{4, 2, 3}, []int{refused.Voters, refused.Healthy, refused.Quorum})
		})
	}
}

// TestF28AnswerOfOtherNode: the writer of an observation chooses its UID. The new owner of the
// name of a Node that is gone publishes under the UID to which a member is still bound.
// F28: the new owner of a Node's name published under the UID of the earlier Node.
func TestF28AnswerOfOtherNode(t *testing.T) {
	forge := func() *quorumtest.Cluster {
		forged := quorumtest.Voters(5).Unhealthy(1)
		return forged.InList(4, 1, func(m *v1alpha1.MemberStatus) { m.Healthy = true })
	}
	quorumtest.RequireAllowed(t, forge(), quorumtest.Deletion(0))
	for name, state := range map[string]func(*observation.NodeState){
		"gone":        quorumtest.Gone,
		"name reused": func(n *observation.NodeState) { n.UID = "u5-again" },
		"not read":    func(n *observation.NodeState) { n.Known = false },
	} {
		t.Run(name, func(t *testing.T) {
			quorumtest.RequireRefused(t, forge().State(4, state), quorumtest.Deletion(0),
				"3 of 5 voters must be healthy, and only 2 would remain")
		})
	}
}
