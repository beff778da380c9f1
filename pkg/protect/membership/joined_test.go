package membership_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// bind brings the bindings of the cluster up to date, and returns the refused claims.
func bind(w *quorumtest.Cluster, nodes []observation.AnnouncingNode) []membership.Refusal {
	var refused []membership.Refusal
	w.Cluster.Spec.Members, refused = membership.Bind(w.Cluster, nodes, w.Nonces, quorumtest.Noon())
	for _, n := range nodes {
		w.Nodes[n.Node] = observation.NodeState{Known: true, UID: n.UID}
	}
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

// newMember returns a cluster of three founders that a fourth member joined, whose host is no Node
// yet.
func newMember() *quorumtest.Cluster {
	w := quorumtest.Voters(4).Unbound(3)
	w.Cluster.Observations = w.Cluster.Observations[:3]
	return w
}

// A worker claims a member whose host is no Node yet, and lies about the others.
func TestF21MemberWithoutNode(t *testing.T) {
	for name, addresses := range map[string][]string{
		"claim only":     {workerAddress},
		"forged address": {workerAddress, quorumtest.Address(3)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMember().Unhealthy(1, 2)
			worker, lie := quorumtest.Intruder(3, members(4)...)
			worker.Addresses = addresses
			nodes := append(quorumtest.Nodes(3), worker)
			w.With(lie)
			bind(w, nodes)
			require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "the worker must be protected")
			quorumtest.RequireRefused(t, w, quorumtest.Deletion(0), "only 1 would remain")
			require.False(t, quorum.Decide(w.View, quorum.Request{
				Node: "worker", UID: "uw", Labelled: true, Announced: worker.Announced,
			}).Allowed)

			w = newMember().With(lie)
			observer := &w.Cluster.Observations[3]
			observer.Members = append(observer.Members, quorumtest.Member(4), quorumtest.Member(5), quorumtest.Member(6))
			for i := range observer.Members {
				observer.Members[i].Healthy = false
			}
			bind(w, nodes)
			quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
			w.Silent(0, 1, 2)
			require.Equal(t, quorum.CannotSee, quorum.Decide(w.View, quorumtest.Deletion(0)).Reason)
			w.Cluster.Observations[3].Members = w.Cluster.Observations[3].Members[1:]
			bind(w, nodes)
			require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "its list alone ends no binding")
			require.False(t, quorum.Decide(w.View, quorumtest.Deletion(0)).Allowed, "its list alone allows nothing")
		})
	}
}

// The host of the member registers after the worker has claimed the member.
func TestF21HostRegistersLater(t *testing.T) {
	host := quorumtest.Nodes(4)[3]
	for name, c := range map[string]struct {
		addresses []string
		before    v1alpha1.BindingBasis
		after     string
		basis     v1alpha1.BindingBasis
	}{
		"claim only":     {[]string{workerAddress}, v1alpha1.BasisClaimed, "d=u4", v1alpha1.BasisJoined},
		"forged address": {[]string{quorumtest.Address(3)}, v1alpha1.BasisJoined, "d=uw", v1alpha1.BasisDisputed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMember()
			worker, lie := quorumtest.Intruder(3, members(4)...)
			worker.Addresses = c.addresses
			w.With(lie)
			bind(w, append(quorumtest.Nodes(3), worker))
			require.Equal(t, c.before, basisOf(w, 3))

			silent := host
			silent.Announced = nil // its agent does not run yet
			bind(w, append(quorumtest.Nodes(3), worker, silent))
			require.Equal(t, c.before, basisOf(w, 3))

			refused := bind(w, append(quorumtest.Nodes(3), worker, host))
			require.Equal(t, "a=u1 b=u2 c=u3 "+c.after, uids(w.Cluster.Spec.Members))
			require.Equal(t, c.basis, basisOf(w, 3))
			require.Len(t, refused, 1)
			quorumtest.RequireAllowed(t, w, quorumtest.Deletion(0))
			if c.basis == v1alpha1.BasisDisputed {
				text := quorum.Decide(w.View, quorumtest.Deletion(3)).Message
				require.Contains(t, text, "node w4 announces member d")
				require.Contains(t, text, "bound to node worker, which exists")
				bind(w, append(quorumtest.Nodes(3), host))
				require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "a tombstone needs a grant")
				return
			}
			bind(w, append(quorumtest.Nodes(3), worker, host))
			require.Equal(t, c.basis, basisOf(w, 3), "the worker's claim stays refused")
		})
	}
	t.Run("F54 false claimant has no member", func(t *testing.T) {
		w := newMember()
		worker, lie := quorumtest.Intruder(3, members(4)...)
		worker.Addresses = []string{quorumtest.Address(3)}
		w.With(lie)
		bind(w, append(quorumtest.Nodes(3), worker))
		bind(w, append(quorumtest.Nodes(3), worker, host))
		require.Equal(t, v1alpha1.BasisDisputed, basisOf(w, 3))

		last := len(w.Cluster.Observations) - 1
		w.Cluster.Observations[last] = v1alpha1.Observation{Node: lie.Node, NodeUID: lie.NodeUID, NoMember: true}
		worker.Announced = nil
		bind(w, append(quorumtest.Nodes(3), worker))
		require.Equal(t, "a=u1 b=u2 c=u3 d=uw", uids(w.Cluster.Spec.Members), "no other Node announces the member")
		bind(w, append(quorumtest.Nodes(3), worker, host))
		require.Equal(t, "a=u1 b=u2 c=u3 d=u4", uids(w.Cluster.Spec.Members))
		require.Equal(t, v1alpha1.BasisJoined, basisOf(w, 3))
	})
	t.Run("false claimant is gone", func(t *testing.T) {
		w := newMember()
		worker, lie := quorumtest.Intruder(3, members(4)...)
		w.With(lie)
		bind(w, append(quorumtest.Nodes(3), worker))
		w.Nodes["worker"] = observation.NodeState{Known: true}
		w.Cluster.Spec.Grants = membership.Tombstones(w.View)
		bind(w, quorumtest.Nodes(4))
		require.Equal(t, "a=u1 b=u2 c=u3 d=u4", uids(w.Cluster.Spec.Members))
		require.Contains(t, quorum.Summarize(w.View).Message, "counts as lost", "until it is proven healthy there")
	})
}

