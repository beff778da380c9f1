package leader

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// overrideMemory is how long an override is remembered after its end. The Node may be deleted at
// the end, and the leader may notice that after a failover.
const overrideMemory = time.Hour

// overrides remembers the break-glass overrides that the cache has shown, so that a tombstone can
// explain the deletion of a Node that no review saw. It lives in the memory of a replica: another
// replica, or a restarted one, knows less, and the tombstone then says less.
type overrides struct {
	mu    sync.Mutex // guards byUID; the informer and the rounds of the leader use it
	byUID map[types.UID]quorum.BreakGlass
}

// record remembers a valid override on the Node, and forgets those that ended long ago.
func (o *overrides) record(node *corev1.Node, now time.Time) {
	annotation, isSet := node.Annotations[quorum.BreakGlassAnnotation]
	if !isSet {
		return
	}
	override, err := quorum.ParseBreakGlass(annotation, node.UID, now)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byUID == nil {
		o.byUID = map[types.UID]quorum.BreakGlass{}
	}
	for uid, known := range o.byUID {
		if now.Sub(known.Until) > overrideMemory {
			delete(o.byUID, uid)
		}
	}
	o.byUID[node.UID] = override
}

// of returns the override that was last seen on the Node with this UID.
func (o *overrides) of(uid types.UID) (override quorum.BreakGlass, isKnown bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	override, isKnown = o.byUID[uid]
	return override, isKnown
}

// tombstoneMessage tells what is known about a Node that is gone although no review allowed its
// deletion. A break-glass override explains that, but its annotation names no user.
func (o *overrides) tombstoneMessage(g v1alpha1.Grant) string {
	how := "its deletion was not reviewed, for example because the webhook did not answer"
	if override, isKnown := o.of(g.NodeUID); isKnown {
		how = fmt.Sprintf("its deletion was not reviewed, but it had a break-glass override until %s with the reason %q",
			override.Until.UTC().Format(time.RFC3339), override.Reason)
	}
	return fmt.Sprintf("node %s is gone: %s; the audit log of the API server names the users "+
		"(verbs patch and delete, nodes, %s, UID %s); %s count as lost until they are removed from etcd or confirmed "+
		"healthy on a new node", g.Node, how, g.Node, g.NodeUID, joinIDs(g.Members))
}

// EventType returns the type of the leader's events with this reason: Warning if the reason is one
// that people must look into.
func EventType(reason string) string {
	if reason == tombstoneEvent || reason == sharedIDEvent {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}
