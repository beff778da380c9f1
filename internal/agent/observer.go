package agent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// subject is a local member that is observed.
type subject struct {
	sighting protect.Sighting
	answer   protect.Answer
}

// subjects returns the local members to observe, by cluster. A server that does not answer now is observed as the member
// that it said it was before, or as the only one that the Node announces and that is not accounted for: what its cluster
// looks like from here is wanted most when it is ill.
func subjects(seen protect.HostEvidence, before map[v1alpha1.ClusterID]subject, announced []protect.MemberRef, pods bool) map[v1alpha1.ClusterID]subject {
	found := map[v1alpha1.ClusterID]subject{}
	var silent []protect.Found
	for _, f := range seen.Found {
		switch {
		case f.InCluster && !pods, f.Removed:
		case f.Answered():
			found[f.Ref.Cluster] = subject{f.Sighting, f.Answer}
		default:
			silent = append(silent, f)
		}
	}
	for _, f := range silent {
		for cluster, was := range before {
			if _, taken := found[cluster]; !taken && sameServer(was.sighting, f.Sighting) {
				found[cluster] = subject{f.Sighting, silently(f, was.answer.Ref)}
			}
		}
	}
	var missing []protect.MemberRef
	for _, ref := range announced {
		if _, taken := found[ref.Cluster]; !taken {
			missing = append(missing, ref)
		}
	}
	if len(silent) == 1 && len(missing) == 1 && len(found) == len(announced)-1 {
		found[missing[0].Cluster] = subject{silent[0].Sighting, silently(silent[0], missing[0])}
	}
	return found
}

// sameServer says whether two looks saw one server. What was a process may be a data directory at the next look.
func sameServer(a, b protect.Sighting) bool {
	if a.Config.DataDir != "" && b.Config.DataDir != "" {
		return a.Config.DataDir == b.Config.DataDir
	}
	return a.Where == b.Where
}

// silently is the answer of a server that gave none, with who it is known to be.
func silently(f protect.Found, ref protect.MemberRef) protect.Answer {
	answer := f.Answer
	answer.Ref = ref
	return answer
}

// concerned says that the Node may have to do with an EtcdCluster: the host shows etcd, or the Node is marked. The leader
// labels every Node that a member is bound to. Most nodes are no part of any cluster, and each one that watches all of
// them all the same costs the API server a copy of every observation.
func concerned(n *corev1.Node, seen protect.HostEvidence) bool {
	if len(seen.Found) > 0 || isMember(n) {
		return true
	}
	for _, key := range []string{
		protect.AnnouncementAnnotation, protect.UnverifiedAnnotation, protect.MarksAnnotation, protect.BecauseAnnotation,
	} {
		if _, marked := n.Annotations[key]; marked {
			return true
		}
	}
	return false
}

// known gathers what membership is assessed from besides the host. Announcements that cannot be read count as none. The
// EtcdClusters are read from the first time on that the Node is concerned by them; before that there is none for it.
func known(n *corev1.Node, seen protect.HostEvidence, clusters *mirror[*v1alpha1.EtcdCluster], pods bool) (protect.Known, error) {
	announced, err := protect.ParseAnnouncement(n.Annotations[protect.AnnouncementAnnotation])
	k := protect.Known{
		Node: n.Name, UID: n.UID, Annotations: n.Annotations, StaticPods: pods,
		Announced: announced,
		Protected: isMember(n),
	}
	objects, there := clusters.all()
	k.ClustersKnown = there || !concerned(n, seen)
	if !k.ClustersKnown {
		clusters.wanted.ring()
	}
	for _, o := range objects {
		k.Clusters = append(k.Clusters, *o)
	}
	return k, err
}
