package membership_test

import (
	"fmt"
	"slices"
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

// bind brings the bindings of the cluster up to date, as a round of the leader does, and returns
// the refused claims.
func bind(w *quorumtest.Cluster, nodes []observation.AnnouncingNode) []membership.Refusal {
	observers := membership.ObserversOf(w.Cluster, nodes)
	var refused []membership.Refusal
	w.Cluster.Spec.Members, refused = membership.Bind(w.Cluster, nodes, w.Nonces, quorumtest.Noon())
	w.Cluster.Spec.Observers = observers
	for _, n := range nodes {
		w.Nodes[n.Node] = observation.NodeState{Known: true, UID: n.UID, HasRole: n.HasRole}
	}
	w.PossibleNodes = quorum.PossibleNodes(w.Cluster, nodes)
	return refused
}

// basisOf returns what the binding of member i rests on.
func basisOf(w *quorumtest.Cluster, i int) v1alpha1.BindingBasis {
	for _, b := range w.Cluster.Spec.Members {
		if b.MemberID == quorumtest.ID(i) {
			return b.Basis
		}
	}
	return "none"
}

// members returns the first n members.
func members(n int) []v1alpha1.MemberStatus {
	var all []v1alpha1.MemberStatus
	for i := range n {
		all = append(all, quorumtest.Member(i))
	}
	return all
}

// A mode is one of the two ways in which Nodes are trusted.
type mode struct {
	hasRoles bool
	// bound is the basis of a binding with support.
	bound v1alpha1.BindingBasis
}

func modes() map[string]mode {
	return map[string]mode{"roles": {true, v1alpha1.BasisRole}, "no roles": {false, v1alpha1.BasisAddress}}
}

// inModes runs a test in both modes.
func inModes(t *testing.T, test func(t *testing.T, m mode)) {
	t.Helper()
	for name, m := range modes() {
		t.Run(name, func(t *testing.T) { test(t, m) })
	}
}

// voters returns a cluster of n voters.
func (m mode) voters(n int) *quorumtest.Cluster {
	if m.hasRoles {
		return quorumtest.Voters(n)
	}
	return quorumtest.Voters(n).WithoutRoles()
}

// nodes returns n Nodes that announce their members.
func (m mode) nodes(n int) []observation.AnnouncingNode {
	if m.hasRoles {
		return quorumtest.Nodes(n)
	}
	return quorumtest.WithoutRoles(quorumtest.Nodes(n))
}

// newMember returns a cluster of three observers that a fourth member joined, whose host is no Node
// yet.
func (m mode) newMember() *quorumtest.Cluster {
	w := m.voters(4).Unbound(3)
	w.Cluster.Observations = w.Cluster.Observations[:3]
	return w
}

// The host of the member registers after the worker has claimed the member. Its agent runs later.
// F21: a worker claimed a member before its host had a Node, stayed bound to it, and called dead
// voters healthy.
func TestF21HostRegistersLater(t *testing.T) {
	roles, noRoles := modes()["roles"], modes()["no roles"]
	claim, forged := []string{workerAddress}, []string{quorumtest.Address(3)}
	for name, c := range map[string]struct {
		mode                  mode
		addresses             []string
		before, silent, after v1alpha1.BindingBasis
		boundTo               string
	}{
		"roles, claim only":     {roles, claim, v1alpha1.BasisClaim, v1alpha1.BasisClaim, v1alpha1.BasisRole, "d=u4"},
		"roles, forged address": {roles, forged, v1alpha1.BasisClaim, v1alpha1.BasisClaim, v1alpha1.BasisRole, "d=u4"},
		"no roles, claim only":  {noRoles, claim, v1alpha1.BasisClaim, v1alpha1.BasisClaim, v1alpha1.BasisDisputed, "d=u4"},
		"no roles, forged address": {
			noRoles, forged, v1alpha1.BasisAddress, v1alpha1.BasisDisputed, v1alpha1.BasisDisputed, "d=uw",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, host := c.mode.newMember(), c.mode.nodes(4)[3]
			worker, lie := quorumtest.Intruder(3, members(4)...)
			worker.Addresses = c.addresses
			w.With(lie)
			bind(w, append(c.mode.nodes(3), worker))
			require.Equal(t, c.before, basisOf(w, 3))

			silent := host
			silent.Announced = nil // its agent does not run yet
			bind(w, append(c.mode.nodes(3), worker, silent))
			require.Equal(t, c.silent, basisOf(w, 3))
			unannounced := quorumtest.Deletion(3)
			unannounced.Announced = nil
			require.Equal(t, quorumtest.IDs("d"), quorum.Decide(w.View, unannounced).Members, "its host is protected")
			registered := w.Nodes["w4"]
			w.State(3, quorumtest.Departing)
			quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "only 2 would remain")
			w.Nodes["w4"] = registered

			refused := bind(w, append(c.mode.nodes(3), worker, host))
			require.Equal(t, "a=u1 b=u2 c=u3 "+c.boundTo, uids(w.Cluster.Spec.Members))
			require.Equal(t, c.after, basisOf(w, 3))
			require.Len(t, refused, 1)
			quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
			quorumtest.RequireAllowed(t, w, quorumtest.Deletion(3))
			w.State(3, quorumtest.Departing)
			quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "only 2 would remain")

			bind(w, append(c.mode.nodes(3), worker, host))
			require.Equal(t, c.after, basisOf(w, 3), "the worker's claim stays refused")
			if c.boundTo == "d=uw" {
				bind(w, append(c.mode.nodes(3), host))
				require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "a tombstone needs a grant")
			}
		})
	}
	// F54: a worker that had claimed a member before its host registered stayed bound to it.
	t.Run("F54 false claimant has no member", func(t *testing.T) {
		w, host := noRoles.newMember(), noRoles.nodes(4)[3]
		worker, lie := quorumtest.Intruder(3, members(4)...)
		worker.Addresses = forged
		w.With(lie)
		bind(w, append(noRoles.nodes(3), worker))
		bind(w, append(noRoles.nodes(3), worker, host))
		require.Equal(t, v1alpha1.BasisDisputed, basisOf(w, 3))

		last := len(w.Cluster.Observations) - 1
		w.Cluster.Observations[last] = v1alpha1.Observation{Node: lie.Node, NodeUID: lie.NodeUID, NoMember: true}
		worker.Announced = nil
		bind(w, append(noRoles.nodes(3), worker))
		require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "no other Node announces the member")
		bind(w, append(noRoles.nodes(3), worker, host))
		require.Equal(t, "a=u1 b=u2 c=u3 d=u4", uids(w.Cluster.Spec.Members))
		require.Equal(t, v1alpha1.BasisDisputed, basisOf(w, 3), "the worker still has its address")
		worker.Addresses = claim
		bind(w, append(noRoles.nodes(3), worker, host))
		require.Equal(t, v1alpha1.BasisAddress, basisOf(w, 3))
	})
	t.Run("false claimant is gone", func(t *testing.T) {
		inModes(t, func(t *testing.T, m mode) {
			w := m.newMember()
			worker, lie := quorumtest.Intruder(3, members(4)...)
			w.With(lie)
			bind(w, append(m.nodes(3), worker))
			w.Nodes["worker"] = observation.NodeState{Known: true}
			w.Cluster.Spec.Grants = membership.Tombstones(w.View)
			bind(w, m.nodes(4))
			require.Equal(t, "a=u1 b=u2 c=u3 d=u4", uids(w.Cluster.Spec.Members))
			require.Contains(t, words.Summary(quorum.Summarize(w.View)), "counts as lost", "until it is proven healthy there")
		})
	})
}

