package presence

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestNoAdviceAgainstData checks every combination of a host with the data of a voter and of what
// its EtcdCluster tells: no message advises what would cost that data its member, or another Node
// its member.
func TestNoAdviceAgainstData(t *testing.T) {
	const dir = "/data/etcd"
	hosts := map[string]func(evidence.MemberRef) evidence.Scan{
		"data that nothing names": func(ref evidence.MemberRef) evidence.Scan {
			return evidence.Scan{Data: []evidence.Data{{Dir: dir, Ref: ref}}}
		},
		"recent data": func(ref evidence.MemberRef) evidence.Scan {
			return evidence.Scan{Data: []evidence.Data{{Dir: dir, Ref: ref, Recent: true}}}
		},
		"data and a starter": func(ref evidence.MemberRef) evidence.Scan {
			return evidence.Scan{Data: []evidence.Data{{Dir: dir, Ref: ref, Starter: etcdUnit}}}
		},
		"stopped server": func(ref evidence.MemberRef) evidence.Scan {
			return scanOf(stopped(storing(unitServer(), ref.Member), new(true)))
		},
		"stopped server, data unknown": func(ref evidence.MemberRef) evidence.Scan {
			return scanOf(stopped(storing(unitServer(), ref.Member), nil))
		},
		"stopped server with old data": func(ref evidence.MemberRef) evidence.Scan {
			f := stopped(storing(unitServer(), ref.Member), new(true))
			f.Old = &evidence.Data{Dir: dir, Ref: ref}
			return scanOf(f)
		},
		"server without an answer": func(ref evidence.MemberRef) evidence.Scan {
			return scanOf(unanswered(storing(unitServer(), ref.Member)))
		},
		"nothing": func(evidence.MemberRef) evidence.Scan { return evidence.Scan{} },
		"two directories": func(ref evidence.MemberRef) evidence.Scan {
			return evidence.Scan{Data: []evidence.Data{{Dir: dir, Ref: ref}, {Dir: "/copy", Ref: ref}}}
		},
	}
	clusters := map[string]func() *quorumtest.Cluster{
		"healthy":   func() *quorumtest.Cluster { return quorumtest.Voters(3) },
		"unhealthy": func() *quorumtest.Cluster { return quorumtest.Voters(3).Unhealthy(0) },
		"no list":   func() *quorumtest.Cluster { return quorumtest.Voters(3).WithoutList(0, 1, 2) },
		"one list":  func() *quorumtest.Cluster { return quorumtest.Voters(3).WithoutList(0, 1).Unhealthy(0) },
		"learner":   func() *quorumtest.Cluster { return quorumtest.Voters(3).Learner(0) },
	}
	bindings := map[string]func(*quorumtest.Cluster) []v1alpha1.EtcdCluster{
		"bound here": func(c *quorumtest.Cluster) []v1alpha1.EtcdCluster {
			c.Cluster.Spec.Members[0].Node, c.Cluster.Spec.Members[0].NodeUID = "w9", "u9"
			return []v1alpha1.EtcdCluster{*c.Cluster}
		},
		"bound to an earlier Node": func(c *quorumtest.Cluster) []v1alpha1.EtcdCluster {
			c.Cluster.Spec.Members[0].Node, c.Cluster.Spec.Members[0].NodeUID = "w9", "u8"
			return []v1alpha1.EtcdCluster{*c.Cluster}
		},
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
