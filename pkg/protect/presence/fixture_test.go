package presence

import (
	"maps"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

const (
	etcdUnit   = "systemd unit etcd.service"
	eventsUnit = "systemd unit etcd-events.service"
)

// refs returns members of the cluster of the tests.
func refs(members ...v1alpha1.MemberID) []evidence.MemberRef {
	var all []evidence.MemberRef
	for _, m := range members {
		all = append(all, evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: m})
	}
	return all
}

// withEvents adds member f of cluster abc, which sorts before the cluster of the tests.
func withEvents(all []evidence.MemberRef) []evidence.MemberRef {
	return append([]evidence.MemberRef{{Cluster: "abc", Member: "f"}}, all...)
}

func scanOf(servers ...evidence.FoundServer) evidence.Scan { return evidence.Scan{Found: servers} }

// unitServer returns a server that answers as member a.
func unitServer() evidence.FoundServer {
	return evidence.FoundServer{
		Server:   evidence.Server{Source: evidence.SystemdUnit, Where: etcdUnit, Unit: "etcd.service", PID: 812},
		Identity: evidence.Identity{Ref: refs("a")[0], Name: "etcd1"},
	}
}

// eventsServer returns the server of a second cluster on the same host, which has not answered.
func eventsServer() evidence.FoundServer {
	return named(unansweredAt(unitServer(), eventsUnit), "etcd1-events")
}

func unanswered(f evidence.FoundServer) evidence.FoundServer {
	f.Identity = evidence.Identity{Problem: "no client certificate was accepted: tried /etc/ssl/etcd/ssl/admin-w1.pem"}
	return f
}

func unansweredAt(f evidence.FoundServer, where string) evidence.FoundServer {
	f = unanswered(f)
	f.Where = where
	return f
}

func stopped(f evidence.FoundServer, hasData *bool) evidence.FoundServer {
	f.PID, f.Identity, f.HasData = 0, evidence.Identity{}, hasData
	return f
}

func withData(f evidence.FoundServer, hasData *bool) evidence.FoundServer {
	f.HasData = hasData
	return f
}

func removedServer(f evidence.FoundServer) evidence.FoundServer {
	f.Removed = true
	return f
}

// storing returns a server whose log names this member.
func storing(f evidence.FoundServer, member v1alpha1.MemberID) evidence.FoundServer {
	f.Stored = &evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: member}
	return f
}

// named returns a server with this configured name.
func named(f evidence.FoundServer, name string) evidence.FoundServer {
	f.Config.Name = name
	return f
}

// unboundCluster returns a cluster that binds no member to w9, the node of most tests.
func unboundCluster() v1alpha1.EtcdCluster { return *quorumtest.Voters(3).Cluster }

// boundCluster returns a cluster that binds member a to w9.
func boundCluster() v1alpha1.EtcdCluster {
	c := unboundCluster()
	c.Spec.Members[0].Node, c.Spec.Members[0].NodeUID = "w9", "u9"
	return c
}

// boundInputs returns the inputs of w9, which announces members, and to which member a is bound.
func boundInputs(announced []evidence.MemberRef) Inputs {
	return Inputs{
		Node: "w9", UID: "u9", ClustersKnown: true, Announced: announced, Clusters: []v1alpha1.EtcdCluster{boundCluster()},
	}
}

// apply returns a copy of a map with the changes.
func apply(to map[string]string, changes map[string]*string) map[string]string {
	result := map[string]string{}
	maps.Copy(result, to)
	for key, v := range changes {
		if v == nil {
			delete(result, key)
		} else {
			result[key] = *v
		}
	}
	return result
}
