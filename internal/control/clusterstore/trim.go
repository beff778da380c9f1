package clusterstore

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// keyDomain is in the keys of all labels and annotations of Holdfast.
const keyDomain = "holdfast.dev/"

// A Trimmer removes from objects what no reader of the cache needs. A large cluster has thousands
// of ordinary Nodes, which are open and have nothing of Holdfast. Of these, only the identity, the
// addresses, the zone, the IDs of the machine and the word of the agent about etcd are kept.
type Trimmer struct {
	// Departures has the marks that count. A Node with a mark is kept with all its metadata.
	Departures departure.Table
	// ZoneLabel is the label with the zone of a Node. It is kept of every Node.
	ZoneLabel string
	// Zones shares the labels of ordinary Nodes in the same zone, if it is not nil: a map for each
	// Node would be a fifth of its memory. It has a limit, because a kubelet can give its Node one
	// zone after the other.
	Zones *utilcache.LRUExpireCache
	// KeepMetadata keeps labels, annotations, conditions and resources of all Nodes, for SPC.
	KeepMetadata bool
}

// Trim is a transform of the cache.
func (t Trimmer) Trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		return t.trimNode(o), nil
	case client.Object:
		o.SetManagedFields(nil)
	}
	return object, nil
}

// trimNode returns the trimmed Node, which may be n itself.
func (t Trimmer) trimNode(n *corev1.Node) *corev1.Node {
	n.ManagedFields = nil
	if !t.KeepMetadata && t.isOrdinary(n) {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, CreationTimestamp: n.CreationTimestamp,
				Labels: t.zoneOnly(n.Labels),
			},
			Spec:   corev1.NodeSpec{ProviderID: n.Spec.ProviderID},
			Status: trimmedStatus(n, reportsOfEtcd(n)),
		}
	}
	full := n.Status
	n.Status = trimmedStatus(n, full.Conditions)
	if t.KeepMetadata {
		n.Status.Capacity, n.Status.Allocatable = full.Capacity, full.Allocatable
	}
	return n
}

// CacheOptions returns the options of a cache that trims each object, and each page of a list
// before it reads the next one.
func (t Trimmer) CacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: t.Trim, NewInformer: t.newInformer, ReaderFailOnMissingInformer: true,
	}
}

func (t Trimmer) newInformer(
	source toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(apiaccess.PagedLists(source, t.Trim), example, resync, indexers)
}

// isOrdinary reports whether no decision depends on the labels, annotations, taints and conditions
// of the Node, except for what the agent reports about etcd.
func (t Trimmer) isOrdinary(n *corev1.Node) bool {
	if observation.HasRole(n) {
		return false // The Node may become an observer.
	}
	for key := range n.Labels {
		if strings.Contains(key, keyDomain) {
			return false
		}
	}
	for key := range n.Annotations {
		if strings.Contains(key, keyDomain) && key != readiness.HoldAnnotation {
			return false
		}
	}
	return observation.StateOf(n, t.Departures).Closed() == "" && readiness.IsHoldOver(n)
}

// zoneOnly returns the labels without all but the zone.
func (t Trimmer) zoneOnly(labels map[string]string) map[string]string {
	zone, hasZone := labels[t.ZoneLabel]
	if !hasZone {
		return nil
	}
	own := map[string]string{t.ZoneLabel: zone}
	if t.Zones == nil {
		return own
	}
	if shared, isKnown := t.Zones.Get(zone); isKnown {
		return shared.(map[string]string)
	}
	t.Zones.Add(zone, own, 24*time.Hour)
	return own
}

func trimmedStatus(n *corev1.Node, conditions []corev1.NodeCondition) corev1.NodeStatus {
	return corev1.NodeStatus{
		Addresses: n.Status.Addresses, Conditions: conditions, NodeInfo: corev1.NodeSystemInfo{
			MachineID: n.Status.NodeInfo.MachineID, SystemUUID: n.Status.NodeInfo.SystemUUID, BootID: n.Status.NodeInfo.BootID,
		},
	}
}

// reportsOfEtcd returns the condition by which the agent reports whether the node holds a member,
// without its text.
func reportsOfEtcd(n *corev1.Node) []corev1.NodeCondition {
	c := readiness.FindCondition(n, observation.EtcdMemberCondition)
	if c == nil {
		return nil
	}
	return []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
}
