package protect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestPlaced(t *testing.T) {
	at := func(i, on int) v1alpha1.Binding {
		return v1alpha1.Binding{MemberID: id(i), Node: node(on), NodeUID: uid(on)}
	}
	forged := claims(4)
	forged[3].Addresses = append(forged[3].Addresses, address(2))
	for name, c := range map[string]struct {
		world *world
		nodes []NodeClaim
		want  []v1alpha1.Binding
	}{
		"all are bound":                        {voters(3), claims(3), nil},
		"one is not":                           {voters(3).unbound(2), claims(3), []v1alpha1.Binding{at(2, 2)}},
		"by old lists":                         {voters(3).unbound(2).silent(0, 1), claims(3), []v1alpha1.Binding{at(2, 2)}},
		"two are not":                          {voters(4).unbound(2).unbound(3), claims(4), []v1alpha1.Binding{at(2, 2), at(3, 3)}},
		"two Nodes have its address":           {voters(3).unbound(2), forged, []v1alpha1.Binding{at(2, 2), at(2, 3)}},
		"no Node has its address":              {voters(3).unbound(2), claims(2), nil},
		"127.0.0.1":                            {voters(3).unbound(2).urls(2, "https://127.0.0.1:2380"), claims(3), nil},
		"nobody lists it who is heard":         {voters(3).unbound(2).removedFrom(0, 2).removedFrom(1, 2), claims(3), nil},
		"no quorum has confirmed where it is":  {voters(3).unbound(2).unconfirmed(0, 1), claims(3), nil},
		"its Node says nothing of any cluster": {voters(3).unbound(2), []NodeClaim{{Node: "w3", UID: "u3", Addresses: []string{address(2)}}}, []v1alpha1.Binding{at(2, 2)}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Placed(c.world.Cluster, c.nodes)) })
	}
	require.Equal(t, ids("c"), Unbound(voters(3).unbound(2).Cluster))
	require.Empty(t, Unbound(voters(3).Cluster))
}

// The agent on w3 has never run, so that c is bound nowhere; a and b list it at the address of w3.
func TestAVoterThatIsBoundNowhereGoesWithTheNodeThatItIsPlacedAt(t *testing.T) {
	placed := func() *world {
		w := voters(3).unbound(2)
		w.Cluster.Status.Observations = w.Cluster.Status.Observations[:2]
		return w.placedAt(2, 2)
	}
	allows(t, placed(), deletion(0))
	for name, c := range map[string]struct {
		change func(*NodeState)
		says   string
	}{
		"tainted":        {func(n *NodeState) { n.DeletionTaint = "ToBeDeletedByClusterAutoscaler" }, "its node w3 is about to be deleted (taint ToBeDeletedByClusterAutoscaler)"},
		"being deleted":  {func(n *NodeState) { n.Deleting = true }, "its node w3 is being deleted"},
		"gone":           {goneNode, "its node w3 is gone"},
		"name used anew": {func(n *NodeState) { n.UID = "u3-again" }, "the Node that has the name now is another"},
		"not read":       {func(n *NodeState) { n.Known = false }, "delete the node again in a moment: the API server did not tell in time of node w3"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, placed().state(2, c.change), deletion(0), c.says) })
	}
	going := placed().granted(2)
	going.Cluster.Spec.Grants[0].Members = nil
	refuses(t, going, deletion(0), "etcd3 (c): given up: the deletion of its node w3 was allowed")
	two := placed().placedAt(2, 3).state(3, func(n *NodeState) { n.Deleting = true })
	refuses(t, two, deletion(0), "its node w4 is being deleted")
}
