package clusterstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

const (
	defaultProbeInterval = 500 * time.Millisecond
	// probeBurst is the number of probe requests of one replica for one cluster that are not
	// delayed because there have been others before.
	probeBurst = 4
)

// A ProbeRequester requests fresh observations from the agents of a cluster, by writing a new
// nonce, and follows the versions of the EtcdCluster, for the nonces, and the EtcdObservations, for
// the answers.
//
// Every nonce makes each agent probe every member and write one object. Therefore a request waits
// until the agents have answered the nonce before, of whatever replica, and all reviews that arrive
// meanwhile are answered by the same one. A nonce answers a review if it was first written after
// the review had read the object. An earlier one does not. An agent that read that may have begun
// its probe before the review, and its member list may still contain a member that was removed in
// between.
type ProbeRequester struct {
	client   client.Writer
	read     func(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error)
	interval time.Duration
	requests prometheus.Counter

	// mu guards the maps and all fields of their queues and requests but those that never change.
	mu sync.Mutex
	// queues are by the UID of the EtcdCluster.
	queues map[types.UID]*probeQueue
	// observed are the observations that the watch has delivered, by the UID of the EtcdCluster and by
	// node. They show that answers have arrived, and no decision is made from them.
	observed map[types.UID]map[string]*v1alpha1.EtcdObservation
}

func newProbeRequester(
	c client.Writer, read func(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error),
	interval time.Duration, requests prometheus.Counter,
) *ProbeRequester {
	return &ProbeRequester{
		client: c, read: read, interval: cmp.Or(interval, defaultProbeInterval), requests: requests,
		queues: map[types.UID]*probeQueue{}, observed: map[types.UID]map[string]*v1alpha1.EtcdObservation{},
	}
}

// A probeQueue holds the requests for one cluster that are in use.
type probeQueue struct {
	// pace limits the requests of this replica over a longer time.
	pace *rate.Limiter
	open []*ProbeRequest
	// latest is the newest known version of the object. Its nonce is the one under way.
	latest *v1alpha1.EtcdCluster
	// noncedAt is when this replica learned of that nonce, from the version nonced.
	nonced   *v1alpha1.EtcdCluster
	noncedAt time.Time
	// writingSince is when this replica began to write a nonce. It is zero while it writes none.
	writingSince time.Time
	// changed is closed, and replaced, with every new version and answer, and when a write of a nonce
	// has ended.
	changed chan struct{}
}

// A ProbeRequest is the request of one review for fresh observations of one cluster.
type ProbeRequest struct {
	requester *ProbeRequester
	queue     *probeQueue
	uid       types.UID
	// read is the version that the review has read.
	read *v1alpha1.EtcdCluster
	// isWriting means that the nonce is being written. early are the versions that arrived meanwhile:
	// whether they are newer than the write is not known yet.
	isWriting bool
	early     []*v1alpha1.EtcdCluster
	// first is the first known version with a nonce that answers the request, nil if there is none.
	first *v1alpha1.EtcdCluster
	// latest is the newest version of the object, never older than first.
	latest *v1alpha1.EtcdCluster
	// nonces are the one of first and those that followed it: an agent that read one of them before it
	// began has probed after the request.
	nonces []string
	// answered are the Nodes whose agents have answered.
	answered map[string]bool
}

// A ProbeResult is the state of a cluster, as far as it is known after a probe request.
type ProbeResult struct {
	// Cluster is the newest version of the EtcdCluster, without observations.
	Cluster *v1alpha1.EtcdCluster
	// Nonces mark the observations that answer the request.
	Nonces []string
	// Answers are the Nodes whose agents have answered, with the UIDs in their answers. A decision
	// reads the observations themselves.
	Answers map[string]types.UID
	// Changed is closed when there may be a newer result.
	Changed <-chan struct{}
}

// RequestProbe requests fresh observations from the agents of a cluster. c must have been read from
// the API server after the reason for the request arose: a nonce that is newer than c answers the
// request. The caller must release the ProbeRequest.
func (s *Store) RequestProbe(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	return s.requester.request(ctx, c)
}

