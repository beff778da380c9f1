package protect

import (
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestStepsThatAreSaidToHelpDo takes the refusals of random clusters at their word.
func TestStepsThatAreSaidToHelpDo(t *testing.T) {
	out := regexp.MustCompile(`\(with (.*) out of the list, this deletion is allowed\)`)
	first := regexp.MustCompile(`take what it holds out of the cluster first \(etcd checks that it can\): (.*)`)
	join := regexp.MustCompile(`let (\d) more members? join first`)
	ids := regexp.MustCompile(`[( ]([0-9a-f])\b[),]?`)
	tried := map[string]int{}
	r := rand.New(rand.NewSource(3))
	for range 800 {
		n := 1 + r.Intn(7)
		w := voters(n)
		w.MinRemainingTolerance = r.Intn(8) / 7
		for i := range n {
			switch r.Intn(6) {
			case 0:
				w.dead(i)
			case 1:
				w.granted(i)
			case 2:
				w.learner(i)
			}
		}
		before := Decide(w.View, deletion(0))
		if before.Allowed {
			continue
		}
		if said := join.FindStringSubmatch(before.Message); said != nil {
			tried["join"]++
			more := &world{copyOf(w.View)}
			for i := range int(said[1][0] - '0') {
				for o := range more.Cluster.Status.Observations {
					list := &more.Cluster.Status.Observations[o]
					list.Members = append(list.Members, member(n+i))
				}
			}
			require.True(t, Decide(more.View, deletion(0)).Allowed, "%s\nwith %s more", before.Message, said[1])
		}
		for name, words := range map[string]*regexp.Regexp{"out": out, "first": first} {
			said := words.FindStringSubmatch(before.Message)
			if said == nil {
				continue
			}
			tried[name]++
			less := &world{copyOf(w.View)}
			for _, m := range ids.FindAllStringSubmatch(said[1], -1) {
				less.removed(strings.Index("abcdef123456789", m[1]))
			}
			require.True(t, Decide(less.View, deletion(0)).Allowed, "%s\nwithout %s", before.Message, said[1])
		}
	}
	require.Greater(t, min(tried["join"], tried["out"], tried["first"]), 20, "%v", tried)
	require.NotContains(t, Decide(voters(3).dead(1).View, deletion(0)).Message, "this deletion is allowed)", "two would be left of two")
}

// A member that answers though it was given up lives somewhere: nobody is told to take it out of etcd, and what is told
// makes it count again.
func TestAMemberThatHasMovedIsSettledAndNotRemoved(t *testing.T) {
	w := movedAway()
	message := Decide(w.View, deletion(0)).Message
	require.NotContains(t, message, "etcdctl member remove b")
	require.Contains(t, message, "etcd2 (b) still answers")
	require.Contains(t, message, "only if etcd2 (b) lives on, there or on another machine that stays: kubectl annotate --overwrite etcdcluster cdf818194e3a8c32 holdfast.dev/settle=u2")
	require.Contains(t, Decide(voters(3).granted(1).dead(1).View, deletion(0)).Message, "etcdctl member remove b", "it does not answer")

	nodes := []NodeClaim{claims(3)[0], claims(3)[2], {Node: "w2b", UID: "u2b", Addresses: []string{address(1)}, Announced: []MemberRef{{clusterX, "b"}}}}
	w.Cluster.Spec.Grants, w.Cluster.Spec.Members, _ = SettledByHand(w.Cluster, "u2", w.Nodes)
	w.Cluster.Spec.Members, _ = Bind(w.Cluster, nodes, w.Asked)
	require.EqualValues(t, "u2b", bound(w.Cluster.Spec.Members)["b"])
	allows(t, w, deletion(0))
}

// A Node that an autoscaler has marked is not said to count again.
func TestNobodyWaitsForANodeThatIsMarked(t *testing.T) {
	w := voters(3).granted(1)
	require.Contains(t, Decide(w.View, deletion(0)).Message, "if it stays, wait")
	w.state(1, func(n *NodeState) { n.DeletionTaint = "ToBeDeletedByClusterAutoscaler" })
	require.NotContains(t, Decide(w.View, deletion(0)).Message, "if it stays, wait")
}

func TestNamesArePrintedAsTheyAre(t *testing.T) {
	w := voters(4).dead(1).everywhere(1, func(m *v1alpha1.MemberStatus) { m.Name = "50%d%s" })
	message := Decide(w.View, deletion(0)).Message
	require.Contains(t, message, "while 50%d%s (b) is in its member list")
	require.NotContains(t, message, "%!")
}

func TestLongReasonsAreClipped(t *testing.T) {
	w := voters(3).everywhere(1, func(m *v1alpha1.MemberStatus) {
		m.Healthy, m.Reason = false, strings.Repeat("dial tcp:\n refused ", 50)
	})
	for line := range strings.SplitSeq(Decide(w.View, deletion(0)).Message, "\n") {
		require.Less(t, len(line), 300)
	}
}
