package membership_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// Which Node each binding names after a round, and what it rests on.
func TestReassess(t *testing.T) {
	type nodes = []observation.AnnouncingNode
	roles, noRoles := modes()["roles"], modes()["no roles"]
	const elsewhere = "192.168.7.1"
	worker := func(node string, addresses []string, members ...int) observation.AnnouncingNode {
		return observation.AnnouncingNode{
			Node: node, UID: types.UID(node), Addresses: addresses, Announced: refs(members...),
		}
	}
	claim := func(w *quorumtest.Cluster, i int, node string, basis v1alpha1.BindingBasis) {
		w.Unbound(i).Cluster.Spec.Members = append(w.Cluster.Spec.Members,
			v1alpha1.Binding{MemberID: quorumtest.ID(i), Node: node, NodeUID: types.UID(node), Basis: basis})
	}
	both, all := []string{quorumtest.Address(0), quorumtest.Address(1)}, []int{0, 1, 2}
	twoClaims := func(w *quorumtest.Cluster, n nodes) nodes {
		claim(w, 2, "x", v1alpha1.BasisClaim)
		return append(n[:2], worker("x", nil, 2), worker("y", nil, 2))
	}
	for name, c := range map[string]struct {
		mode   mode
		change func(w *quorumtest.Cluster, n nodes) nodes
		member int
		want   string
	}{
		"address lost": {noRoles, func(_ *quorumtest.Cluster, n nodes) nodes {
			n[0].Addresses = nil
			return n
		}, 0, "u1 Address"},
		"claim, at the address": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisClaim, 0)
			return n
		}, 0, "u1 Address"},
		"claim, at the address, no announcements": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisClaim, 0)
			n[0].Announced, n[1].Announced, n[2].Announced = nil, nil, nil
			return n
		}, 0, "u1 Address"},
		"claim, in no list": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisClaim, 0).WithoutList(all...)
			return n
		}, 0, "u1 Claim"},
		"disputed, in no list": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisDisputed, 0).WithoutList(all...)
			return n
		}, 0, "u1 Disputed"},
		"claim, role, no announcement": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisClaim, 0)
			n[0].HasRole, n[0].Announced, n[0].Addresses = true, nil, nil
			return n
		}, 0, "u1 Claim"},
		"claim, role, no announcement, worker at the address": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisClaim, 0)
			n[0].HasRole, n[0].Announced, n[0].Addresses = true, nil, nil
			return append(n, worker("x", both[:1], 0))
		}, 0, "x Address"},
		"worker at the address of two, the host is not": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			claim(w.URLs(0, "https://"+elsewhere+":2380"), 0, "x", v1alpha1.BasisAddress)
			return append(n, worker("x", []string{elsewhere, quorumtest.Address(1)}, 0))
		}, 0, "u1 Claim"},
		"role, no announcement, beside a worker": {roles, func(_ *quorumtest.Cluster, n nodes) nodes {
			n[0].Announced = nil
			return append(n, worker("x", both[:1], 0))
		}, 0, "u1 Role"},
		"role, in no list": {roles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.WithoutList(all...)
			return n
		}, 0, "u1 Role"},
		"role taken, in no list": {roles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.WithoutList(all...)
			n[0].HasRole = false
			return n
		}, 0, "u1 Claim"},
		"role, gone": {roles, func(_ *quorumtest.Cluster, n nodes) nodes { return n[1:] }, 0, "u1 Role"},
		"no role, gone": {roles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisAddress, 0)
			return n[1:]
		}, 0, "u1 Claim"},
		"disputed, gone": {roles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Basis(v1alpha1.BasisDisputed, 0)
			return n[1:]
		}, 0, "u1 Claim"},
		"claims of two workers":        {noRoles, twoClaims, 2, "x Claim"},
		"claims of two workers, roles": {roles, twoClaims, 2, "x Claim"},
		"worker at the address, the host is not": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.URLs(0, "https://"+elsewhere+":2380")
			return append(n, worker("x", []string{elsewhere}, 0))
		}, 0, "u1 Disputed"},
		"another role at the address": {roles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.URLs(0, "https://"+elsewhere+":2380")
			n = append(n, worker("x", []string{elsewhere}, 0))
			n[3].HasRole = true
			return n
		}, 0, "u1 Disputed"},
		"two workers that announce several": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			claim(w, 0, "x", v1alpha1.BasisAddress)
			return append(n[1:], worker("x", both, 0, 1), worker("y", both, 0, 1))
		}, 0, "x Address"},
		"worker announces several, hosts announce nothing": {noRoles, func(_ *quorumtest.Cluster, n nodes) nodes {
			n[0].Announced, n[1].Announced = nil, nil
			return append(n, worker("x", both, 0, 1))
		}, 0, "u1 Address"},
		"worker announces another one of no Node": {noRoles, func(_ *quorumtest.Cluster, n nodes) nodes {
			return append(n, worker("x", both[:1], 0, 5))
		}, 0, "u1 Disputed"},
		"worker announces another one of a Node that is gone": {noRoles, func(_ *quorumtest.Cluster, n nodes) nodes {
			return []observation.AnnouncingNode{n[0], n[2], worker("x", both, 0, 1)}
		}, 0, "u1 Disputed"},
		"host of two members": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			w.Rebound(2, 0)
			n[0].Announced = refs(0, 2)
			return append(n[:2], worker("x", []string{quorumtest.Address(2)}, 2))
		}, 2, "u1 Disputed"},
		"worker at the address by its own list": {noRoles, func(w *quorumtest.Cluster, n nodes) nodes {
			claim(w, 1, "x", v1alpha1.BasisClaim)
			claim(w, 2, "x", v1alpha1.BasisClaim)
			w.WithoutList(0).Cluster.Observations = w.Cluster.Observations[:1]
			w.With(v1alpha1.Observation{
				Node: "x", NodeUID: "x", Nonce: quorumtest.Nonce, Linearizable: true,
				Members: []v1alpha1.MemberStatus{memberAt(1, workerAddress)},
			})
			return append(n[:1], worker("x", []string{workerAddress}))
		}, 1, "x Claim"},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.mode.voters(3)
			bind(w, c.change(w, c.mode.nodes(3)))
			at := slices.IndexFunc(w.Cluster.Spec.Members,
				func(b v1alpha1.Binding) bool { return b.MemberID == quorumtest.ID(c.member) })
			b := w.Cluster.Spec.Members[at]
			require.Equal(t, c.want, fmt.Sprint(b.NodeUID, " ", b.Basis))
		})
	}
}