// A worker with a forged address claims member c at the bootstrap. Its host has no Node yet.
func TestF57FalseFounder(t *testing.T) {
	w := quorumtest.Voters(3).NeverBound()
	w.Cluster.Observations = w.Cluster.Observations[:2]
	worker, lie := quorumtest.Intruder(2, members(3)...)
	worker.Addresses = []string{quorumtest.Address(2)}
	w.With(lie)
	bind(w, append(quorumtest.Nodes(2), worker))
	require.Equal(t, "a=u1 b=u2 c=uw", uids(w.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisBootstrap, basisOf(w, 2))

	host := quorumtest.Nodes(3)
	bind(w, append(host, worker))
	require.Equal(t, "a=u1 b=u2 c=uw", uids(w.Cluster.Spec.Members), "both announce the member")

	w.Cluster.Observations[2] = v1alpha1.Observation{Node: lie.Node, NodeUID: lie.NodeUID, NoMember: true}
	worker.Announced = nil
	bind(w, append(quorumtest.Nodes(2), worker))
	require.Equal(t, "a=u1 b=u2 c=uw", uids(w.Cluster.Spec.Members), "no other Node announces the member")
	require.Equal(t, v1alpha1.BasisBootstrap, basisOf(w, 2))
	bind(w.Unhealthy(2), append(host, worker))
	require.Equal(t, "a=u1 b=u2 c=uw", uids(w.Cluster.Spec.Members), "the disk of its host may not be mounted")
	w.Everywhere(2, func(m *v1alpha1.MemberStatus) { m.Healthy = true })
	bind(w, append(host, worker))
	require.Equal(t, "a=u1 b=u2 c=u3", uids(w.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisJoined, basisOf(w, 2))
}

// The disk of a host is not mounted, so its agent finds no member. A worker with a forged address
// announces the member.
func TestF57HostWithoutItsDisk(t *testing.T) {
	for _, basis := range []v1alpha1.BindingBasis{v1alpha1.BasisBootstrap, v1alpha1.BasisJoined} {
		w := quorumtest.Voters(3).Basis(basis, 2).Unhealthy(2)
		w.Cluster.Observations[2].NoMember = true
		worker, _ := quorumtest.Intruder(2)
		worker.Addresses = []string{quorumtest.Address(2)}
		bind(w, append(quorumtest.Nodes(3), worker))
		require.Equal(t, "a=u1 b=u2 c=u3", uids(w.Cluster.Spec.Members), basis)
	}
}

// One late observer alone neither places a member at the address of a worker nor invents one, and a
// binding to a Node that is gone does not pass to a worker with its address.
func TestF21LateObserverPlacesNoMember(t *testing.T) {
	late := func(w *quorumtest.Cluster) *quorumtest.Cluster { return w.Basis(v1alpha1.BasisJoined, 0, 1, 2) }
	worker, _ := quorumtest.Intruder(3)
	nodes := append(quorumtest.Nodes(3), worker)
	placed := late(newMember()).URLs(3, "https://203.0.113.9:2380")
	placed.InList(2, 3, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://" + workerAddress + ":2380"} })
	bind(placed, nodes)
	require.Equal(t, v1alpha1.BasisClaimed, basisOf(placed, 3))

	invented := late(newMember()).RemovedFrom(0, 3).RemovedFrom(1, 3).Silent(0, 1, 2)
	require.Len(t, bind(invented, nodes), 1)
	require.Equal(t, v1alpha1.BindingBasis("none"), basisOf(invented, 3))

	heir, _ := quorumtest.Intruder(2)
	heir.Addresses = []string{quorumtest.Address(2)}
	gone := late(quorumtest.Voters(3))
	bind(gone, append(quorumtest.Nodes(2), heir))
	require.Equal(t, "a=u1 b=u2 c=u3", uids(gone.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisJoined, basisOf(gone, 2), "only a Node with the name may take it over")
}

// The Node of a founder is registered again.
func TestFounderRegistersAgain(t *testing.T) {
	w, nodes := quorumtest.Voters(3).Granted(0), quorumtest.Nodes(3)
	nodes[0].UID = "u1-again"
	bind(w, nodes)
	require.Equal(t, "a=u1-again b=u2 c=u3", uids(w.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisBootstrap, basisOf(w, 0))
}

// The host of a founder joins again as another member, while its old member is still bound.
func TestFounderJoinsAgain(t *testing.T) {
	w := newMember().URLs(3, "https://"+quorumtest.Address(0)+":2380")
	nodes := quorumtest.Nodes(3)
	nodes[0].Announced[0].Member = quorumtest.ID(3)
	bind(w, nodes)
	require.Equal(t, "a=u1 b=u2 c=u3 d=u1", uids(w.Cluster.Spec.Members))
	require.Equal(t, v1alpha1.BasisBootstrap, basisOf(w, 3))
}

// One Node that announces the members of several others disputes none of them.
func TestF21DisputeOfSeveral(t *testing.T) {
	w := quorumtest.Voters(3).Basis(v1alpha1.BasisJoined, 0, 1, 2)
	worker, _ := quorumtest.Intruder(0)
	worker.Addresses = []string{quorumtest.Address(0), quorumtest.Address(1), quorumtest.Address(2)}
	bind(w, append(quorumtest.Nodes(3), worker))
	require.Equal(t, v1alpha1.BasisDisputed, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))

	two, _ := quorumtest.Intruder(1)
	worker.Announced = append(worker.Announced, two.Announced...)
	bind(w, append(quorumtest.Nodes(3), worker))
	require.Equal(t, v1alpha1.BasisJoined, basisOf(w, 0))
	quorumtest.RequireAllowed(t, w, quorumtest.Deletion(1))
}

// All members are replaced one after another. Afterwards the cluster still decides.
func TestF21AllMembersReplaced(t *testing.T) {
	for name, url := range map[string]func(i int) []string{
		"own addresses":       func(i int) []string { return []string{"https://" + quorumtest.Address(i) + ":2380"} },
		"addresses elsewhere": func(i int) []string { return []string{fmt.Sprintf("https://192.168.7.%d:2380", i)} },
	} {
		t.Run(name, func(t *testing.T) {
			w := quorumtest.Voters(6)
			for i := range 6 {
				w.URLs(i, url(i)...)
			}
			w.Unbound(3).Unbound(4).Unbound(5).Removed(3).Removed(4).Removed(5)
			all := w.Cluster.Observations
			w.Cluster.Observations = slices.Clone(all[:3])
			nodes := quorumtest.Nodes(6)
			for i := range 3 {
				entry := quorumtest.Member(i + 3)
				entry.PeerURLs, entry.ClientURLs = url(i+3), nil
				for o := range all {
					all[o].Members = append(all[o].Members, entry)
				}
				w.Cluster.Observations = slices.Clone(all[i : i+4])
				bind(w, nodes[i:i+4])
				require.Equal(t, v1alpha1.BasisJoined, basisOf(w, i+3))
				quorumtest.RequireAllowed(t, w, quorumtest.Deletion(i))
				w.Cluster.Observations = slices.Clone(all[i : i+4])
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
		})
	}
}
