package leader

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// breakGlassTime is how long an override is remembered after its end. The Node may be deleted at
// the end, and the leader may notice that after a failover.
const breakGlassTime = time.Hour

// maxOverrides limits how many are remembered. A kubelet can set the annotation on its Node.
const maxOverrides = 1000

// breakGlassMemory remembers the break-glass overrides that the cache has shown, so that a
// tombstone can explain the deletion of a Node that no review saw. It lives in the memory of a
// replica: another replica, or a restarted one, knows less, and the tombstone then says less.
type breakGlassMemory struct{ byUID *cache.LRUExpireCache }

func (m breakGlassMemory) record(node *corev1.Node, now time.Time) {
	annotation, isSet := node.Annotations[quorum.BreakGlassAnnotation]
	if !isSet {
		return
	}
	if b, err := quorum.ParseBreakGlass(annotation, node.UID, now); err == nil {
		m.byUID.Add(node.UID, b, b.Until.Sub(now)+breakGlassTime)
	}
}

// of returns the override that was last seen on the Node with this UID.
func (m breakGlassMemory) of(uid types.UID) (b quorum.BreakGlass, isKnown bool) {
	value, _ := m.byUID.Get(uid)
	b, isKnown = value.(quorum.BreakGlass)
	return b, isKnown
}

// tombstoneMessage describes what is known about a Node that is gone although no review allowed its
// deletion. A break-glass override explains that, but its annotation names no user.
func (m breakGlassMemory) tombstoneMessage(g v1alpha1.Grant) string {
	how := "its deletion was not reviewed, for example because the webhook did not answer"
	if b, isKnown := m.of(g.NodeUID); isKnown {
		how = fmt.Sprintf("its deletion was not reviewed, but it had a break-glass override until %s with the reason %q",
			b.Until.UTC().Format(time.RFC3339), b.Reason)
	}
	return fmt.Sprintf("node %s is gone: %s; the audit log of the API server names the users "+
		"(verbs patch and delete, nodes, %s, UID %s); %s count as lost until they are removed from etcd or confirmed "+
		"healthy on a new node", g.Node, how, g.Node, g.NodeUID, observation.JoinIDs(g.Members, ", "))
}
