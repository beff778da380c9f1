package quorum_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func TestPossibleNodes(t *testing.T) {
	at := func(i, on int) v1alpha1.Binding {
		return v1alpha1.Binding{MemberID: quorumtest.ID(i), Node: quorumtest.Node(on), NodeUID: quorumtest.UID(on)}
	}
	bindings := func(b ...v1alpha1.Binding) []v1alpha1.Binding { return b }
	unbound := func() *quorumtest.Cluster { return quorumtest.Voters(3).Unbound(2) }
	twoUnbound := quorumtest.Voters(4).Unbound(2).Unbound(3)
	forged := quorumtest.Nodes(4)
	forged[3].Addresses = append(forged[3].Addresses, quorumtest.Address(2))
	noAnnouncement := []observation.AnnouncingNode{{Node: "w3", UID: "u3", Addresses: []string{quorumtest.Address(2)}}}
	loopback := func() *quorumtest.Cluster { return unbound().URLs(2, "https://127.0.0.1:2380") }
	claimed := at(2, 2)
	claimed.Basis = v1alpha1.BasisClaim
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.AnnouncingNode
		want    []v1alpha1.Binding
	}{
		"all bound":                    {quorumtest.Voters(3), quorumtest.Nodes(3), nil},
		"one unbound":                  {unbound(), quorumtest.Nodes(3), bindings(at(2, 2))},
		"old lists":                    {unbound().Silent(0, 1), quorumtest.Nodes(3), bindings(at(2, 2))},
		"two unbound":                  {twoUnbound, quorumtest.Nodes(4), bindings(at(2, 2), at(3, 3))},
		"two Nodes with its address":   {unbound(), forged, bindings(at(2, 2), at(2, 3))},
		"no Node with its address":     {unbound(), quorumtest.Nodes(2), nil},
		"127.0.0.1, announced":         {loopback(), quorumtest.Nodes(3), bindings(claimed)},
		"127.0.0.1":                    {loopback(), append(quorumtest.Nodes(2), noAnnouncement...), nil},
		"not listed by bound observer": {unbound().RemovedFrom(0, 2).RemovedFrom(1, 2), quorumtest.Nodes(3), nil},
		"unconfirmed lists":            {unbound().Unconfirmed(0, 1), quorumtest.Nodes(3), nil},
		"Node without an announcement": {unbound(), noAnnouncement, bindings(at(2, 2))},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, quorum.PossibleNodes(c.cluster.Cluster, c.nodes)) })
	}
	require.Equal(t, quorumtest.IDs("c"), observation.Unlocated(unbound().Cluster))
	require.Empty(t, observation.Unlocated(quorumtest.Voters(3).Cluster))
}

// The agent on w3 has never run, so member c is bound to no Node. Members a and b list it at the
// address of w3.
func TestUnboundVoterIsLostWithItsNode(t *testing.T) {
	atNode := func() *quorumtest.Cluster {
		cluster := quorumtest.Voters(3).Unbound(2)
		cluster.Cluster.Observations = cluster.Cluster.Observations[:2]
		return cluster.MayRunAt(2, 2)
	}
	quorumtest.RequireAllowed(t, atNode(), quorumtest.Deletion(0))
	for name, c := range lostStates("w3") {
		t.Run(name, func(t *testing.T) {
			quorumtest.RequireRefused(t, atNode().State(2, c.change), quorumtest.Deletion(0), c.text)
		})
	}
	awaited := "delete the node again in a few seconds: the API server did not return node w3 in time"
	quorumtest.RequireRefused(t, atNode().State(2, unread), quorumtest.Deletion(0), awaited)
	granted := atNode().Granted(2)
	granted.Cluster.Spec.Grants[0].Members = nil
	quorumtest.RequireRefused(t, granted, quorumtest.Deletion(0), "etcd3 (c): counts as lost: the deletion of its "+
		"node w3 by")
	two := atNode().MayRunAt(2, 3).State(3, deleting)
	quorumtest.RequireRefused(t, two, quorumtest.Deletion(0), "its node w4 is being deleted")
}

