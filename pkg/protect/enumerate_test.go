package protect

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/quorum"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// lot is everything about one member that a verdict may depend on.
type lot struct {
	place   string // target, granted, gone, unbound, elsewhere
	health  string // proven, silent, corrupt, unstarted
	learner bool
}

func (l lot) doomed() bool { return l.place != "unbound" && l.place != "elsewhere" }

// survives says that the member is known to live on after the deletion.
func (l lot) survives() bool { return !l.doomed() && l.health == "proven" }

func lots(places, healths []string) []lot {
	var all []lot
	for _, p := range places {
		for _, h := range healths {
			all = append(all, lot{p, h, false}, lot{p, h, true})
		}
	}
	return all
}

// TestDecideAgreesWithRaft asks raft itself, for every cluster: could the survivors still win a vote, whichever of the
// doomed learners were promoted before they died?
func TestDecideAgreesWithRaft(t *testing.T) {
	every := lots([]string{"target", "granted", "gone", "unbound", "elsewhere"}, []string{"proven", "silent", "corrupt", "unstarted"})
	plain := lots([]string{"target", "granted", "elsewhere"}, []string{"proven", "silent"})
	seen := map[bool]int{}
	for n := 1; n <= 3; n++ {
		combinations(every, n, func(members []lot) { seen[agree(t, members)]++ })
	}
	for n := 4; n <= 6; n++ {
		combinations(plain, n, func(members []lot) { seen[agree(t, members)]++ })
	}
	require.Greater(t, seen[true], 1000)
	require.Greater(t, seen[false], 1000)
}

// combinations calls f with every multiset of n lots: their order does not matter to a cluster.
func combinations(from []lot, n int, f func([]lot)) {
	var choose func(start int, chosen []lot)
	choose = func(start int, chosen []lot) {
		if len(chosen) == n {
			f(chosen)
			return
		}
		for i := start; i < len(from); i++ {
			choose(i, append(slices.Clone(chosen), from[i]))
		}
	}
	choose(0, nil)
}

func agree(t *testing.T, members []lot) bool {
	v := Decide(enact(members).View, Request{Node: "target", UID: "target"})
	if want := oracle(members); v.Allowed != want {
		require.Equal(t, want, v.Allowed, "%+v\n%s", members, v.Message)
	}
	return v.Allowed
}

// oracle is what raft says.
func oracle(members []lot) bool {
	if !slices.ContainsFunc(members, func(l lot) bool { return l.place == "target" }) {
		return true
	}
	var doomedLearners []int
	for i, l := range members {
		if l.learner && l.doomed() {
			doomedLearners = append(doomedLearners, i)
		}
	}
	for promoted := range 1 << len(doomedLearners) {
		config, votes := quorum.MajorityConfig{}, map[uint64]bool{}
		for i, l := range members {
			bit := slices.Index(doomedLearners, i)
			if l.learner && (bit < 0 || promoted&(1<<bit) == 0) {
				continue
			}
			config[uint64(i)+1] = struct{}{}
			votes[uint64(i)+1] = l.survives()
		}
		if len(config) > 0 && config.VoteResult(votes) != quorum.VoteWon {
			return false
		}
	}
	return true
}

// enact builds the view of a cluster with these members. One more node, bound to a member that has left, observes.
func enact(members []lot) *world {
	w := voters(len(members))
	for i, l := range members {
		switch l.place {
		case "target":
			w.Cluster.Spec.Members[i].Node, w.Cluster.Spec.Members[i].NodeUID = "target", "target"
		case "granted":
			w.granted(i)
		case "gone":
			w.Nodes[node(i)] = NodeState{Known: true}
		case "unbound":
			w.Cluster.Spec.Members[i].MemberID = "fff0"
		}
	}
	o := &w.Cluster.Status.Observations[0]
	o.Node, o.NodeUID = "observer", "observer"
	w.Cluster.Status.Observations = w.Cluster.Status.Observations[:1]
	w.Cluster.Spec.Members = append(w.Cluster.Spec.Members, w.Cluster.Spec.Members[0])
	last := &w.Cluster.Spec.Members[len(w.Cluster.Spec.Members)-1]
	last.MemberID, last.Node, last.NodeUID = "ffff", "observer", "observer"
	w.Nodes["observer"] = NodeState{Known: true, UID: "observer"}
	w.Nodes["target"] = NodeState{Known: true, UID: "target"}
	for i := range members {
		m, l := &o.Members[i], members[i]
		m.Learner, m.Healthy = l.learner, l.health != "silent"
		switch l.health {
		case "corrupt":
			m.Alarms = []string{"CORRUPT"}
		case "unstarted":
			m.Name = ""
		}
	}
	return w
}

