package membership

import (
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// MadeForAnnotation on an EtcdCluster names the Node whose announcement it was created from.
const MadeForAnnotation = "holdfast.dev/made-for"

// ObjectLimits limit how many EtcdClusters are created from announcements.
type ObjectLimits struct {
	// Total limits the EtcdClusters that exist, and PerNode those that were created for one Node.
	Total, PerNode int
}

// A NewObject is an EtcdCluster that is to be created for the announcement of a Node.
type NewObject struct {
	ID   v1alpha1.ClusterID
	Node string
}

// A WaitingCluster is an announced etcd cluster for which no EtcdCluster is created.
type WaitingCluster struct {
	ID         v1alpha1.ClusterID
	Announcers []string
	Reason     string
}

// PlanObjects returns the EtcdClusters to create for the announcements of Nodes, and the clusters
// that have to wait, sorted by ID. The announcements are by the name of the Node. No object is ever
// replaced: only an operator knows which etcd clusters no longer exist.
func PlanObjects(
	existing []*v1alpha1.EtcdCluster, announced map[string][]v1alpha1.ClusterID, limits ObjectLimits,
) (create []NewObject, waiting []WaitingCluster) {
	known, madeFor := map[v1alpha1.ClusterID]bool{}, map[string]int{}
	for _, c := range existing {
		known[v1alpha1.ClusterID(c.Name)] = true
		madeFor[c.Annotations[MadeForAnnotation]]++
	}
	announcers := map[v1alpha1.ClusterID][]string{}
	for _, node := range slices.Sorted(maps.Keys(announced)) {
		for _, id := range announced[node] {
			if !known[id] && !slices.Contains(announcers[id], node) {
				announcers[id] = append(announcers[id], node)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(announcers)) {
		reason, nodes := "", announcers[id]
		at := slices.IndexFunc(nodes, func(node string) bool { return madeFor[node] < limits.PerNode })
		switch count := len(existing) + len(create); {
		case at < 0:
			reason = fmt.Sprintf("%d exist for the announcements of each of its nodes, which is the limit", limits.PerNode)
		case count >= limits.Total:
			reason = fmt.Sprintf("%d exist, and the webhook creates no more than --max-etcd-clusters=%d, which can be raised",
				count, limits.Total)
		default:
			madeFor[nodes[at]]++
			create = append(create, NewObject{ID: id, Node: nodes[at]})
			continue
		}
		waiting = append(waiting, WaitingCluster{ID: id, Announcers: nodes, Reason: reason})
	}
	return create, waiting
}
