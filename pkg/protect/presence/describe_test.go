package presence

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestFoundMessage: the first event on a node with etcd reports the protection, and no problem of a
// server that has not been probed yet.
func TestFoundMessage(t *testing.T) {
	const asSoonAs = "; the condition EtcdMember names the member as soon as its server has answered"
	const member = "this node is protected: it has etcd member a of cluster cdf818194e3a8c32"
	found := func(servers ...evidence.FoundServer) string {
		return Assess(scanOf(servers...), Inputs{ClustersKnown: true}).FoundMessage()
	}
	require.Equal(t, "this node is protected: it has etcd"+asSoonAs, found(unanswered(unitServer())))
	require.Equal(t, member, found(unitServer()))
	require.Equal(t, member+" and another etcd server"+asSoonAs, found(unitServer(), eventsServer()))
}

// TestRestartedAgent: an agent that has just started writes the condition that the Node has, also
// while it waits for the first answer of the member.
func TestRestartedAgent(t *testing.T) {
	answered, awaited := unitServer(), unitServer()
	answered.Name = ""
	awaited.Identity = evidence.Identity{Problem: "in progress", Pending: true}
	unknown, known := Inputs{ClustersKnown: true}, Inputs{ClustersKnown: true, Announced: refs("a"), Protected: true}
	require.Equal(t, Assess(scanOf(answered), unknown).Message, Assess(scanOf(awaited), known).Message)
	require.Contains(t, Assess(scanOf(awaited), unknown).Message, "in progress")
	awaited.Pending = false
	require.Contains(t, Assess(scanOf(awaited), known).Message, "in progress")
}

// The condition of a drained node tells so, and how the node comes back. A grant for the deletion
// of the node, or for a drain of another one, changes nothing (F31).
func TestDrainedNode(t *testing.T) {
	message := func(cluster *quorumtest.Cluster) string {
		return Assess(scanOf(unitServer()), inputsOf(cluster)).Message
	}
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	require.Equal(t, message(three()), message(three().Granted(0).Drained(1)))
	require.Contains(t, message(three().Drained(0)), "a drain of this node was allowed at 2026-05-01T12:00:00Z: "+
		"its members count as lost until the node is uncordoned (kubectl uncordon w1) and its agent has proven them healthy")
}

// inputsOf returns the inputs of node w1 in this cluster.
func inputsOf(cluster *quorumtest.Cluster) Inputs {
	return Inputs{Node: "w1", UID: "u1", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{*cluster.Cluster}}
}

// announcedOf returns the inputs of node w1, which announces member a.
func announcedOf(cluster *quorumtest.Cluster) Inputs {
	in := inputsOf(cluster)
	in.Announced, in.Protected = refs("a"), true
	return in
}

// TestRetiredCluster: the leader creates the EtcdCluster of a cluster that a Node announces. So the
// condition tells to remove the announcement before the object of a cluster that no longer exists.
func TestRetiredCluster(t *testing.T) {
	const command = "kubectl delete etcdcluster " + string(quorumtest.ClusterID)
	const first = "kubectl annotate node w1 holdfast.dev/etcd-, then " + command
	for name, cluster := range map[string]*quorumtest.Cluster{
		"no list of another node": quorumtest.Voters(1),
		"unhealthy in the lists":  quorumtest.Voters(3).Unhealthy(0),
	} {
		t.Run(name, func(t *testing.T) {
			message := Assess(evidence.Scan{}, inputsOf(cluster)).Message
			require.Contains(t, message, command)
			require.NotContains(t, message, first)
			require.Contains(t, Assess(evidence.Scan{}, announcedOf(cluster)).Message, first)
		})
	}
}