// One of three hosts has no role and no address of its member. A worker that forges that address
// gets the binding. The member is lost with the host nevertheless, because the host announces it.
func TestHostBehindForgedAddress(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		w, nodes := m.voters(3).URLs(2, "https://203.0.113.3:2380"), m.nodes(3)
		w.NeverBound()
		nodes[2].HasRole = false
		worker, _ := quorumtest.Intruder(2)
		worker.Addresses = []string{"203.0.113.3"}
		for range 2 {
			bind(w, append(nodes, worker))
		}
		require.Equal(t, "a=u1 b=u2 c=uw", uids(w.Cluster.Spec.Members))
		quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
		w.State(2, quorumtest.Departing)
		quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "counts as lost: its node w3 is about to be deleted")
	})
}

// F57: a worker claimed a member first, called dead voters healthy, and blocked deletions.
// TestFirstUseByWorker has the claim.
//
// The disk of a host is not mounted, so its agent finds no member. A worker with a forged address
// announces the member. With a role, it is not believed even if the member answers.
func TestF57HostWithoutItsDisk(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		w := m.voters(3)
		if !m.hasRoles {
			w.Unhealthy(2)
		}
		w.Cluster.Observations[2].NoMember = true
		worker, _ := quorumtest.Intruder(2)
		worker.Addresses = []string{quorumtest.Address(2)}
		bind(w, append(m.nodes(3), worker))
		require.Equal(t, "a=u1 b=u2 c=u3", uids(w.Cluster.Spec.Members))
	})
}

