package membership_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
)

// object returns an EtcdCluster that was made for a Node.
func object(name, node string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.Annotations = name, map[string]string{membership.MadeForAnnotation: node}
	return c
}

// objects returns this many EtcdClusters, each made for a node of its own.
func objects(count int) (all []*v1alpha1.EtcdCluster) {
	for i := range count {
		name := fmt.Sprintf("b%d", i)
		all = append(all, object(name, "w-"+name))
	}
	return all
}

// describeObjects returns the plan as text.
func describeObjects(create []membership.NewObject, waiting []membership.WaitingCluster) (lines []string) {
	for _, o := range create {
		lines = append(lines, fmt.Sprintf("create %s for %s", o.ID, o.Node))
	}
	for _, w := range waiting {
		lines = append(lines, fmt.Sprintf("%s waits: %s", w.ID, w.Reason))
	}
	return lines
}

// announcementsOf returns the clusters that Nodes announce, such as "w:a,b x:c".
func announcementsOf(text string) map[string][]v1alpha1.ClusterID {
	all := map[string][]v1alpha1.ClusterID{}
	for _, announced := range strings.Fields(text) {
		node, ids, _ := strings.Cut(announced, ":")
		for id := range strings.SplitSeq(ids, ",") {
			all[node] = append(all[node], v1alpha1.ClusterID(id))
		}
	}
	return all
}

func TestPlanObjects(t *testing.T) {
	const genuine = " e1:f e2:f e3:f"
	type clusters = []*v1alpha1.EtcdCluster
	ofTwo := clusters{object("a", "w"), object("b", "w")}
	const limit = " waits: 16 exist, and the webhook creates no more than --max-etcd-clusters=16, which can be raised"
	const share = " waits: 2 exist for the announcements of each of its nodes, which is the limit"
	for name, c := range map[string]struct {
		existing  clusters
		announced string
		want      []string
	}{
		"none announced":        {objects(3), "", nil},
		"first":                 {nil, genuine, []string{"create f for e1"}},
		"exists":                {clusters{object("f", "e1")}, genuine, nil},
		"16th and 17th":         {objects(15), "w:e" + genuine, []string{"create e for w", "f" + limit}},
		"share of a node":       {ofTwo, "w:a,b,c", []string{"c" + share}},
		"share of another node": {ofTwo, "w:a,b,c x:c", []string{"create c for x"}},
		"three of a node":       {nil, "w:c,a,b,a", []string{"create a for w", "create b for w", "c" + share}},
	} {
		t.Run(name, func(t *testing.T) {
			limits := membership.ObjectLimits{Total: 16, PerNode: 2}
			create, waiting := membership.PlanObjects(c.existing, announcementsOf(c.announced), limits)
			require.Equal(t, c.want, describeObjects(create, waiting))
			for _, w := range waiting {
				require.Equal(t, slices.Compact(slices.Clone(w.Announcers)), w.Announcers)
			}
		})
	}
}
