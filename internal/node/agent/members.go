package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

// localMembers returns the local members to observe, by cluster. A server that does not answer
// keeps its earlier identity. Without one, it gets the only announced member that is left, if
// exactly one server is silent. The view of a cluster from this node is most important when the
// local server is ill.
func localMembers(
	scan evidence.Scan, before map[v1alpha1.ClusterID]evidence.FoundServer, known presence.Inputs,
) map[v1alpha1.ClusterID]evidence.FoundServer {
	members := map[v1alpha1.ClusterID]evidence.FoundServer{}
	var silent []evidence.FoundServer
	for _, f := range scan.Found {
		switch {
		case known.Ignores(f), f.Removed:
		case f.HasAnswered():
			members[f.Ref.Cluster] = f
		default:
			silent = append(silent, f)
		}
	}
	for _, f := range silent {
		for cluster, earlier := range before {
			if _, taken := members[cluster]; !taken && isSameServer(earlier.Server, f.Server) {
				f.Ref = earlier.Ref
				members[cluster] = f
			}
		}
	}
	var missing []evidence.MemberRef
	for _, ref := range known.Announced {
		if _, taken := members[ref.Cluster]; !taken {
			missing = append(missing, ref)
		}
	}
	if len(silent) == 1 && len(missing) == 1 && len(members) == len(known.Announced)-1 {
		silent[0].Ref = missing[0]
		members[missing[0].Cluster] = silent[0]
	}
	return members
}

// isSameServer reports whether two scans found the same server. The first scan can find its
// process and the second only its data directory.
func isSameServer(a, b evidence.Server) bool {
	if a.Config.DataDir != "" && b.Config.DataDir != "" {
		return a.Config.DataDir == b.Config.DataDir
	}
	return a.Where == b.Where
}

// canBeMember reports whether an EtcdCluster can concern the Node: the host shows etcd, the Node
// has the label of a member, or an agent wrote an annotation about etcd on it. The leader labels
// every Node to which a member is bound. Most nodes belong to no cluster. If they watched the
// EtcdClusters, each of them would cost the API server a copy of every observation.
func canBeMember(n *corev1.Node, scan evidence.Scan) bool {
	if len(scan.Found) > 0 || len(scan.Data) > 0 || observation.IsLabelled(n) {
		return true
	}
	for _, key := range []string{
		observation.AnnouncementAnnotation, observation.UnverifiedAnnotation, presence.MarksAnnotation,
		presence.BecauseAnnotation,
	} {
		if _, exists := n.Annotations[key]; exists {
			return true
		}
	}
	return false
}

// gatherKnown returns what the assessment of membership needs besides the evidence of the host.
// An announcement that cannot be read counts as none. When an EtcdCluster can concern the Node
// for the first time, gatherKnown starts the watch of the EtcdClusters; before that, no
// EtcdCluster exists for the Node.
func gatherKnown(
	n *corev1.Node, scan evidence.Scan, clusters clusterStores, staticPods bool,
) (presence.Inputs, error) {
	announced, err := observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	known := presence.Inputs{
		Node: n.Name, UID: n.UID, Annotations: n.Annotations, StaticPods: staticPods,
		Announced: announced,
		Protected: observation.IsLabelled(n), ProviderID: n.Spec.ProviderID, Labels: n.Labels, Taints: n.Spec.Taints,
	}
	objects, synced := clusters.all()
	known.ClustersKnown = synced || !canBeMember(n, scan)
	if !known.ClustersKnown {
		clusters.want()
	}
	for _, o := range objects {
		known.Clusters = append(known.Clusters, *o)
	}
	// The message of a condition depends on the order, and the store has none.
	slices.SortFunc(known.Clusters, func(a, b v1alpha1.EtcdCluster) int { return strings.Compare(a.Name, b.Name) })
	return known, err
}
