package agent

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// localMember is a member of an etcd cluster on this host.
type localMember struct {
	server evidence.Server
	answer evidence.Identity
}

// localMembers returns the local members to observe, by cluster. If a server does not answer
// now, it counts as the member that it was before, or else as the only member that the Node
// announces and that no other server accounts for. The view of a cluster from this node is most
// important when the local server is ill.
func localMembers(
	scan evidence.Scan, before map[v1alpha1.ClusterID]localMember,
	announced []evidence.MemberRef, staticPods bool,
) map[v1alpha1.ClusterID]localMember {
	members := map[v1alpha1.ClusterID]localMember{}
	var silent []evidence.FoundServer
	for _, f := range scan.Found {
		switch {
		case f.InCluster && !staticPods, f.Removed:
		case f.HasAnswered():
			members[f.Ref.Cluster] = localMember{f.Server, f.Identity}
		default:
			silent = append(silent, f)
		}
	}
	for _, f := range silent {
		for cluster, known := range before {
			if _, taken := members[cluster]; !taken && isSameServer(known.server, f.Server) {
				members[cluster] = localMember{f.Server, answerAs(f, known.answer.Ref)}
			}
		}
	}
	var missing []evidence.MemberRef
	for _, ref := range announced {
		if _, taken := members[ref.Cluster]; !taken {
			missing = append(missing, ref)
		}
	}
	if len(silent) == 1 && len(missing) == 1 && len(members) == len(announced)-1 {
		members[missing[0].Cluster] = localMember{silent[0].Server, answerAs(silent[0], missing[0])}
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

// answerAs returns the answer of a silent server, completed by its known identity.
func answerAs(f evidence.FoundServer, ref evidence.MemberRef) evidence.Identity {
	answer := f.Identity
	answer.Ref = ref
	return answer
}

// canBeMember reports whether an EtcdCluster can concern the Node: the host shows etcd, the Node has
// the label of a member, or an agent wrote an annotation about etcd on it. The leader labels every
// Node to which a member is bound. Most nodes belong to no cluster. If they watched the
// EtcdClusters, each of them would cost the API server a copy of every observation.
func canBeMember(n *corev1.Node, evidence evidence.Scan) bool {
	if len(evidence.Found) > 0 || isMember(n) {
		return true
	}
	for _, key := range []string{
		observation.AnnouncementAnnotation, observation.UnverifiedAnnotation, protect.MarksAnnotation,
		protect.BecauseAnnotation,
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
	n *corev1.Node, evidence evidence.Scan, clusters *store[*v1alpha1.EtcdCluster], staticPods bool,
) (protect.Inputs, error) {
	announced, err := observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	known := protect.Inputs{
		Node: n.Name, UID: n.UID, Annotations: n.Annotations, StaticPods: staticPods,
		Announced: announced,
		Protected: isMember(n), ProviderID: n.Spec.ProviderID, Labels: n.Labels, Taints: n.Spec.Taints,
	}
	objects, synced := clusters.all()
	known.ClustersKnown = synced || !canBeMember(n, evidence)
	if !known.ClustersKnown {
		clusters.wanted.Notify()
	}
	for _, o := range objects {
		known.Clusters = append(known.Clusters, *o)
	}
	// The message of a condition depends on the order, and the store has none.
	slices.SortFunc(known.Clusters, func(a, b v1alpha1.EtcdCluster) int { return strings.Compare(a.Name, b.Name) })
	return known, err
}

// listInterval is the longest time between two reads of a local server's member list. A read takes
// the agent a sixth, and etcd a fourteenth, of the CPU time of an observation: together less than a
// thousandth of a core (BenchmarkListMembers).
const listInterval = 2 * time.Second

// memberLists are the member lists of the local servers, by cluster.
type memberLists map[v1alpha1.ClusterID][]v1alpha1.MemberStatus

// A listWatcher notices within listInterval that the member list of a local server has changed. It
// reads the list as the server stores it, which needs no quorum and costs the server one small
// request. The list is no evidence. It only makes a probe due, which reads a confirmed list.
type listWatcher struct {
	read func(context.Context, evidence.Server, evidence.Identity) ([]v1alpha1.MemberStatus, error)
	// changed is called when a list has changed.
	changed func()
	// members are the local members, and lists their latest lists. A list is missing until it was
	// read for the first time.
	members latest[map[v1alpha1.ClusterID]localMember]
	lists   latest[memberLists]
}

// run reads the lists until the context ends.
func (w *listWatcher) run(ctx context.Context) error {
	for {
		began := time.Now()
		w.readAll(ctx)
		if err := loop.Wait(ctx, jittered(listInterval)-time.Since(began), nil); err != nil {
			return err
		}
	}
}

// readAll reads the lists of all local members side by side. A list that cannot be read has not
// changed.
func (w *listWatcher) readAll(ctx context.Context) {
	members, _ := w.members.get()
	before, _ := w.lists.get()
	after := memberLists{}
	maps.Copy(after, before)
	maps.DeleteFunc(after, func(cluster v1alpha1.ClusterID, _ []v1alpha1.MemberStatus) bool {
		_, isLocal := members[cluster]
		return !isLocal
	})
	var mu sync.Mutex // guards after
	var reads sync.WaitGroup
	for cluster, m := range members {
		reads.Go(func() {
			if list, err := w.read(ctx, m.server, m.answer); err == nil {
				mu.Lock()
				defer mu.Unlock()
				after[cluster] = list
			}
		})
	}
	reads.Wait()
	if !reflect.DeepEqual(before, after) {
		w.lists.set(after)
		w.changed()
	}
}