// Without roles, one list alone neither places a member at the address of a worker nor invents one.
// In both modes, a binding to a Node that is gone does not pass to a worker with its address.
func TestF21OneListPlacesNoMember(t *testing.T) {
	m := modes()["no roles"]
	worker, _ := quorumtest.Intruder(3)
	nodes := append(m.nodes(3), worker)
	placed := m.newMember().URLs(3, "https://203.0.113.9:2380")
	placed.InList(2, 3, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://" + workerAddress + ":2380"} })
	bind(placed, nodes)
	require.Equal(t, v1alpha1.BasisClaim, basisOf(placed, 3))

	invented := m.newMember().RemovedFrom(0, 3).RemovedFrom(1, 3).Silent(0, 1, 2)
	require.Len(t, bind(invented, nodes), 1)
	require.Equal(t, v1alpha1.BindingBasis("none"), basisOf(invented, 3))

	inModes(t, func(t *testing.T, m mode) {
		heir, _ := quorumtest.Intruder(2)
		heir.Addresses = []string{quorumtest.Address(2)}
		gone := m.voters(3)
		bind(gone, append(m.nodes(2), heir))
		require.Equal(t, "a=u1 b=u2 c=u3", uids(gone.Cluster.Spec.Members))
		require.Equal(t, m.bound, basisOf(gone, 2), "only a Node with the name may take it over")
	})
}

// A worker has the addresses of others, and may announce their members. With roles, it disputes
// nothing. Without, it disputes one, and the words of that Node count nevertheless. If it has or
// announces several, it is wrong.
func TestF21Dispute(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		w := m.voters(3)
		worker, _ := quorumtest.Intruder(0)
		announced := worker.Announced
		worker.Addresses = []string{quorumtest.Address(0)}
		for _, worker.Announced = range [][]evidence.MemberRef{announced, nil} {
			bind(w, append(m.nodes(3), worker))
			require.Equal(t, !m.hasRoles, basisOf(w, 0) == v1alpha1.BasisDisputed)
			quorumtest.RequireAllowed(t, w.Silent(2), quorumtest.Deletion(1))
		}
		worker.Addresses = append(worker.Addresses, quorumtest.Address(1))
		bind(w, append(m.nodes(3), worker))
		require.Equal(t, m.bound, basisOf(w, 0))

		worker.Addresses, worker.Announced = worker.Addresses[:1], announced
		two, _ := quorumtest.Intruder(1)
		worker.Announced = append(worker.Announced, two.Announced...)
		bind(w, append(m.nodes(3), worker))
		require.Equal(t, m.bound, basisOf(w, 0))
		quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))
	})
}

// Two Nodes with a role announce one member. An address decides, and without one neither is
// believed until one of their agents finds no member.
func TestTwoRolesOneMember(t *testing.T) {
	second, _ := quorumtest.Intruder(0)
	second.HasRole = true
	nodes := append(quorumtest.Nodes(3), second)
	w := quorumtest.Voters(3)
	bind(w, nodes)
	require.Equal(t, v1alpha1.BasisRole, basisOf(w, 0))
	w.URLs(0, "https://192.168.7.1:2380")
	bind(w, nodes)
	require.Equal(t, v1alpha1.BasisDisputed, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))
	w.Emptied(0)
	nodes[0].Announced = nil
	bind(w, nodes)
	require.Equal(t, "a=uw b=u2 c=u3", uids(w.Cluster.Spec.Members))
}

// The Nodes of all observers are gone before a new Node is bound. The lists of new ones bind them.
func TestAllObserversGone(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		w := m.voters(5).Unbound(3).Unbound(4).Removed(0).Removed(1).Removed(2).Gone(0, 1, 2)
		w.Cluster.Observations = w.Cluster.Observations[3:]
		for range 2 {
			bind(w, m.nodes(5)[3:])
		}
		require.Equal(t, "d=u4 e=u5", uids(w.Cluster.Spec.Members))
		require.Equal(t, m.bound, basisOf(w, 3))
	})
}

// All members are replaced one after another. Afterwards the cluster still decides.
func TestF21AllMembersReplaced(t *testing.T) {
	for name, url := range map[string]func(i int) []string{
		"own addresses":       func(i int) []string { return []string{"https://" + quorumtest.Address(i) + ":2380"} },
		"addresses elsewhere": func(i int) []string { return []string{fmt.Sprintf("https://192.168.7.%d:2380", i)} },
	} {
		t.Run(name, func(t *testing.T) { inModes(t, func(t *testing.T, m mode) { replaceAll(t, m, url) }) })
	}
}

func replaceAll(t *testing.T, m mode, url func(i int) []string) {
	t.Helper()
	w := m.voters(6)
	for i := range 6 {
		w.URLs(i, url(i)...)
	}
	w.Unbound(3).Unbound(4).Unbound(5).Removed(3).Removed(4).Removed(5)
	all := w.Cluster.Observations
	w.Cluster.Observations = slices.Clone(all[:3])
	nodes := m.nodes(6)
	for i := range 3 {
		entry := quorumtest.Member(i + 3)
		entry.PeerURLs, entry.ClientURLs = url(i+3), nil
		for o := range all {
			all[o].Members = append(all[o].Members, entry)
		}
		w.Cluster.Observations = slices.Clone(all[i : i+4])
		bind(w, nodes[i:i+4])
		require.Equal(t, m.bound, basisOf(w, i+3))
		quorumtest.RequireAllowed(t, w, quorumtest.Deletion(i))
		for o := range all {
			all[o].Members = all[o].Members[1:]
		}
		w.Cluster.Observations = slices.Clone(all[i+1 : i+4])
		bind(w, nodes[i:i+4])
		require.Len(t, w.Cluster.Spec.Members, 3, "the removed member is not bound any more")
	}
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(3))
	quorumtest.RequireAllowed(t, w.Dead(3), quorumtest.Deletion(3))
	quorumtest.RequireRefused(t, w, quorumtest.Deletion(4), "only 1 would remain")
}
