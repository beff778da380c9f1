package membership_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
)

// object returns an EtcdCluster that was made for a Node, and is bound or not.
func object(name, node string, isBound bool) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.Annotations = name, map[string]string{membership.MadeForAnnotation: node}
	if isBound {
		c.Spec.Members = []v1alpha1.Binding{{MemberID: "1", Node: node}}
	}
	return c
}

// objects returns this many EtcdClusters, each made for a worker of its own that is named like it.
func objects(count int, isBound bool) (all []*v1alpha1.EtcdCluster) {
	for i := range count {
		name := fmt.Sprintf("b%d", i)
		all = append(all, object(name, "w-"+name, isBound))
	}
	return all
}

// describeObjects returns the plan as text.
func describeObjects(create []membership.NewObject, waiting []membership.WaitingCluster) (lines []string) {
	for _, o := range create {
		line := fmt.Sprintf("create %s for %s", o.ID, o.Node)
		if o.Replaces != nil {
			line += " instead of " + o.Replaces.Name
		}
		lines = append(lines, line)
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
	// 8 workers, each with two clusters that do not exist, and 16 workers, each with one
	workers, asMany := "", "e1:f"
	var bogus []*v1alpha1.EtcdCluster
	for i := range 8 {
		node := fmt.Sprintf("w%d", i)
		workers += fmt.Sprintf(" %s:b%d0,b%d1", node, i, i)
		bogus = append(bogus, object(fmt.Sprintf("b%d0", i), node, false), object(fmt.Sprintf("b%d1", i), node, false))
	}
	for i := range 16 {
		asMany += fmt.Sprintf(" w-b%d:b%d", i, i)
	}
	granted := objects(16, true)
	granted[0].Spec.Members, granted[0].Spec.Grants = nil, []v1alpha1.Grant{{Node: "gone"}}
	type clusters = []*v1alpha1.EtcdCluster
	ofTwo := clusters{object("a", "w", false), object("b", "w", false)}
	beside := func(more ...*v1alpha1.EtcdCluster) clusters { return append(objects(14, true), more...) }
	ofTwoWorkers := beside(object("x", "w1", false), object("y", "w2", false))
	ofOneWorker := beside(object("x", "w", false), object("y", "w", false))
	const limit = " waits: 16 exist, and the webhook creates no more than --max-etcd-clusters=16"
	const share = " waits: 2 exist for the announcements of each of its nodes, which is the limit"
	for name, c := range map[string]struct {
		existing  clusters
		announced string
		want      []string
	}{
		"none announced":          {objects(3, false), "", nil},
		"first":                   {nil, genuine, []string{"create f for e1"}},
		"exists":                  {clusters{object("f", "e1", false)}, genuine, nil},
		"17th of bound":           {objects(16, true), genuine, []string{"f" + limit}},
		"not announced any more":  {objects(16, false), "e1:f", []string{"create f for e1 instead of b0"}},
		"8 workers with two":      {bogus, workers + genuine, []string{"create f for e1 instead of b00"}},
		"8 workers, afterwards":   {append(bogus[1:], object("f", "e1", false)), workers + genuine, []string{"b00" + limit}},
		"as many nodes":           {objects(16, false), asMany, []string{"f" + limit}},
		"more nodes first":        {objects(15, true), "w:a" + genuine, []string{"create f for e1", "a" + limit}},
		"share of a node":         {ofTwo, "w:a,b,c", []string{"c" + share}},
		"share of another node":   {ofTwo, "w:a,b,c x:c", []string{"create c for x"}},
		"grants without bindings": {granted, genuine, []string{"f" + limit}},
		"a node supports two": {
			objects(15, true), "w:a,b,c x:a,b,c y:c", []string{"create a for w", "b" + limit, "c" + limit},
		},
		"three of a node": {nil, "w:a,b,c", []string{"create a for w", "create b for w", "c" + share}},
		"fewest nodes":    {ofTwoWorkers, "w1:x" + genuine, []string{"create f for e1 instead of y"}},
		"share of a replaced object": {
			ofOneWorker, "w:q z:r" + genuine,
			[]string{"create f for e1 instead of x", "create q for w instead of y", "r" + limit},
		},
		"two at once": {
			ofTwoWorkers, "e4:e e5:e" + genuine, []string{"create f for e1 instead of x", "create e for e4 instead of y"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			limits := membership.ObjectLimits{Total: 16, PerNode: 2}
			create, waiting := membership.PlanObjects(c.existing, announcementsOf(c.announced), limits)
			require.Equal(t, c.want, describeObjects(create, waiting))
		})
	}
}
