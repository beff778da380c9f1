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
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// grantFromProbe writes the grant for one cluster and returns the verdict that it stands for. It
// decides from the newest observations, and others may have requested new ones since the verdict:
// while answers to those are missing, a refusal is not final, and grantFromProbe waits for more.
func (r *Reviewer) grantFromProbe(
	ctx context.Context, req quorum.Request, p probedCluster,
) (verdict quorum.Verdict, err error) {
	waiting, cancel := context.WithTimeout(ctx, r.longestWait(ctx))
	defer cancel()
	quiet := newQuietTimer(r.wait)
	nonces := func() []string { return p.request.Result().Nonces }
	for {
		quiet.note(len(p.result.Answers))
		verdict, err = r.grant(ctx, req, p.view.Cluster, p.others, nonces, quorum.Decide)
		if err != nil || verdict.Allowed || verdict.Final || !quiet.waitForNewer(waiting, p.result) {
			return verdict, err
		}
		p.result = p.request.Result()
		if p.view, err = r.store.ProbedView(ctx, p.request, p.result, req.Node); err != nil {
			return verdict, err
		}
	}
}

// grantQueues have the reviews that wait to write a grant, by the UID of the cluster. All grants
// of a cluster are in one object, and each write is conditional on all of them. So one review
// writes at a time, for all that wait: if each wrote its own grant, all but one would have to
// decide again.
type grantQueues struct {
	mu     sync.Mutex // guards the map and the fields waiting of the queues
	queues map[types.UID]*grantQueue
}

type grantQueue struct {
	// turn contains a value while a review writes.
	turn    chan struct{}
	waiting []*grantRequest
}

// errNotRecorded is the error of a grantRequest until its grant is written. It stays after a panic.
var errNotRecorded = errors.New("recording the grant: an error of holdfast's own in another review")

// A grantRequest is the part of one review that decides from live Nodes and writes the grant.
type grantRequest struct {
	ctx     context.Context //nolint:containedctx // The review that writes does so for others.
	request quorum.Request
	// cluster has the observations that were read after it.
	cluster *v1alpha1.EtcdCluster
	// others are all EtcdClusters at the begin of the review.
	others []*v1alpha1.EtcdCluster
	// nonces is a function because observations with further nonces may arrive meanwhile.
	nonces func() []string
	// decide is quorum.Decide, or quorum.Force for a break-glass override.
	decide func(quorum.View, quorum.Request) quorum.Verdict

	// done is closed when verdict and err are set.
	done    chan struct{}
	verdict quorum.Verdict
	err     error
	// needsGrant means that the verdict counts only when its grant is written.
	needsGrant bool
}

// grant writes the grant for one cluster and returns the verdict that it stands for.
func (r *Reviewer) grant(
	ctx context.Context, req quorum.Request, c *v1alpha1.EtcdCluster, others []*v1alpha1.EtcdCluster,
	nonces func() []string, decide func(quorum.View, quorum.Request) quorum.Verdict,
) (quorum.Verdict, error) {
	return r.grants.do(&grantRequest{
		ctx: ctx, request: req, cluster: c, others: others, nonces: nonces, decide: decide, done: make(chan struct{}),
	}, r.writeGrants)
}

func newGrantQueues() *grantQueues { return &grantQueues{queues: map[types.UID]*grantQueue{}} }

// do calls write with g and all other requests that wait for the cluster, or waits until another
// call has done so. write sets the results.
func (q *grantQueues) do(g *grantRequest, write func(batch []*grantRequest)) (quorum.Verdict, error) {
	queue := q.add(g)
	select {
	case queue.turn <- struct{}{}:
		loop.Turn(g.ctx, g.cluster.Name)
		q.writeTurn(queue, g, write)
	case <-g.done:
		loop.Turn(g.ctx, g.cluster.Name)
	case <-g.ctx.Done():
		loop.Turn(g.ctx, g.cluster.Name)
		q.remove(queue, g)
		return quorum.Verdict{}, fmt.Errorf("waiting to record the grant: %w", context.Cause(g.ctx))
	}
	return g.verdict, g.err
}

// writeTurn calls write and ends the turn, unless an earlier turn has done g.
func (q *grantQueues) writeTurn(queue *grantQueue, g *grantRequest, write func([]*grantRequest)) {
	defer func() { <-queue.turn }()
	batch := q.take(queue, g)
	defer func() {
		for _, one := range batch {
			close(one.done)
		}
	}()
	for _, one := range batch {
		one.err = errNotRecorded
	}
	if len(batch) > 0 {
		write(batch)
	}
}

func (q *grantQueues) add(g *grantRequest) *grantQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := q.queues[g.cluster.UID]
	if queue == nil {
		queue = &grantQueue{turn: make(chan struct{}, 1)}
		q.queues[g.cluster.UID] = queue
	}
	queue.waiting = append(queue.waiting, g)
	return queue
}

// take returns all requests that wait, or none if g does not wait any more.
func (q *grantQueues) take(queue *grantQueue, g *grantRequest) []*grantRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(queue.waiting, g) {
		return nil
	}
	batch := queue.waiting
	queue.waiting = nil
	return batch
}