// Changes of a NodeState.
func deleting(n *observation.NodeState) { n.Deleting = true }
func unread(n *observation.NodeState)   { *n = observation.NodeState{} }

// Node w1 is deleted without a review, and its member a leaves before the leader writes the grant.
// So no address of the machine is known, and each member without a Node may be there.
// TestSameNodeIsNotReplaced: a Node that reports another machine after a change of its firmware is
// the same Node.
func TestSameNodeIsNotReplaced(t *testing.T) {
	g := v1alpha1.Grant{NodeUID: "u1", Node: "w1", SystemUUID: "s"}
	n := observation.NodeState{Known: true, UID: "u1", Machine: observation.NewMachine("", "t")}
	require.False(t, quorum.IsReplaced(g, n))
	n.UID = "u1-again"
	require.True(t, quorum.IsReplaced(g, n))
}

// F56, F85, F95: the grant knew no address or ID of the machine, because the Node went without a
// review, or a drain added a member: the machine joined again, and counted.
func TestF56UnknownMachine(t *testing.T) {
	unknown := func() *quorumtest.Cluster {
		c := quorumtest.Voters(4).Noticed(0).JoinedAgain(0, 3).Unbound(3).State(0, quorumtest.Gone)
		c.Cluster.Spec.Grants[0].Addresses = nil
		return c
	}
	quorumtest.RequireRefused(t, unknown(), quorumtest.Deletion(1),
		"etcd4 (d): counts as lost: no node is known to run it, and it may have joined again on a machine that may "+
			"still be removed: the machine's earlier node w1 is gone, and its deletion was not reviewed")
	distinct := unknown()
	distinct.Cluster.Spec.DistinctServers = []v1alpha1.DistinctServer{{MemberID: "a", Others: quorumtest.IDs("d")}}
	quorumtest.RequireAllowed(t, distinct, quorumtest.Deletion(1))
	for _, d := range []v1alpha1.DistinctServer{
		{MemberID: "b", Others: quorumtest.IDs("d")}, {MemberID: "a", Others: quorumtest.IDs("c")},
	} {
		distinct.Cluster.Spec.DistinctServers = []v1alpha1.DistinctServer{d}
		require.False(t, quorum.Decide(distinct.View, quorumtest.Deletion(1)).Allowed, d)
	}
	replaced := unknown().State(0, func(n *observation.NodeState) {
		n.UID, n.Machine = "u1-again", observation.NewMachine("m", "t")
	})
	replaced.Cluster.Spec.Grants[0].SystemUUID = "s"
	quorumtest.RequireAllowed(t, replaced, quorumtest.Deletion(1))
	bound := unknown()
	bound.Bind(3)
	quorumtest.RequireAllowed(t, bound, quorumtest.Deletion(1))
}

