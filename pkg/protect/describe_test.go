package protect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestFoundMessage: the first event on a node with etcd reports the protection, and no problem of a
// server that has not been probed yet.
func TestFoundMessage(t *testing.T) {
	scan := evidence.Scan{Found: []evidence.FoundServer{{
		Server: evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812},
	}}}
	p := protect.Assess(scan, protect.Inputs{ClustersKnown: true})
	require.Contains(t, p.Message, "did not answer")
	require.Equal(t, "this node is protected: it has etcd; "+
		"the condition EtcdMember names the member as soon as its server has answered", p.FoundMessage())

	ref := evidence.MemberRef{Cluster: "cd", Member: "3a"}
	scan.Found[0].Ref = ref
	p = protect.Assess(scan, protect.Inputs{ClustersKnown: true})
	require.Equal(t, "this node is protected: it has etcd member 3a of cluster cd", p.FoundMessage())

	scan.Found = append(scan.Found, evidence.FoundServer{
		Server: evidence.Server{Source: evidence.Process, Where: "process 9", PID: 9},
	})
	p = protect.Assess(scan, protect.Inputs{ClustersKnown: true})
	require.Equal(t, "this node is protected: it has etcd member 3a of cluster cd and another etcd server; "+
		"the condition EtcdMember names the member as soon as its server has answered", p.FoundMessage())
}
