package report_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	raft "go.etcd.io/raft/v3/quorum"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// order returns the plan in one line: the Nodes of the steps, and those that stop it.
func order(p report.Plan) string {
	var nodes []string
	for _, step := range p.Steps {
		nodes = append(nodes, step.Node)
	}
	text := string(p.Answer) + ": " + strings.Join(nodes, " ")
	if len(p.Stopped) > 0 {
		text += " |"
	}
	for _, r := range p.Stopped {
		text += " " + r.Node + "=" + map[quorum.Reason]string{
			quorum.QuorumWouldBeLost: "lost", quorum.CannotSee: "blind", quorum.CannotDecide: "undecided",
		}[r.Reason]
	}
	return text
}

func TestPlan(t *testing.T) {
	all := []string{"w1", "w2", "w3"}
	led, silent := quorumtest.Voters(3), quorumtest.Voters(3).Silent(0, 1, 2)
	for i := range 3 {
		led.Observer(i).Leader = quorumtest.ID(0)
	}
	for name, c := range map[string]struct {
		cluster    *quorumtest.Cluster
		nodes      []string
		isReplaced bool
		change     func(*report.State)
		want       string
	}{
		"all of three, replaced":      {quorumtest.Voters(3), all, true, nil, "yes: w1 w2 w3"},
		"all of three, not replaced":  {quorumtest.Voters(3), all, false, nil, "no: w1 | w2=lost w3=lost"},
		"two of five, not replaced":   {quorumtest.Voters(5), []string{"w5", "w4"}, false, nil, "yes: w4 w5"},
		"the dead member first":       {quorumtest.Voters(3).Dead(2), []string{"w1", "w3"}, true, nil, "yes: w3 w1"},
		"a healthy one beside a dead": {quorumtest.Voters(3).Dead(2), []string{"w1"}, true, nil, "no:  | w1=lost"},
		"two voters":                  {quorumtest.Voters(2), []string{"w1"}, true, nil, "no:  | w1=lost"},
		"the only voter":              {quorumtest.Voters(1), []string{"w1"}, true, nil, "no:  | w1=lost"},
		"no answer":                   {silent, []string{"w1"}, true, nil, "unknown:  | w1=blind"},
		"a node twice":                {quorumtest.Voters(3), []string{"w1", "w1"}, true, nil, "yes: w1"},
		"workers first":               {quorumtest.Voters(3), []string{"w1", "worker"}, true, addWorker, "yes: worker w1"},
		"the leader last":             {led, all, true, nil, "yes: w2 w3 w1"},
		"a grant":                     {quorumtest.Voters(3).Granted(1), []string{"w1"}, true, nil, "no:  | w1=lost"},
		"reserve":                     {quorumtest.Voters(5), []string{"w1", "w2"}, true, reserve(1), "yes: w1 w2"},
		"reserve that is not there":   {quorumtest.Voters(3), []string{"w1"}, true, reserve(1), "no:  | w1=lost"},
		"flags not read": {
			quorumtest.Voters(3), []string{"w1", "worker"}, true, withoutFlags, "unknown: worker | w1=undecided",
		},
		"flags not read, no quorum": {quorumtest.Voters(2), []string{"w1"}, true, withoutFlags, "no:  | w1=lost"},
		"a learner first":           {quorumtest.Voters(4).Learner(3), []string{"w4", "w1"}, true, nil, "yes: w4 w1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := changed(stateOf(c.cluster, len(c.cluster.Cluster.Spec.Members)), c.change)
			before := s.Clusters[0].DeepCopy()
			p, err := report.NewPlan(s, c.nodes, c.isReplaced)
			require.NoError(t, err)
			require.Equal(t, c.want, order(p))
			require.Equal(t, before, &s.Clusters[0], "a plan must not change what was read")
			for _, step := range p.Steps {
				require.Equal(t, len(step.Members) > 0, len(step.Then) > 0)
			}
		})
	}
	_, err := report.NewPlan(stateOf(quorumtest.Voters(3), 3), []string{"w1", "w8", "w9"}, true)
	require.ErrorContains(t, err, "there is no node w8, w9")
}

func addWorker(s *report.State) { s.Nodes = append(s.Nodes, worker("worker")) }

func withoutFlags(s *report.State) { addWorker(s); flagsUnread(s) }

func reserve(n int) func(*report.State) { return func(s *report.State) { s.MinRemainingTolerance = n } }

// An etcdModel is an etcd cluster as raft sees it, independent of the decisions.
type etcdModel struct {
	voters raft.MajorityConfig
	alive  map[uint64]bool
}

func (m etcdModel) hasQuorum() bool { return m.voters.VoteResult(m.alive) == raft.VoteWon }

