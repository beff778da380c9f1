package review

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// turns have the attempts that wait for a decision, by the UID of the cluster. All grants of a
// cluster are in one object, and each write is conditional on all of them. So one review reads,
// decides and writes at a time, for all that wait: if each wrote its own grant, all but one would
// have to decide again.
type turns struct {
	mu     sync.Mutex // guards the map and the fields of the queues but busy
	queues map[types.UID]*turnQueue
}

type turnQueue struct {
	// busy contains a value while a review decides.
	busy    chan struct{}
	waiting []*attempt
	// users is the number of reviews that use the queue. Without any, it is dropped.
	users int
}

// errNotRecorded is the error of an attempt until it is decided and the grants on which its verdict
// rests are written. It stays after a panic.
var errNotRecorded = errors.New("recording the grant: an error of holdfast's own in another review")

// An attempt is what one review wants to have decided about one cluster in a turn.
type attempt struct {
	ctx     context.Context //nolint:containedctx // The review that decides does so for others.
	request quorum.Request
	// result returns the newest version of the cluster that the review knows, and the nonces that
	// count. Each may be newer when it is the turn of the attempt.
	result func() clusterstore.ProbeResult
	// others are all EtcdClusters at the begin of the review.
	others []*v1alpha1.EtcdCluster
	// judge is quorum.Decide, or quorum.Force for a break-glass override.
	judge func(quorum.View, quorum.Request) quorum.Verdict
	// mayGrant is false if the review wants to know the verdict only.
	mayGrant bool
	// mustEnd means that the review waits no longer: the verdict counts although further
	// observations may change it.
	mustEnd bool

	// done is closed when verdict and err are set.
	done    chan struct{}
	verdict quorum.Verdict
	err     error
	// needsWrite means that the verdict counts only when the grants of the turn are written: its own,
	// or one before it.
	needsWrite bool
}

func newTurns() *turns { return &turns{queues: map[types.UID]*turnQueue{}} }

// take calls turn with a and all other attempts that wait for the cluster, or waits until another
// call has done so. turn sets the results.
func (t *turns) take(a *attempt, turn func(batch []*attempt)) (quorum.Verdict, error) {
	if a.ctx.Err() != nil {
		return quorum.Verdict{}, endedWaiting(a.ctx)
	}
	a.done = make(chan struct{})
	c := a.result().Cluster
	queue := t.add(c.UID, a)
	defer t.leave(c.UID, queue, a)
	select {
	case queue.busy <- struct{}{}:
		loop.Woke(a.ctx, c.Name)
		t.run(queue, a, turn)
	case <-a.done:
		loop.Woke(a.ctx, c.Name)
	case <-a.ctx.Done():
		loop.Woke(a.ctx, c.Name)
		return quorum.Verdict{}, endedWaiting(a.ctx)
	}
	return a.verdict, a.err
}

// endedWaiting is the error of a review that ends before its turn.
func endedWaiting(ctx context.Context) error {
	return fmt.Errorf("waiting to decide after other reviews: %w", context.Cause(ctx))
}

// run calls turn, unless an earlier turn had a in its batch, and ends the turn.
func (t *turns) run(queue *turnQueue, a *attempt, turn func([]*attempt)) {
	defer func() { <-queue.busy }()
	batch := t.batchWith(queue, a)
	defer func() {
		for _, one := range batch {
			close(one.done)
		}
	}()
	for _, one := range batch {
		one.err = errNotRecorded
	}
	if len(batch) > 0 {
		turn(batch)
	}
}

func (t *turns) add(cluster types.UID, a *attempt) *turnQueue {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.queues[cluster]
	if queue == nil {
		queue = &turnQueue{busy: make(chan struct{}, 1)}
		t.queues[cluster] = queue
	}
	queue.waiting = append(queue.waiting, a)
	queue.users++
	return queue
}

// batchWith returns all attempts that wait, or none if a does not wait any more.
func (t *turns) batchWith(queue *turnQueue, a *attempt) []*attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(queue.waiting, a) {
		return nil
	}
	batch := queue.waiting
	queue.waiting = nil
	return batch
}

// leave is the end of add.
func (t *turns) leave(cluster types.UID, queue *turnQueue, a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue.waiting = slices.DeleteFunc(queue.waiting, func(other *attempt) bool { return other == a })
	if queue.users--; queue.users == 0 {
		delete(t.queues, cluster)
	}
}

// batchContext returns a context that ends with the last review of the batch, not with the one that
// decides for it.
func batchContext(batch []*attempt) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(batch[0].ctx)
	var last time.Time
	for _, a := range batch {
		deadline, isSet := a.ctx.Deadline()
		if !isSet {
			return context.WithCancel(ctx)
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}
