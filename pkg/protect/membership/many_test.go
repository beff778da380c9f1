package membership_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestBindBesideManyNodes: the memory of a round does not grow with the nodes that have nothing to
// do with the cluster, also if one worker founds it and lists many members and URLs.
func TestBindBesideManyNodes(t *testing.T) {
	founded := quorumtest.Voters(1).WithoutRoles().NeverBound()
	founder := quorumtest.WithoutRoles(quorumtest.Nodes(1))
	list := &founded.Observer(0).Members
	for i := range 19 {
		m := quorumtest.Member(0)
		m.ID, m.PeerURLs, m.ClientURLs = v1alpha1.MemberID(fmt.Sprintf("%x", 256+i)), nil, nil
		for j := range 20 {
			m.PeerURLs = append(m.PeerURLs, fmt.Sprintf("http://a%d", j))
			m.ClientURLs = append(m.ClientURLs, fmt.Sprintf("http://b%d", j))
		}
		*list = append(*list, m)
		founder[0].Announced = append(founder[0].Announced, evidence.MemberRef{Cluster: quorumtest.ClusterID, Member: m.ID})
	}
	for name, test := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   []observation.AnnouncingNode
	}{
		"five members":        {quorumtest.Voters(5), quorumtest.Nodes(5)},
		"founded by a worker": {founded, founder},
	} {
		t.Run(name, func(t *testing.T) {
			allocated := func(workers int) uint64 {
				nodes := test.nodes
				for i := range workers {
					nodes = append(nodes, observation.AnnouncingNode{
						Node: fmt.Sprint("worker-", i), UID: types.UID(fmt.Sprint("uid-", i)),
						Addresses: []string{fmt.Sprint("worker-", i)},
					})
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				bindings, _ := membership.Bind(test.cluster.Cluster, nodes, []string{quorumtest.Nonce},
					quorumtest.Noon().Add(time.Hour))
				runtime.ReadMemStats(&after)
				require.NotEmpty(t, bindings)
				return after.TotalAlloc - before.TotalAlloc
			}
			require.Less(t, allocated(5000), 2*allocated(0)+64<<10)
		})
	}
}
