package agent

import (
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// writeSlot is the longest time for which a node waits for each node that writes its answer
	// before. A write and its event in the watch take a fifth of it. If the API server is busy, the
	// node waits for slotWrites of its own last write, but not longer than maxWriteSlot.
	writeSlot, maxWriteSlot = 100 * time.Millisecond, 500 * time.Millisecond
	slotWrites              = 5
	// grantRoom is how long the second answer waits for the grant that may follow from the first one:
	// a few reads and a write. It grows like writeSlot.
	grantRoom, maxGrantRoom = 50 * time.Millisecond, 300 * time.Millisecond
	roomWrites              = 3
)

// A writeTurn tells when a node may write its answer to a nonce. All nodes write into one object.
// The API server repeats a write that another one has overtaken, as often as necessary, so the
// nodes write one after another, by name. Most often a grant needs only the first answer, and is
// written after it.
type writeTurn struct {
	// after are the nodes that write before. They answered the nonce before, as this node did.
	after  []string
	before string
	// ledger is the version of the grants before the answers.
	ledger int64
	// slot is the longest time for each of those nodes, and room the time for a grant.
	slot, room time.Duration
	// isComplete means that the answer waits for the complete answers of those nodes.
	isComplete bool
	// free is when all nodes of after had answered, zero before.
	free time.Time
	// latest is the time at which the node writes in any case.
	latest time.Time
}

// newWriteTurn returns the turn of the answer to the nonce of c. A node that did not answer the
// nonce before is not waited for, nor is one that no member is bound to. writeTime is how long the
// last write of the node took.
func newWriteTurn(node string, c *v1alpha1.EtcdCluster, writeTime time.Duration) writeTurn {
	t := writeTurn{
		before: entryOf(node, c).Nonce, ledger: c.Spec.Ledger,
		slot: min(max(writeSlot, slotWrites*writeTime), maxWriteSlot),
		room: min(max(grantRoom, roomWrites*writeTime), maxGrantRoom),
	}
	if t.before == c.Spec.Nonce {
		return t // The answer is written already.
	}
	for _, b := range c.Spec.Members {
		if b.Node < node && !slices.Contains(t.after, b.Node) && entryOf(b.Node, c).Nonce == t.before {
			t.after = append(t.after, b.Node)
		}
	}
	return t
}

// wait returns how long the node still waits: until all nodes before it have answered. The second
// node also leaves time for a grant. Then the others follow without a pause.
func (t *writeTurn) wait(c *v1alpha1.EtcdCluster, now time.Time) time.Duration {
	hasNotAnswered := func(node string) bool {
		o := entryOf(node, c)
		return o.Nonce == t.before || (t.isComplete && o.Incomplete)
	}
	left := max(0, t.latest.Sub(now))
	switch {
	case slices.ContainsFunc(t.after, hasNotAnswered):
		return left
	case len(t.after) != 1 || c.Spec.Ledger != t.ledger:
		return 0
	case t.free.IsZero():
		t.free = now
	}
	return min(left, max(0, t.free.Add(t.room).Sub(now)))
}

// entryOf returns a node's entry, or an empty one if it has none.
func entryOf(node string, c *v1alpha1.EtcdCluster) v1alpha1.Observation {
	for _, o := range c.Status.Observations {
		if o.Node == node {
			return o
		}
	}
	return v1alpha1.Observation{}
}
