package presence_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestFoundMessage: the first event on a node with etcd reports the protection, and no problem of a
// server that has not been probed yet.
func TestFoundMessage(t *testing.T) {
	scan := evidence.Scan{Found: []evidence.FoundServer{{
		Server: evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812},
	}}}
	p := presence.Assess(scan, presence.Inputs{ClustersKnown: true})
	require.Contains(t, p.Message, "did not answer")
	require.Equal(t, "this node is protected: it has etcd; "+
		"the condition EtcdMember names the member as soon as its server has answered", p.FoundMessage())

	ref := evidence.MemberRef{Cluster: "cd", Member: "3a"}
	scan.Found[0].Ref = ref
	p = presence.Assess(scan, presence.Inputs{ClustersKnown: true})
	require.Equal(t, "this node is protected: it has etcd member 3a of cluster cd", p.FoundMessage())

	scan.Found = append(scan.Found, evidence.FoundServer{
		Server: evidence.Server{Source: evidence.Process, Where: "process 9", PID: 9},
	})
	p = presence.Assess(scan, presence.Inputs{ClustersKnown: true})
	require.Equal(t, "this node is protected: it has etcd member 3a of cluster cd and another etcd server; "+
		"the condition EtcdMember names the member as soon as its server has answered", p.FoundMessage())
}

// TestRestartedAgent: an agent that has just started writes the condition that the Node has, also
// while it waits for the first answer of the member.
func TestRestartedAgent(t *testing.T) {
	server := evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812}
	ref := evidence.MemberRef{Cluster: "cd", Member: "3a"}
	answered := evidence.FoundServer{Server: server, Identity: evidence.Identity{Ref: ref}}
	before := presence.Assess(evidence.Scan{Found: []evidence.FoundServer{answered}}, presence.Inputs{ClustersKnown: true})
	awaited := evidence.FoundServer{Server: server, Identity: evidence.Identity{Problem: "in progress", Pending: true}}
	scan := evidence.Scan{Found: []evidence.FoundServer{awaited}}
	known := presence.Inputs{ClustersKnown: true, Announced: []evidence.MemberRef{ref}, Protected: true}
	require.Equal(t, before.Message, presence.Assess(scan, known).Message)
	require.Contains(t, presence.Assess(scan, presence.Inputs{ClustersKnown: true}).Message, "in progress")
	scan.Found[0].Pending = false
	require.Contains(t, presence.Assess(scan, known).Message, "in progress")
}

// The condition of a drained node tells so, and how the node comes back. A grant for the deletion
// of the node, or for a drain of another one, changes nothing (F31).
func TestDrainedNode(t *testing.T) {
	scan := evidence.Scan{Found: []evidence.FoundServer{{
		Server: evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812},
		Identity: evidence.Identity{
			Ref: evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: "a"},
		},
	}}}
	message := func(cluster *quorumtest.Cluster) string {
		in := presence.Inputs{Node: "w1", UID: "u1", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{*cluster.Cluster}}
		return presence.Assess(scan, in).Message
	}
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	require.Equal(t, message(three()), message(three().Granted(0).Drained(1)))
	require.Contains(t, message(three().Drained(0)), "a drain of this node was allowed at 2026-05-01T12:00:00Z: "+
		"its members count as lost until the node is uncordoned (kubectl uncordon w1) and its agent has proven them healthy")
}

// TestRetiredCluster: the leader creates the EtcdCluster of a cluster that a Node announces. So the
// condition tells to remove the announcement before the object of a cluster that no longer exists.
func TestRetiredCluster(t *testing.T) {
	ref := evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: "a"}
	for name, cluster := range map[string]*quorumtest.Cluster{
		"no list of another node": quorumtest.Voters(1),
		"unhealthy in the lists":  quorumtest.Voters(3).Unhealthy(0),
	} {
		t.Run(name, func(t *testing.T) {
			in := presence.Inputs{Node: "w1", UID: "u1", ClustersKnown: true, Clusters: []v1alpha1.EtcdCluster{*cluster.Cluster}}
			command := "kubectl delete etcdcluster " + string(quorumtest.ClusterID)
			first := "kubectl annotate node w1 holdfast.dev/etcd-, then " + command
			message := presence.Assess(evidence.Scan{}, in).Message
			require.Contains(t, message, command)
			require.NotContains(t, message, first)
			in.Announced = []evidence.MemberRef{ref}
			require.Contains(t, presence.Assess(evidence.Scan{}, in).Message, first)
		})
	}
}
