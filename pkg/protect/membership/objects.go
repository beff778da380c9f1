package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// MadeForAnnotation on an EtcdCluster names the Node whose announcement it was created from.
const MadeForAnnotation = "holdfast.dev/made-for"

// ObjectLimits limit how many EtcdClusters are created from announcements.
type ObjectLimits struct {
	// Total limits the EtcdClusters that exist.
	Total int
	// PerNode limits those that were created for one Node, and how many clusters a Node supports.
	PerNode int
}

// A NewObject is an EtcdCluster that is to be created.
type NewObject struct {
	ID v1alpha1.ClusterID
	// Node is the Node for whose announcement it is created.
	Node string
	// Replaces is deleted before, to make room. It is nil if there is room.
	Replaces *v1alpha1.EtcdCluster
}

// A WaitingCluster is an announced etcd cluster for which no EtcdCluster is created.
type WaitingCluster struct {
	ID         v1alpha1.ClusterID
	Announcers []string
	Reason     string
}

// objectPlanner is the state of PlanObjects.
type objectPlanner struct {
	limits   ObjectLimits
	existing []*v1alpha1.EtcdCluster
	count    int
	madeFor  map[string]int
	// support has the number of Nodes that announce a cluster. A Node supports PerNode clusters at
	// most, so that a few Nodes that announce many do not count more than others.
	support map[v1alpha1.ClusterID]int
}

// PlanObjects returns the EtcdClusters to create for the announcements of Nodes, and the clusters
// that have to wait. The announcements are by the name of the Node.
//
// An object with bindings or grants is never replaced. Any other protects no node and refuses no
// deletion. If there is no room, it is replaced if fewer Nodes announce its cluster than the new
// one, so that what a few Nodes make up does not keep an etcd cluster out.
func PlanObjects(
	existing []*v1alpha1.EtcdCluster, announced map[string][]v1alpha1.ClusterID, limits ObjectLimits,
) (create []NewObject, waiting []WaitingCluster) {
	p := &objectPlanner{
		limits: limits, existing: slices.Clone(existing), count: len(existing), madeFor: map[string]int{},
		support: map[v1alpha1.ClusterID]int{},
	}
	known := map[v1alpha1.ClusterID]bool{}
	for _, c := range existing {
		known[v1alpha1.ClusterID(c.Name)] = true
		p.madeFor[c.Annotations[MadeForAnnotation]]++
	}
	announcers := map[v1alpha1.ClusterID][]string{}
	for _, node := range slices.Sorted(maps.Keys(announced)) {
		ids := slices.Compact(slices.Sorted(slices.Values(announced[node])))
		for i, id := range ids {
			announcers[id] = append(announcers[id], node)
			if i < limits.PerNode {
				p.support[id]++
			}
		}
	}
	missing := slices.DeleteFunc(slices.Collect(maps.Keys(announcers)),
		func(id v1alpha1.ClusterID) bool { return known[id] })
	slices.SortFunc(missing, func(a, b v1alpha1.ClusterID) int {
		return cmp.Or(cmp.Compare(p.support[b], p.support[a]), cmp.Compare(a, b))
	})
	for _, id := range missing {
		if object, reason := p.place(id, announcers[id]); reason == "" {
			create = append(create, object)
		} else {
			waiting = append(waiting, WaitingCluster{ID: id, Announcers: announcers[id], Reason: reason})
		}
	}
	return create, waiting
}

// place finds room for one cluster, or returns why there is none.
func (p *objectPlanner) place(id v1alpha1.ClusterID, announcers []string) (NewObject, string) {
	at := slices.IndexFunc(announcers, func(node string) bool { return p.madeFor[node] < p.limits.PerNode })
	if at < 0 {
		return NewObject{}, fmt.Sprintf("%d exist for the announcements of each of its nodes, which is the limit",
			p.limits.PerNode)
	}
	object := NewObject{ID: id, Node: announcers[at]}
	if p.count >= p.limits.Total {
		if object.Replaces = p.replaceable(id); object.Replaces == nil {
			return NewObject{}, fmt.Sprintf("%d exist, and the webhook creates no more than --max-etcd-clusters=%d",
				p.count, p.limits.Total)
		}
		p.madeFor[object.Replaces.Annotations[MadeForAnnotation]]--
		p.count--
	}
	p.madeFor[object.Node]++
	p.count++
	return object, ""
}

// replaceable returns the object without bindings and grants that the fewest Nodes support, if
// these are fewer than support the new cluster. Each object is replaced once.
func (p *objectPlanner) replaceable(by v1alpha1.ClusterID) *v1alpha1.EtcdCluster {
	found := -1
	for i, c := range p.existing {
		support := p.support[v1alpha1.ClusterID(c.Name)]
		if len(c.Spec.Members) > 0 || len(c.Spec.Grants) > 0 || support >= p.support[by] {
			continue
		}
		if found < 0 || support < p.support[v1alpha1.ClusterID(p.existing[found].Name)] {
			found = i
		}
	}
	if found < 0 {
		return nil
	}
	object := p.existing[found]
	p.existing = slices.Delete(p.existing, found, found+1)
	return object
}