func (r *ProbeRequester) request(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	p := r.openRequest(c)
	for {
		isDone, wait, changed := r.startOrWait(p)
		var err error
		switch {
		case isDone:
			return p, nil
		case wait > 0:
			err = loop.Wait(ctx, wait, changed)
			loop.Woke(ctx, c.Name)
		default:
			err = r.writeNonce(ctx, p)
		}
		if err != nil {
			p.Release()
			return nil, fmt.Errorf("requesting a probe of etcd cluster %s: %w", c.Name, err)
		}
	}
}

func (r *ProbeRequester) openRequest(c *v1alpha1.EtcdCluster) *ProbeRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[c.UID]
	if q == nil {
		q = &probeQueue{pace: rate.NewLimiter(rate.Every(r.interval), probeBurst), changed: make(chan struct{})}
		r.queues[c.UID] = q
	}
	p := &ProbeRequest{requester: r, queue: q, uid: c.UID, read: c, answered: map[string]bool{}}
	q.open = append(q.open, p)
	// When the API server's etcd is restored, versions become older. So a nonce that has been known
	// for long is not compared.
	if q.nonced != nil && time.Since(q.noncedAt) < r.interval && hasNewerNonce(q.nonced, c) {
		p.adopt(q.nonced)
	}
	return p
}

// Release gives the request back. It must not be used after that. With the last request goes a
// queue that has received no version: its EtcdCluster may be gone.
func (p *ProbeRequest) Release() {
	r, q := p.requester, p.queue
	r.mu.Lock()
	defer r.mu.Unlock()
	q.open = slices.DeleteFunc(q.open, func(o *ProbeRequest) bool { return o == p })
	if len(q.open) == 0 && q.latest == nil && r.queues[p.uid] == q {
		delete(r.queues, p.uid)
	}
}

// startOrWait returns for how long the request must wait: until the nonce before has been answered
// or is older than the interval. If that is now, it notes that the caller writes a nonce. isDone
// means that there is a nonce that answers the request.
func (r *ProbeRequester) startOrWait(p *ProbeRequest) (isDone bool, wait time.Duration, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := p.queue
	if p.first != nil {
		return true, 0, nil
	}
	if wait = r.untilFree(q); wait <= 0 {
		reserved := q.pace.Reserve()
		if wait = reserved.Delay(); wait > 0 {
			reserved.Cancel()
		}
	}
	if wait <= 0 {
		p.isWriting, q.writingSince = true, time.Now()
	}
	return false, wait, q.changed
}

// untilFree returns for how long the agents may be busy with the request under way. A request that
// this replica is still writing most often answers those that wait, too: they were made from older
// versions. The caller holds the lock.
func (r *ProbeRequester) untilFree(q *probeQueue) time.Duration {
	switch {
	case !q.writingSince.IsZero():
		return r.interval - time.Since(q.writingSince)
	case q.latest == nil || isAnswered(q.latest, r.observed[q.latest.UID]):
		return 0
	}
	return r.interval - time.Since(q.noncedAt)
}

// isAnswered reports whether every agent of a bound Node that has ever reported has answered the
// nonce.
func isAnswered(c *v1alpha1.EtcdCluster, observed map[string]*v1alpha1.EtcdObservation) bool {
	return !slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
		o := observed[b.Node]
		return o != nil && observation.HasReport(o) && o.Nonce != c.Spec.Nonce
	})
}

// writeNonce writes a new nonce unless another replica writes one at the same time. That one then
// answers the request too, because p.read does not have it.
func (r *ProbeRequester) writeNonce(ctx context.Context, p *ProbeRequest) error {
	written, err := r.replaceNonce(ctx, p.read)
	if apierrors.IsInvalid(err) { // A test of the patch failed, or the object is invalid.
		now, readErr := r.read(ctx, p.read.Name)
		switch {
		case readErr != nil:
			err = readErr
		case now.UID == p.uid && hasNewerNonce(now, p.read):
			written, err = now, nil
		}
	}
	r.endWrite(p, written, err)
	if err != nil {
		return fmt.Errorf("writing the nonce: %w", err)
	}
	return nil
}

