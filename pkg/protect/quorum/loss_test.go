package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

func TestLocateUnbound(t *testing.T) {
	at := func(i, on int) v1alpha1.Binding {
		return v1alpha1.Binding{MemberID: quorumtest.ID(i), Node: quorumtest.Node(on), NodeUID: quorumtest.UID(on)}
	}
	bindings := func(b ...v1alpha1.Binding) []v1alpha1.Binding { return b }
	unbound := func() *quorumtest.Cluster { return quorumtest.Voters(3).Unbound(2) }
	twoUnbound := quorumtest.Voters(4).Unbound(2).Unbound(3)
	forged := quorumtest.Claims(4)
	forged[3].Addresses = append(forged[3].Addresses, quorumtest.Address(2))
	noAnnouncement := []observation.NodeClaim{{Node: "w3", UID: "u3", Addresses: []string{quorumtest.Address(2)}}}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.NodeClaim
		want    []v1alpha1.Binding
	}{
		"all bound":                    {quorumtest.Voters(3), quorumtest.Claims(3), nil},
		"one unbound":                  {unbound(), quorumtest.Claims(3), bindings(at(2, 2))},
		"old lists":                    {unbound().Silent(0, 1), quorumtest.Claims(3), bindings(at(2, 2))},
		"two unbound":                  {twoUnbound, quorumtest.Claims(4), bindings(at(2, 2), at(3, 3))},
		"two Nodes with its address":   {unbound(), forged, bindings(at(2, 2), at(2, 3))},
		"no Node with its address":     {unbound(), quorumtest.Claims(2), nil},
		"127.0.0.1":                    {unbound().URLs(2, "https://127.0.0.1:2380"), quorumtest.Claims(3), nil},
		"not listed by bound observer": {unbound().RemovedFrom(0, 2).RemovedFrom(1, 2), quorumtest.Claims(3), nil},
		"unconfirmed lists":            {unbound().Unconfirmed(0, 1), quorumtest.Claims(3), nil},
		"Node without an announcement": {unbound(), noAnnouncement, bindings(at(2, 2))},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, quorum.LocateUnbound(c.cluster.Cluster, c.nodes)) })
	}
	require.Equal(t, quorumtest.IDs("c"), observation.Unbound(unbound().Cluster))
	require.Empty(t, observation.Unbound(quorumtest.Voters(3).Cluster))
}

// The agent on w3 has never run, so member c is bound to no Node. Members a and b list it at the
// address of w3.
func TestUnboundVoterIsLostWithItsNode(t *testing.T) {
	placed := func() *quorumtest.Cluster {
		cluster := quorumtest.Voters(3).Unbound(2)
		cluster.Cluster.Status.Observations = cluster.Cluster.Status.Observations[:2]
		return cluster.PlacedAt(2, 2)
	}
	quorumtest.RequireAllowed(t, placed(), quorumtest.Deletion(0))
	for name, c := range map[string]struct {
		change func(*observation.NodeState)
		text   string
	}{
		"tainted":       {quorumtest.Departing, "its node w3 is about to be deleted (taint ToBeDeletedByClusterAutoscaler)"},
		"being deleted": {deleting, "its node w3 is being deleted"},
		"gone":          {quorumtest.Gone, "its node w3 is gone"},
		"name reused":   {func(n *observation.NodeState) { n.UID = "u3-again" }, "a different Node has the name now"},
		"unread":        {unread, "delete the node again in a few seconds: the API server did not return node w3 in time"},
	} {
		t.Run(name, func(t *testing.T) {
			quorumtest.RequireRefused(t, placed().State(2, c.change), quorumtest.Deletion(0), c.text)
		})
	}
	granted := placed().Granted(2)
	granted.Cluster.Spec.Grants[0].Members = nil
	quorumtest.RequireRefused(t, granted, quorumtest.Deletion(0), "etcd3 (c): counts as lost: the deletion of its "+
		"node w3 by")
	two := placed().PlacedAt(2, 3).State(3, deleting)
	quorumtest.RequireRefused(t, two, quorumtest.Deletion(0), "its node w4 is being deleted")
}

// Changes of a NodeState.
func deleting(n *observation.NodeState) { n.Deleting = true }
func unread(n *observation.NodeState)   { *n = observation.NodeState{} }
