package protect

import (
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
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

// TestDecideAgreesWithRaft asks raft itself, for every cluster of up to seven members: could the survivors still win a
// vote, whichever of the doomed learners were promoted before they died? Members are interchangeable
// (TestTheOrderOfMembersIsNothing), so that every multiset of lots is every cluster. Up to three members are also tried
// in every place and state that there is.
func TestDecideAgreesWithRaft(t *testing.T) {
	every := lots([]string{"target", "granted", "gone", "unbound", "elsewhere"}, []string{"proven", "silent", "corrupt", "unstarted"})
	plain := lots([]string{"target", "granted", "elsewhere"}, []string{"proven", "silent"})
	var allowed, refused atomic.Int64
	try := func(t *testing.T) func([]lot) {
		return func(members []lot) {
			if agree(t, members) {
				allowed.Add(1)
			} else {
				refused.Add(1)
			}
		}
	}
	t.Run("every", func(t *testing.T) {
		for n := 1; n <= 7; n++ {
			for first := range plain { // splits the largest n among the processors
				t.Run(fmt.Sprint(n, " from ", plain[first]), func(t *testing.T) {
					t.Parallel()
					combinations(plain, n, first, first+1, try(t))
				})
			}
		}
		for n := 1; n <= 3; n++ {
			combinations(every, n, 0, len(every), try(t))
		}
	})
	require.EqualValues(t, 50_387+12_340, allowed.Load()+refused.Load(), "19 over 7, and 43 over 3, less the empty ones")
	require.Greater(t, allowed.Load(), int64(10_000))
	require.Greater(t, refused.Load(), int64(10_000))
}

// combinations calls f with every multiset of n lots of which the first lies between these two.
func combinations(from []lot, n, first, end int, f func([]lot)) {
	chosen := make([]lot, n)
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

func agree(t *testing.T, members []lot) bool {
	v := Decide(enact(members).View, Request{Node: "target", UID: "target"})
	if want := oracle(members); v.Allowed != want {
		require.Equal(t, want, v.Allowed, "%+v\n%s", members, v.Message)
	}
	return v.Allowed
}

func TestTheOrderOfMembersIsNothing(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	every := lots([]string{"target", "granted", "gone", "unbound", "elsewhere"}, []string{"proven", "silent", "corrupt", "unstarted"})
	for range 1000 {
		members := make([]lot, 1+r.Intn(7))
		for i := range members {
			members[i] = every[r.Intn(len(every))]
		}
		before := Decide(enact(members).View, Request{Node: "target", UID: "target"})
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		after := Decide(enact(members).View, Request{Node: "target", UID: "target"})
		require.Equal(t, [...]any{before.Allowed, before.Reason, before.Voters, before.Healthy, before.Quorum, len(before.Members)},
			[...]any{after.Allowed, after.Reason, after.Voters, after.Healthy, after.Quorum, len(after.Members)}, "%+v", members)
	}
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
	w := voters(0)
	o := v1alpha1.Observation{Node: "observer", NodeUID: "observer", Nonce: asked, Linearizable: true}
	w.Cluster.Spec.Members = []v1alpha1.Binding{{MemberID: "ffff", Node: "observer", NodeUID: "observer"}}
	w.Nodes["observer"] = NodeState{Known: true, UID: "observer"}
	w.Nodes["target"] = NodeState{Known: true, UID: "target"}
	for i, l := range members {
		if l.place != "unbound" {
			w.bind(i)
		}
		last := &w.Cluster.Spec.Members[len(w.Cluster.Spec.Members)-1]
		switch l.place {
		case "target":
			last.Node, last.NodeUID = "target", "target"
		case "granted":
			w.granted(i)
		case "gone":
			w.Nodes[node(i)] = NodeState{Known: true}
		}
		m := v1alpha1.MemberStatus{ID: id(i), Name: node(i), Learner: l.learner, Healthy: l.health != "silent"}
		switch l.health {
		case "corrupt":
			m.Alarms = []string{"CORRUPT"}
		case "unstarted":
			m.Name = ""
		}
		o.Members = append(o.Members, m)
	}
	w.Cluster.Status.Observations = []v1alpha1.Observation{o}
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
			t.Parallel()
			r := rand.New(rand.NewSource(1))
			allowed := 0
			for range 500 {
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
			require.Greater(t, allowed, 75)
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
	for range 1500 {
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
	require.Greater(t, finals, 150)
}
