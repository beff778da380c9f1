package presence

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestNoAdviceAgainstData checks every combination of a host with the data of a voter and of what
// its EtcdCluster tells: no message advises what would cost that data its member, or another Node
// its member.
func TestNoAdviceAgainstData(t *testing.T) {
	const dir = "/data/etcd"
	withData := func(data ...evidence.Data) func(evidence.MemberRef) evidence.Scan {
		return func(ref evidence.MemberRef) evidence.Scan {
			for i := range data {
				data[i].Ref = ref
			}
			return evidence.Scan{Data: data}
		}
	}
	withServer := func(change func(evidence.FoundServer) evidence.FoundServer) func(evidence.MemberRef) evidence.Scan {
		return func(ref evidence.MemberRef) evidence.Scan { return scanOf(change(storing(unitServer(), ref.Member))) }
	}
	hosts := map[string]func(evidence.MemberRef) evidence.Scan{
		"data that nothing names": withData(evidence.Data{Dir: dir}),
		"recent data":             withData(evidence.Data{Dir: dir, Recent: true}),
		"data and a starter":      withData(evidence.Data{Dir: dir, Starter: etcdUnit}),
		"two directories":         withData(evidence.Data{Dir: dir}, evidence.Data{Dir: "/copy"}),
		"nothing":                 withData(),
		"stopped server": withServer(func(f evidence.FoundServer) evidence.FoundServer {
			return stopped(f, new(true))
		}),
		"stopped server, data unknown": withServer(func(f evidence.FoundServer) evidence.FoundServer {
			return stopped(f, nil)
		}),
		"stopped server with old data": withServer(func(f evidence.FoundServer) evidence.FoundServer {
			f.Old = &evidence.Data{Dir: dir, Ref: *f.Stored}
			return stopped(f, new(true))
		}),
		"server without an answer": withServer(unanswered),
	}
	clusters := map[string]func() *quorumtest.Cluster{
		"healthy":   func() *quorumtest.Cluster { return quorumtest.Voters(3) },
		"unhealthy": func() *quorumtest.Cluster { return quorumtest.Voters(3).Unhealthy(0) },
		"no list":   func() *quorumtest.Cluster { return quorumtest.Voters(3).WithoutList(0, 1, 2) },
		"one list":  func() *quorumtest.Cluster { return quorumtest.Voters(3).WithoutList(0, 1).Unhealthy(0) },
		"learner":   func() *quorumtest.Cluster { return quorumtest.Voters(3).Learner(0) },
	}
	boundTo := func(uid types.UID) func(*quorumtest.Cluster) []v1alpha1.EtcdCluster {
		return func(c *quorumtest.Cluster) []v1alpha1.EtcdCluster {
			c.Cluster.Spec.Members[0].Node, c.Cluster.Spec.Members[0].NodeUID = "w9", uid
			return []v1alpha1.EtcdCluster{*c.Cluster}
		}
	}
	bindings := map[string]func(*quorumtest.Cluster) []v1alpha1.EtcdCluster{
		"bound here": boundTo("u9"), "bound to an earlier Node": boundTo("u8"),
		"bound elsewhere": func(c *quorumtest.Cluster) []v1alpha1.EtcdCluster { return []v1alpha1.EtcdCluster{*c.Cluster} },
		"bound nowhere": func(c *quorumtest.Cluster) []v1alpha1.EtcdCluster {
			return []v1alpha1.EtcdCluster{*c.Unbound(0).Cluster}
		},
		"no EtcdCluster": func(*quorumtest.Cluster) []v1alpha1.EtcdCluster { return nil },
	}
	advice := regexp.MustCompile(`member remove|etcd leave|register the node again|[Dd]elete (that|the) Node|delete node`)
	checked := 0
	for host, scan := range hosts {
		for cluster, of := range clusters {
			for binding, bind := range bindings {
				for _, announced := range [][]evidence.MemberRef{nil, refs("a")} {
					in := Inputs{
						Node: "w9", UID: "u9", Announced: announced, Protected: announced != nil, StaticPods: true,
						Clusters: bind(of()), ClustersKnown: true,
					}
					p := Assess(scan(refs("a")[0]), in)
					for _, text := range []string{p.Message, p.Because} {
						require.NotRegexp(t, advice, text, "%s, %s, %s, announced: %v", host, cluster, binding, announced)
					}
					checked++
				}
			}
		}
	}
	require.Equal(t, len(hosts)*len(clusters)*len(bindings)*2, checked)
}