// The deletion of w1 is allowed. Its member a leaves, and its machine joins again as member d. Then
// d goes with the machine, so w2 must stay, unless the machine is known to be another one.
func TestF20MachineJoinedAgain(t *testing.T) {
	unbound := func(c *quorumtest.Cluster) { c.Unbound(3) }
	atNode := func(c *quorumtest.Cluster) {
		c.Unbound(3).PossibleNodes = []v1alpha1.Binding{{MemberID: "d", Node: "w1", NodeUID: "u1-again"}}
	}
	unregistered := func(c *quorumtest.Cluster) { c.Unbound(3).State(0, quorumtest.Gone) }
	renamed := func(c *quorumtest.Cluster) {
		c.Cluster.Spec.Members[2].Node, c.Cluster.Spec.Members[2].NodeUID = "w4", "u4"
		c.Nodes["w4"] = observation.NodeState{Known: true, UID: "u4"}
	}
	claimed := func(basis v1alpha1.BindingBasis) func(*quorumtest.Cluster) {
		return func(c *quorumtest.Cluster) { renamed(c); c.State(0, quorumtest.Gone).Basis(basis, 3) }
	}
	provided := func(before, now string) func(*quorumtest.Cluster) {
		return func(c *quorumtest.Cluster) {
			renamed(c)
			c.Cluster.Spec.Grants[0].ProviderID = before
			c.State(0, quorumtest.Gone).State(3, func(n *observation.NodeState) { n.ProviderID = now })
		}
	}
	machine := observation.NewMachine
	sameCloud, anotherCloud := provided("cloud:///1", "cloud:///1"), provided("cloud:///1", "cloud:///2")
	oldNameReused := func(c *quorumtest.Cluster) {
		sameCloud(c)
		c.State(0, func(n *observation.NodeState) { n.UID, n.Machine = "u1-again", machine("n", "t") })
	}
	otherHardware := func(c *quorumtest.Cluster) {
		sameCloud(c)
		c.State(3, func(n *observation.NodeState) { n.Machine = machine("n", "t") })
	}
	sameProviderID := func(c *quorumtest.Cluster) {
		c.Cluster.Spec.Grants[0].ProviderID = "k3s://w1"
		c.State(0, func(n *observation.NodeState) { n.ProviderID = "k3s://w1" })
	}
	bothExist := func(c *quorumtest.Cluster) {
		sameCloud(c)
		c.State(0, func(n *observation.NodeState) { n.UID = "u1" })
	}
	unchanged := func(*quorumtest.Cluster) {}
	type identity = observation.Machine
	none, ms, nt := identity{}, machine("m", "s"), machine("n", "t")
	const own, isLost, counts = "10.0.0.1", true, false
	for name, c := range map[string]struct {
		change      func(*quorumtest.Cluster)
		before, now identity
		address     string // in the grant
		isLost      bool
	}{
		"bound to the younger Node":                              {unchanged, none, none, "", isLost},
		"possibly at the younger Node":                           {atNode, none, none, "", isLost},
		"no Node has registered yet":                             {unregistered, none, none, own, isLost},
		"unbound, at another address":                            {unbound, none, none, "10.0.0.9", counts},
		"bound to a Node of another name":                        {renamed, none, none, own, counts},
		"F88 another name, the same machine in its cloud":        {sameCloud, none, none, "", isLost},
		"F88 another name, and another machine has its old name": {oldNameReused, ms, none, "", isLost},
		"another name, another machine in its cloud":             {anotherCloud, none, none, own, counts},
		"another name, other hardware":                           {otherHardware, ms, none, own, counts},
		"the same name and provider ID, other hardware":          {sameProviderID, ms, nt, "", counts},
		"another name, no machine known":                         {provided("", ""), none, none, own, counts},
		"F100 another name, both Nodes exist":                    {bothExist, none, none, "", isLost},
		// F44: a machine joined again before its kubelet registered, and counted by the claim of a
		// worker.
		"F44 no Node yet, claimed by a worker":       {claimed(v1alpha1.BasisClaim), none, none, own, isLost},
		"F44 no Node yet, disputed":                  {claimed(v1alpha1.BasisDisputed), none, none, own, isLost},
		"the same hardware":                          {unchanged, ms, ms, "", isLost},
		"the same hardware, installed again":         {unchanged, ms, machine("n", "s"), "", isLost},
		"other hardware":                             {unchanged, ms, nt, "", counts},
		"other hardware, cloned image":               {unchanged, ms, machine("m", "t"), "", counts},
		"no hardware UUID, other image":              {unchanged, ms, machine("n", ""), "", counts},
		"no hardware UUID, the same image":           {unchanged, machine("m", ""), machine("m", "t"), "", isLost},
		"unknown before":                             {unchanged, none, ms, "", isLost},
		"unknown now":                                {unchanged, ms, none, "", isLost},
		"other hardware at the old address, unbound": {unbound, ms, nt, own, counts},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := quorumtest.Voters(4).Granted(0).JoinedAgain(0, 3)
			cluster.State(0, func(n *observation.NodeState) { n.Machine = c.now })
			g := &cluster.Cluster.Spec.Grants[0]
			g.MachineID, g.SystemUUID, g.Addresses = c.before.MachineID, c.before.SystemUUID, strings.Fields(c.address)
			c.change(cluster)
			if !c.isLost {
				quorumtest.RequireAllowed(t, cluster, quorumtest.Deletion(1))
				return
			}
			quorumtest.RequireRefused(t, cluster, quorumtest.Deletion(1), "etcd4 (d): counts as lost: it joined again on a "+
				"machine that may still be removed: the deletion of the machine's earlier node w1 by alice was allowed at "+
				"2026-05-01T12:00:00Z; it counts again when the agent of its node has proven it healthy for 20m0s, "+
				"not before 2026-05-01T12:20:00Z")
			require.Contains(t, words.Summary(quorum.Summarize(cluster.View)), "not before 2026-05-01T12:20:00Z")
		})
	}
	quorumtest.RequireAllowed(t, quorumtest.Voters(4).JoinedAgain(0, 3), quorumtest.Deletion(1))
	unread := quorumtest.Voters(4).Granted(0).JoinedAgain(0, 3).State(0, unread)
	quorumtest.RequireRefused(t, unread, quorumtest.Deletion(1), "its node w1 could not be read")
	earlier := quorumtest.Voters(4).Granted(0).JoinedAgain(0, 3)
	provided("cloud:///1", "cloud:///1")(earlier)
	earlier.State(3, func(n *observation.NodeState) { n.UID = "u4-again" })
	quorumtest.RequireRefused(t, earlier, quorumtest.Deletion(1), "its node w4 is gone; a different Node has the name now")
	learner := quorumtest.Voters(4).Granted(0).JoinedAgain(0, 3).Learner(3)
	quorumtest.RequireRefused(t, learner, quorumtest.Deletion(1), "a learner; it counts as a voter")
}

