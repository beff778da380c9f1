package membership_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// A workerAttack is what root on one worker can write: the announcement and the observation of its
// agent, the addresses of its kubelet, and marks on its Node.
type workerAttack struct {
	announced []int
	addresses []string
	lie       string
	mark      string
	// isFirst means that the hosts of etcd had no Nodes yet when it began.
	isFirst bool
}

func workerAttacks() []workerAttack {
	var all []workerAttack
	for _, announced := range [][]int{{0}, {1}, {0, 1}, {0, 1, 2}, {9}} {
		for _, addresses := range [][]string{
			{workerAddress}, {quorumtest.Address(0)}, {quorumtest.Address(0), quorumtest.Address(1), quorumtest.Address(2)},
		} {
			for _, lie := range []string{"silent", "truth", "all healthy", "all dead", "one left", "invented", "corrupt"} {
				for _, mark := range []string{"", "away", "for good", "gone"} {
					for _, isFirst := range []bool{false, true} {
						all = append(all, workerAttack{announced, addresses, lie, mark, isFirst})
					}
				}
			}
		}
	}
	return all
}

// node returns the Node of the worker.
func (a workerAttack) node() observation.AnnouncingNode {
	n := observation.AnnouncingNode{Node: "worker", UID: "uw", Addresses: a.addresses}
	for _, i := range a.announced {
		n.Announced = append(n.Announced, announcing("", "", quorumtest.ID(i)).Announced...)
	}
	return n
}

// countClaimed returns how many members the worker announces or has the address of.
func (a workerAttack) countClaimed() (count int) {
	for i := range 3 {
		if slices.Contains(a.announced, i) || slices.Contains(a.addresses, quorumtest.Address(i)) {
			count++
		}
	}
	return count
}

// observe adds the observation of the worker.
func (a workerAttack) observe(w *quorumtest.Cluster, truth []v1alpha1.MemberStatus) {
	o := v1alpha1.Observation{
		Node: "worker", NodeUID: "uw", Nonce: quorumtest.Nonce, LocalMember: quorumtest.ID(a.announced[0]),
		Linearizable: true, Members: quorumtest.CopyMembers(truth),
	}
	for i := range o.Members {
		m := &o.Members[i]
		switch a.lie {
		case "all healthy":
			m.Healthy = true
		case "all dead":
			m.Healthy = false
		case "corrupt":
			m.Alarms = []string{quorum.CorruptAlarm}
		}
	}
	switch a.lie {
	case "silent":
		return
	case "one left":
		o.Members = o.Members[1:]
	case "invented":
		for i := range 4 {
			o.Members = append(o.Members, memberAt(9+i, quorumtest.Address(1)))
		}
	}
	w.With(o)
}

// verdicts returns the verdicts about the Nodes of etcd after some rounds of the leader.
func (a *workerAttack) verdicts(m mode, isDead bool) (found []workerVerdict) {
	w := m.voters(3)
	if isDead {
		w.Dead(2)
	}
	truth := w.Cluster.Observations[0].Members
	honest, nodes := w.Cluster.Observations, m.nodes(3)
	w.NeverBound()
	if a != nil {
		if nodes = append(nodes, a.node()); a.isFirst {
			w.Cluster.Observations = nil
			a.observe(w, truth)
			bind(w, nodes[3:])
		}
		w.Cluster.Observations = slices.Clone(honest)
		a.observe(w, truth)
	}
	for range 3 {
		bind(w, nodes)
	}
	if a != nil {
		s := w.Nodes["worker"]
		switch a.mark {
		case "away":
			quorumtest.ShuttingDown(&s)
		case "for good":
			quorumtest.Departing(&s)
		case "gone":
			s = observation.NodeState{Known: true}
		}
		w.Nodes["worker"] = s
		w.Cluster.Spec.Grants = membership.Tombstones(w.View)
	}
	for i := range 3 {
		v := quorum.Decide(w.View, quorumtest.Deletion(i))
		found = append(found, workerVerdict{v.Allowed, v.Reason})
	}
	return found
}

type workerVerdict struct {
	Allowed bool
	Reason  quorum.Reason
}

// No request about another Node is allowed or refused because of what one worker writes.
// Without roles there is one exception: with the announcement or the address of one member, the
// worker disputes its binding, so that the member is lost with the worker, and its host may be no
// observer. So more is refused, and nothing is allowed.
func TestOneWorkerChangesNoVerdict(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		for _, isDead := range []bool{false, true} {
			want := (*workerAttack)(nil).verdicts(m, isDead)
			for _, a := range workerAttacks() {
				got := a.verdicts(m, isDead)
				isDisputed := !m.hasRoles && a.countClaimed() == 1
				for i := range got {
					if got[i] != want[i] && (got[i].Allowed || !isDisputed || a.mark == "" && !isDead && !a.isFirst) {
						require.Equal(t, want[i], got[i], "request %d, %+v, dead %t", i, a, isDead)
					}
				}
			}
		}
	})
}