// endWrite passes what was written to all requests.
func (r *ProbeRequester) endWrite(p *ProbeRequest, written *v1alpha1.EtcdCluster, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := p.queue
	if err == nil {
		p.adopt(written)
		q.setLatest(p.latest)
		q.passOn(written)
	}
	q.writingSince = time.Time{}
	q.notify()
}

// replaceNonce writes a new nonce on condition that the nonce of c is still the latest one.
func (r *ProbeRequester) replaceNonce(ctx context.Context, c *v1alpha1.EtcdCluster) (*v1alpha1.EtcdCluster, error) {
	const path = "/spec/nonce"
	before := Operation{Op: "test", Path: path} // null stands for an absent field
	if c.Spec.Nonce != "" {
		before.Value = c.Spec.Nonce
	}
	body, err := json.Marshal([]Operation{
		{Op: "test", Path: "/metadata/uid", Value: c.UID},
		before,
		{Op: "add", Path: path, Value: rand.Text()}, // 130 random bits
	})
	if err != nil {
		return nil, err
	}
	r.requests.Inc()
	written := &v1alpha1.EtcdCluster{}
	written.Name = c.Name
	err = r.client.Patch(ctx, written, client.RawPatch(types.JSONPatchType, body), fieldOwner)
	return written, err
}

// adopt makes the nonce of c that of the request. The caller holds the lock of the requester.
func (p *ProbeRequest) adopt(c *v1alpha1.EtcdCluster) {
	p.isWriting, p.first, p.latest, p.nonces = false, c, c, []string{c.Spec.Nonce}
	for _, version := range p.early {
		p.follow(version)
	}
}

// hasNewerNonce reports whether the nonce of c was first written after the version before was read.
func hasNewerNonce(c, before *v1alpha1.EtcdCluster) bool {
	return c.Spec.Nonce != "" && c.Spec.Nonce != before.Spec.Nonce &&
		apiaccess.IsNewer(c, before)
}

// setLatest records a version. The caller holds the lock of the requester.
func (q *probeQueue) setLatest(c *v1alpha1.EtcdCluster) {
	if q.latest == nil || q.latest.Spec.Nonce != c.Spec.Nonce {
		q.nonced, q.noncedAt = c, time.Now()
	}
	q.latest = c
}

// notify wakes those that wait for news. The caller holds the lock of the requester.
func (q *probeQueue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// addVersion passes a version of an object to the open requests for it.
func (r *ProbeRequester) addVersion(c *v1alpha1.EtcdCluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[c.UID]
	if q == nil {
		return
	}
	if q.latest == nil || apiaccess.IsNewer(c, q.latest) {
		q.setLatest(c)
	}
	q.passOn(c)
	q.notify()
}

// removeCluster forgets a deleted EtcdCluster. Requests that are open learn of no other version.
func (r *ProbeRequester) removeCluster(cluster types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.queues, cluster)
}

// passOn passes a version to the open requests. The caller holds the lock of the requester.
func (q *probeQueue) passOn(c *v1alpha1.EtcdCluster) {
	for _, p := range q.open {
		switch {
		case p.first != nil:
			p.follow(c)
		case p.isWriting:
			p.early = append(p.early, c)
		case hasNewerNonce(c, p.read):
			p.adopt(c)
		}
	}
}

// follow adds a version if it is newer than the first one with a nonce. The caller holds the
// lock of the requester. Versions come in any order: some from the informer, some from live reads.
func (p *ProbeRequest) follow(c *v1alpha1.EtcdCluster) {
	if !apiaccess.IsNewer(c, p.first) {
		return
	}
	if c.Spec.Nonce != "" && !slices.Contains(p.nonces, c.Spec.Nonce) {
		p.nonces = append(p.nonces, c.Spec.Nonce)
	}
	if apiaccess.IsNewer(c, p.latest) {
		p.latest = c
	}
}