// TestF94GrantOfOtherCluster: etcd was restored with new IDs, so the grants are in the EtcdCluster
// of the old ones.
// F94: etcd was restored with new IDs, and a machine that the old EtcdCluster gave up counted.
func TestF94GrantOfOtherCluster(t *testing.T) {
	old := quorumtest.Voters(3).Granted(1).Cluster
	old.Name = "01d"
	restored := quorumtest.Voters(3)
	restored.Others = []*v1alpha1.EtcdCluster{restored.Cluster, old}
	quorumtest.RequireRefused(t, restored, quorumtest.Deletion(0),
		"etcd2 (b): counts as lost: the deletion of its node w2 "+
			"by alice was allowed at 2026-05-01T12:00:00Z, which had a member of etcd cluster 01d too")
	// If no agent lists the old cluster any more, only people can end a drain there.
	message := words.Message(quorum.Decide(restored.View, quorumtest.Deletion(0)))
	require.Contains(t, message, "kubectl annotate --overwrite etcdcluster 01d holdfast.dev/settle=u2")
	quorumtest.RequireAllowed(t, restored, quorumtest.Deletion(1))
	old.Spec.Grants[0].NodeUID = "u2 of an earlier Node"
	quorumtest.RequireAllowed(t, restored, quorumtest.Deletion(0))
	restored.Others = []*v1alpha1.EtcdCluster{quorumtest.Voters(3).Granted(1).Cluster}
	quorumtest.RequireAllowed(t, restored, quorumtest.Deletion(0))
}

func TestMachineAddresses(t *testing.T) {
	cluster := quorumtest.Voters(3).URLs(0, "https://ETCD1.example.org.:2380", "https://127.0.0.1:2380")
	require.Equal(t, []string{"etcd1.example.org", "10.0.0.1", "fd00::1", "w1"},
		quorum.MachineAddresses(cluster.Cluster, quorumtest.IDs("a"), []string{"w1", "10.0.0.1", "FD00::1", "localhost"}))
	require.Empty(t, quorum.MachineAddresses(cluster.Cluster, quorumtest.IDs("f"), nil), "the member is in no list")
	require.Equal(t, []string{"10.0.0.2"}, quorum.MachineAddresses(cluster.Cluster, quorumtest.IDs("b"), nil))
}