func (m etcdModel) copy() etcdModel {
	c := etcdModel{raft.MajorityConfig{}, map[uint64]bool{}}
	for id := range m.voters {
		c.voters[id], c.alive[id] = struct{}{}, m.alive[id]
	}
	return c
}

// remove lets the machine of a voter go, then its member leave, then a replacement join. It reports
// whether the cluster had quorum all the time.
func (m etcdModel) remove(id uint64, isReplaced bool) bool {
	m.alive[id] = false
	kept := m.hasQuorum()
	delete(m.voters, id)
	delete(m.alive, id)
	kept = kept && m.hasQuorum()
	if isReplaced {
		m.voters[id+1000], m.alive[id+1000] = struct{}{}, true
	}
	return kept && m.hasQuorum()
}

// canRemoveAll reports whether some order removes all voters without a loss of quorum.
func (m etcdModel) canRemoveAll(ids []uint64, isReplaced bool) bool {
	for i, id := range ids {
		next := m.copy()
		if next.remove(id, isReplaced) && next.canRemoveAll(slices.Delete(slices.Clone(ids), i, i+1), isReplaced) {
			return true
		}
	}
	return len(ids) == 0
}

// TestPlanKeepsQuorum checks random plans against raft: the machines really go, one after the
// other, and no prefix of a plan loses quorum. A plan is complete if any order is.
func TestPlanKeepsQuorum(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // The test must be repeatable.
	plans, complete := 0, 0
	for range 400 {
		n := 1 + random.IntN(6)
		w := quorumtest.Voters(n)
		model := etcdModel{raft.MajorityConfig{}, map[uint64]bool{}}
		var nodes []string
		var wanted []uint64
		for i := range n {
			id := uint64(i) //nolint:gosec // i is small.
			model.voters[id], model.alive[id] = struct{}{}, random.IntN(4) > 0
			if !model.alive[id] {
				w.Dead(i)
			}
			if random.IntN(3) > 0 {
				nodes, wanted = append(nodes, quorumtest.Node(i)), append(wanted, id)
			}
		}
		if !model.hasQuorum() {
			for i := range n { // No list can be confirmed without quorum.
				w.Observer(i).Linearizable = false
			}
		}
		isReplaced := random.IntN(2) == 0
		described := fmt.Sprintf("%d voters, alive %v, nodes %v, replaced %v", n, model.alive, nodes, isReplaced)
		p, err := report.NewPlan(stateOf(w, n), nodes, isReplaced)
		require.NoError(t, err)
		plans++
		possible := model.copy().canRemoveAll(wanted, isReplaced) && (model.hasQuorum() || len(wanted) == 0)
		require.Equal(t, possible, p.Answer == quorum.Yes, "%s: %s", described, order(p))
		if possible {
			complete++
		}
		for _, step := range p.Steps {
			var i int
			_, err := fmt.Sscanf(step.Node, "w%d", &i)
			require.NoError(t, err)
			require.True(t, model.remove(uint64(i-1), isReplaced), "%s: %s loses quorum at %s", described, order(p), step.Node)
		}
	}
	require.Greater(t, complete, plans/10)
	require.Less(t, complete, plans*9/10)
}

// A second etcd cluster on the same nodes can stop a plan.
func TestPlanWithTwoClusters(t *testing.T) {
	s := stateOf(quorumtest.Voters(3), 3)
	second := *quorumtest.Voters(3).Dead(1).Cluster.DeepCopy()
	second.Name, second.Spec.Nonce = "e0", quorumtest.Nonce
	s.Clusters = append(s.Clusters, second)
	p, err := report.NewPlan(s, []string{"w1", "w2"}, true)
	require.NoError(t, err)
	require.Equal(t, "yes: w2 w1", order(p), "the member of the second cluster on w2 is dead")
	require.Equal(t, []v1alpha1.MemberID{"b", "b"}, p.Steps[0].Members)
	p, err = report.NewPlan(s, []string{"w1"}, true)
	require.NoError(t, err)
	require.Equal(t, "no:  | w1=lost", order(p))
	require.False(t, observation.IsBound(&s.Clusters[1], "ffffffff00000001"))
}

// TestPlanOfManyNodes: a person plans for all nodes of a pool. Twice as many nodes make about twice
// as many allocations, and not four times.
func TestPlanOfManyNodes(t *testing.T) {
	allocations := func(workers int) float64 {
		s := stateOf(quorumtest.Voters(3), 3)
		names := []string{"w1"}
		for i := range workers {
			s.Nodes = append(s.Nodes, worker(fmt.Sprint("worker-", i)))
			names = append(names, fmt.Sprint("worker-", i))
		}
		return testing.AllocsPerRun(1, func() {
			p, err := report.NewPlan(s, names, true)
			require.NoError(t, err)
			require.Equal(t, quorum.Yes, p.Answer)
		})
	}
	require.Less(t, allocations(80)/allocations(40), 3.0)
}
