package membership_test

import (
	"fmt"
	"maps"
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

func TestPlanObjects(t *testing.T) {
	type announcements = map[string][]v1alpha1.ClusterID
	genuine := announcements{"e1": {"f"}, "e2": {"f"}, "e3": {"f"}}
	with := func(more announcements) announcements {
		all := announcements{}
		for _, of := range []announcements{genuine, more} {
			maps.Copy(all, of)
		}
		return all
	}
	workers := announcements{} // 8 workers, each with two clusters that do not exist
	var bogus []*v1alpha1.EtcdCluster
	for i := range 8 {
		node := fmt.Sprintf("w%d", i)
		for j := range 2 {
			id := fmt.Sprintf("b%d%d", i, j)
			bogus = append(bogus, object(id, node, false))
			workers[node] = append(workers[node], v1alpha1.ClusterID(id))
		}
	}
	limit := "16 exist, and the webhook creates no more than --max-etcd-clusters=16"
	share := "2 exist for the announcements of each of its nodes, which is the limit"
	for name, c := range map[string]struct {
		existing  []*v1alpha1.EtcdCluster
		announced announcements
		want      []string
	}{
		"none announced": {objects(3, false), nil, nil},
		"first":          {nil, genuine, []string{"create f for e1"}},
		"exists":         {[]*v1alpha1.EtcdCluster{object("f", "e1", false)}, genuine, nil},
		"17th of bound":  {objects(16, true), genuine, []string{"f waits: " + limit}},
		"not announced any more": {
			objects(16, false), announcements{"e1": {"f"}}, []string{"create f for e1 instead of b0"},
		},
		"8 workers with two": {bogus, with(workers), []string{"create f for e1 instead of b00"}},
		"8 workers, afterwards": {
			append(bogus[1:], object("f", "e1", false)), with(workers), []string{"b00 waits: " + limit},
		},
		"as many nodes": {
			objects(16, false), func() announcements {
				all := announcements{"e1": {"f"}}
				for i := range 16 {
					all[fmt.Sprintf("w-b%d", i)] = []v1alpha1.ClusterID{v1alpha1.ClusterID(fmt.Sprintf("b%d", i))}
				}
				return all
			}(), []string{"f waits: " + limit},
		},
		"more nodes first": {
			objects(15, true), with(announcements{"w": {"a"}}), []string{"create f for e1", "a waits: " + limit},
		},
		"share of a node": {
			[]*v1alpha1.EtcdCluster{object("a", "w", false), object("b", "w", false)},
			announcements{"w": {"a", "b", "c"}},
			[]string{"c waits: " + share},
		},
		"share of another node": {
			[]*v1alpha1.EtcdCluster{object("a", "w", false), object("b", "w", false)},
			announcements{"w": {"a", "b", "c"}, "x": {"c"}},
			[]string{"create c for x"},
		},
		"a node supports two": {
			objects(15, true),
			announcements{"w": {"a", "b", "c"}, "x": {"a", "b", "c"}, "y": {"c"}},
			[]string{"create a for w", "b waits: " + limit, "c waits: " + limit},
		},
		"grants without bindings": {
			func() []*v1alpha1.EtcdCluster {
				all := objects(16, true)
				all[0].Spec.Members, all[0].Spec.Grants = nil, []v1alpha1.Grant{{Node: "gone"}}
				return all
			}(), genuine, []string{"f waits: " + limit},
		},
		"three of a node": {
			nil, announcements{"w": {"a", "b", "c"}}, []string{"create a for w", "create b for w", "c waits: " + share},
		},
		"fewest nodes": {
			append(objects(14, true), object("x", "w1", false), object("y", "w2", false)), with(announcements{"w1": {"x"}}),
			[]string{"create f for e1 instead of y"},
		},
		"share of a replaced object": {
			append(objects(14, true), object("x", "w", false), object("y", "w", false)),
			with(announcements{"w": {"q"}, "z": {"r"}}),
			[]string{"create f for e1 instead of x", "create q for w instead of y", "r waits: " + limit},
		},
		"two at once": {
			append(objects(14, true), object("x", "w1", false), object("y", "w2", false)),
			with(announcements{"e4": {"e"}, "e5": {"e"}}),
			[]string{"create f for e1 instead of x", "create e for e4 instead of y"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			create, waiting := membership.PlanObjects(c.existing, c.announced, membership.ObjectLimits{Total: 16, PerNode: 2})
			require.Equal(t, c.want, describeObjects(create, waiting))
		})
	}
}