// TestMoreTroubleNeverAllows changes random views for the worse, and wants no refusal to become an allowance.
func TestMoreTroubleNeverAllows(t *testing.T) {
	worse := map[string]func(*rand.Rand, *world, int){
		"a grant": func(r *rand.Rand, w *world, n int) {
			g := grantFor(r.Intn(n))
			g.Members = append(g.Members, id(r.Intn(n)))
			w.Cluster.Spec.Grants = append(w.Cluster.Spec.Grants, g)
		},
		"a failed probe": func(r *rand.Rand, w *world, n int) {
			w.inList(r.Intn(n), r.Intn(n), func(m *v1alpha1.MemberStatus) { m.Healthy = false })
		},
		"an alarm": func(r *rand.Rand, w *world, n int) {
			w.inList(r.Intn(n), r.Intn(n), func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} })
		},
		"alarms that were not read": func(r *rand.Rand, w *world, n int) { w.alarmsUnknown(r.Intn(n)) },
		"an unbound list of the node's own agent": func(_ *rand.Rand, w *world, n int) {
			w.Cluster.Spec.Members = slices.DeleteFunc(w.Cluster.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == id(0) })
			w.observer(0).LocalMember = id(n - 1)
		},
		"a node in trouble": func(r *rand.Rand, w *world, n int) {
			i := r.Intn(n)
			w.state(i, func(s *NodeState) {
				*s = []NodeState{{}, {Known: true}, {Known: true, UID: "x"}, {Known: true, UID: uid(i), Deleting: true}}[r.Intn(4)]
			})
		},
		"an unbound liar": func(r *rand.Rand, w *world, n int) {
			o := *w.observer(r.Intn(n)).DeepCopy()
			o.Node, o.NodeUID, o.Nonce, o.Linearizable = "liar", "liar", asked, true
			for i := range o.Members {
				o.Members[i].Healthy, o.Members[i].Learner = true, i > 0
			}
			w.Cluster.Status.Observations = append(w.Cluster.Status.Observations, o)
		},
	}
	for name, change := range worse {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewSource(1))
			allowed := 0
			for range 2000 {
				w, n := random(r)
				before := Decide(w.View, deletion(0))
				change(r, w, n)
				after := Decide(w.View, deletion(0))
				if before.Allowed {
					allowed++
				} else {
					require.False(t, after.Allowed, "before: %s\nafter: %s", before.Message, after.Message)
				}
			}
			require.Greater(t, allowed, 300)
		})
	}
}

// random builds a cluster of 3 to 7 members with a little trouble.
func random(r *rand.Rand) (*world, int) {
	n := 3 + r.Intn(5)
	w := voters(n)
	for o := range n {
		for m := range n {
			w.inList(o, m, func(s *v1alpha1.MemberStatus) { s.Healthy = r.Intn(3) > 0 })
		}
		if r.Intn(4) == 0 {
			w.silent(o)
		}
		if r.Intn(8) == 0 {
			w.unconfirmed(o)
		}
		if r.Intn(8) == 0 {
			w.learner(o)
		}
		if r.Intn(8) == 0 {
			w.granted(o)
		}
		if r.Intn(12) == 0 {
			w.removedFrom(r.Intn(n), o)
		}
	}
	return w, n
}

func TestFinalRefusalsStay(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	finals := 0
	for range 5000 {
		w, n := random(r)
		before := Decide(w.View, deletion(0))
		if before.Allowed || !before.Final {
			continue
		}
		finals++
		for i := range n { // whoever was silent answers and proves everybody healthy, by the list that it has
			if o := w.observer(i); o.Nonce != asked {
				o.Nonce = asked
				for m := range o.Members {
					o.Members[m].Healthy = true
				}
			}
		}
		require.False(t, Decide(w.View, deletion(0)).Allowed, fmt.Sprint(before.Message))
	}
	require.Greater(t, finals, 500)
}
