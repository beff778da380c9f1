package agent

import (
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// writeSlot is how long a node waits for each predecessor. A write and its watch event take a
	// fifth of it. If the API server is slow, the slot is slotWrites times the node's own last write,
	// at most maxWriteSlot.
	writeSlot, maxWriteSlot = 100 * time.Millisecond, 500 * time.Millisecond
	slotWrites              = 5
	// grantTime is how long the second answer waits for the grant that may follow from the first one:
	// a few reads and a write. It grows like writeSlot.
	grantTime, maxGrantTime = 50 * time.Millisecond, 300 * time.Millisecond
	grantWrites             = 3
)

// A writeTurn decides when a node writes its answer to a nonce. All nodes write to one object, and
// the API server retries conflicting writes, so the nodes write one after another, by name. The
// second node also leaves time for a grant, because most grants need only the first answer.
type writeTurn struct {
	// predecessors are the nodes that write before this one. All answered previousNonce, as this node
	// did.
	predecessors  []string
	previousNonce string
	// ledger is the version of the grants before the answers.
	ledger int64
	// slot is the longest time for each predecessor, and grantTime the time for a grant.
	slot, grantTime time.Duration
	// awaitsComplete means that the answer waits for the complete answers of the predecessors.
	awaitsComplete bool
	// predecessorsDoneAt is when all predecessors had answered, zero before.
	predecessorsDoneAt time.Time
	// deadline is the time at which the node writes in any case.
	deadline time.Time
}

// newWriteTurn returns the turn of the answer to the nonce of c. A node that did not answer the
// previous nonce is no predecessor, nor is one to which no member is bound. writeTime is how long
// the last write of the node took.
func newWriteTurn(node string, c *v1alpha1.EtcdCluster, writeTime time.Duration) writeTurn {
	t := writeTurn{
		previousNonce: entryOf(node, c).Nonce, ledger: c.Spec.Ledger,
		slot:      min(max(writeSlot, slotWrites*writeTime), maxWriteSlot),
		grantTime: min(max(grantTime, grantWrites*writeTime), maxGrantTime),
	}
	if t.previousNonce == c.Spec.Nonce {
		return t // The answer is written already.
	}
	for _, b := range c.Spec.Members {
		hasAnswered := entryOf(b.Node, c).Nonce == t.previousNonce
		if b.Node < node && !slices.Contains(t.predecessors, b.Node) && hasAnswered {
			t.predecessors = append(t.predecessors, b.Node)
		}
	}
	return t
}

// remaining returns how long the node still waits, 0 if it is its turn. It records when the last
// predecessor answered.
func (t *writeTurn) remaining(c *v1alpha1.EtcdCluster, now time.Time) time.Duration {
	hasNotAnswered := func(node string) bool {
		o := entryOf(node, c)
		return o.Nonce == t.previousNonce || (t.awaitsComplete && o.Incomplete)
	}
	untilDeadline := max(0, t.deadline.Sub(now))
	switch {
	case slices.ContainsFunc(t.predecessors, hasNotAnswered):
		return untilDeadline
	case len(t.predecessors) != 1 || c.Spec.Ledger != t.ledger:
		return 0
	case t.predecessorsDoneAt.IsZero():
		t.predecessorsDoneAt = now
	}
	return min(untilDeadline, max(0, t.predecessorsDoneAt.Add(t.grantTime).Sub(now)))
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