func (q *grantQueues) remove(queue *grantQueue, g *grantRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue.waiting = slices.DeleteFunc(queue.waiting, func(other *grantRequest) bool { return other == g })
}

// batchContext returns a context that ends with the last review of the batch, not with the one that
// writes for it.
func batchContext(batch []*grantRequest) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(batch[0].ctx)
	var last time.Time
	for _, g := range batch {
		deadline, isSet := g.ctx.Deadline()
		if !isSet {
			return context.WithCancel(ctx)
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// writeGrants decides for each request of the batch from Nodes that it reads now, in the order of
// their arrival, and writes the grants of all in one patch. Each decision counts the grants before
// it. If another grant was written first, writeGrants decides again from a newer version. It then
// requests no new probe: the observations are as true as before. It writes nothing unless a
// decision allows.
func (r *Reviewer) writeGrants(batch []*grantRequest) {
	ctx, cancel := batchContext(batch)
	defer cancel()
	fail := func(err error) {
		for _, g := range batch {
			g.verdict, g.err = quorum.Verdict{}, err
		}
	}
	c, look := newestCluster(batch), r.store.ViewJoined
	for {
		names := make([]string, len(batch))
		for i, g := range batch {
			names[i] = g.request.Node
		}
		view, err := look(ctx, c, nil, names...)
		if err != nil {
			fail(err)
			return
		}
		view.Now = r.now()
		ops := decideAll(view, batch)
		if len(ops) == 0 {
			return
		}
		if _, err = r.store.Patch(ctx, c, ops); err == nil {
			for _, g := range batch {
				g.setRecorded()
			}
			return
		}
		if !errors.Is(err, clusterstore.ErrConflict) {
			fail(fmt.Errorf("recording the grant: %w", err))
			return
		}
		if c, err = r.store.LiveCluster(ctx, c.Name); err != nil {
			fail(err)
			return
		}
		look = r.store.View // The observations must be as new.
	}
}

// decideAll sets the results of the requests, and returns the patch with their grants. It is empty
// if there are none.
func decideAll(view quorum.View, batch []*grantRequest) []clusterstore.Operation {
	before := view.Cluster
	var ops []clusterstore.Operation
	for _, g := range batch {
		view.Nonces, view.Others = g.nonces(), g.others
		grant, isNew := g.decideFrom(view)
		if !isNew {
			continue
		}
		after := *view.Cluster
		after.Spec.Grants = clusterstore.WithGrant(after.Spec.Grants, grant)
		view.Cluster = &after
		if named := before.Annotations[quorum.ResolveAnnotation]; named == string(g.request.UID) && len(ops) == 0 {
			// The annotation of an operator is about an earlier deletion of this Node.
			ops = clusterstore.RemoveResolveAnnotation(named)
		}
	}
	if view.Cluster == before {
		return nil
	}
	return append(clusterstore.ReplaceGrants(before, view.Cluster.Spec.Grants), ops...)
}

// decideFrom sets the result of the request, and returns the grant that it needs.
func (g *grantRequest) decideFrom(view quorum.View) (grant v1alpha1.Grant, isNew bool) {
	g.verdict, g.err, g.needsGrant = quorum.Verdict{}, context.Cause(g.ctx), false
	if g.err != nil {
		return grant, false
	}
	verdict := g.decide(view, g.request)
	if !verdict.Allowed || len(verdict.Members) == 0 {
		g.verdict = verdict
		return grant, false
	}
	if g.err = requireNode(view.Nodes[g.request.Node], g.request); g.err != nil {
		return grant, false
	}
	g.verdict, g.err, g.needsGrant = verdict, errNotRecorded, true
	return quorum.With(view, grantFor(view.Cluster, g.request.UID), g.request, verdict.Members), true
}

// setRecorded sets that the grant of the request was written, if it needs one.
func (g *grantRequest) setRecorded() {
	if g.needsGrant {
		g.err = nil
	}
}

// grantFor returns the grant for a Node, or the zero value.
func grantFor(c *v1alpha1.EtcdCluster, uid types.UID) v1alpha1.Grant {
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == uid })
	if at < 0 {
		return v1alpha1.Grant{}
	}
	return c.Spec.Grants[at]
}

// requireNode returns an error unless the Node of the request exists with its UID: a forged
// request must not leave a grant.
func requireNode(s observation.NodeState, req quorum.Request) error {
	switch {
	case !s.Known:
		return fmt.Errorf("reading node %q: the API server did not answer in time", req.Node)
	case s.UID != req.UID:
		return fmt.Errorf("finding node %q: there is none with UID %q", req.Node, req.UID)
	}
	return nil
}

// newestCluster returns the newest version that a request of the batch was decided from.
func newestCluster(batch []*grantRequest) *v1alpha1.EtcdCluster {
	newest := batch[0].cluster
	for _, g := range batch[1:] {
		if apiaccess.IsNewer(g.cluster, newest) {
			newest = g.cluster
		}
	}
	return newest
}
