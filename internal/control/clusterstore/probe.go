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
// Every request makes each agent probe every member and write one object. Therefore a request waits
// until the agents have answered the one before, of whatever replica, and all reviews that arrive
// meanwhile share it. A review may share a nonce that was first written after the review had read
// the object. It must not share an earlier one. An agent that read that may have begun its probe
// before the review, and its member list may still contain a member that was removed in between.
type ProbeRequester struct {
	client   client.Writer
	read     func(ctx context.Context, name string) (*v1alpha1.EtcdCluster, error)
	interval time.Duration
	requests prometheus.Counter

	// mu guards the maps and all fields of their probes, except that three fields are read without it:
	// written is never replaced, read is fixed once begun is true, and err once written is closed.
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

// A probeQueue holds the requests for one cluster that are in use, the latest last.
type probeQueue struct {
	// pace limits the requests of this replica over a longer time.
	pace *rate.Limiter
	open []*ProbeRequest
	// latest is the newest known version of the object. Its nonce is the request under way.
	latest *v1alpha1.EtcdCluster
	// nonceAt is when this replica learned of that nonce.
	nonceAt time.Time
	// writingSince is when this replica began to write a nonce. It is zero while it writes none.
	writingSince time.Time
	// changed is closed, and replaced, with every new version, and when a write of a nonce has ended.
	changed chan struct{}
}

// A ProbeRequest is one request for fresh observations of one cluster.
type ProbeRequest struct {
	requester *ProbeRequester
	uid       types.UID
	// read is the newest version that the reviews which share the request have read.
	read *v1alpha1.EtcdCluster
	// begun is true as soon as the nonce is being written, or found to be written by another
	// replica.
	begun bool
	users int
	// written is closed when the nonce is written, or when that failed with err.
	written chan struct{}
	err     error
	// early are the versions that arrived while the nonce was being written. Whether they are
	// newer than the write is not known yet.
	early []*v1alpha1.EtcdCluster
	// first is the first known version with the nonce, and firstAt the time at which it was known.
	first   *v1alpha1.EtcdCluster
	firstAt time.Time
	// latest is the newest version of the object, never older than first.
	latest *v1alpha1.EtcdCluster
	// nonces are the one of this request and those that followed it: an agent that read one of
	// them before it began has probed after the request.
	nonces []string
	// answered are the Nodes whose agents have answered.
	answered map[string]bool
	// changed is closed, and replaced, with every new version and answer.
	changed chan struct{}
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
	// Changed is closed when there is a newer result.
	Changed <-chan struct{}
}

// RequestProbe requests fresh observations from the agents of a cluster, or joins a request that
// waits for its turn. c must have been read from the API server after the reason for the request
// arose: a nonce that is newer than c answers the request. The caller must release the
// ProbeRequest.
func (s *Store) RequestProbe(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	return s.requester.request(ctx, c)
}

func (r *ProbeRequester) request(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	for {
		p, q, isOwn := r.join(c)
		if isOwn {
			r.begin(ctx, q, p)
		}
		if err := loop.Await(ctx, c.Name, p.written); err != nil {
			p.Release()
			return nil, fmt.Errorf("waiting to request a probe of etcd cluster %s: %w", c.Name, err)
		}
		if p.err == nil {
			return p, nil
		}
		p.Release()
		if isOwn || ctx.Err() != nil {
			return nil, fmt.Errorf("requesting a probe of etcd cluster %s: %w", c.Name, p.err)
		}
		// The request that this one joined could not be written, perhaps for lack of time. Write
		// an own one.
	}
}

// join returns the request to wait for. The caller has to begin it if isOwn is true.
func (r *ProbeRequester) join(c *v1alpha1.EtcdCluster) (p *ProbeRequest, q *probeQueue, isOwn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q = r.queues[c.UID]
	if q == nil {
		q = &probeQueue{pace: rate.NewLimiter(rate.Every(r.interval), probeBurst), changed: make(chan struct{})}
		r.queues[c.UID] = q
	}
	if len(q.open) > 0 {
		last := q.open[len(q.open)-1]
		if !last.begun && apiaccess.IsNewer(c, last.read) {
			last.read = c
		}
		if !last.begun || last.isNewerThan(c, r.interval) {
			last.users++
			return last, q, false
		}
	}
	p = &ProbeRequest{
		requester: r, uid: c.UID, read: c, users: 1, written: make(chan struct{}), changed: make(chan struct{}),
		answered: map[string]bool{},
	}
	q.open = append(q.open, p)
	return p, q, true
}

// isNewerThan reports whether the nonce of the request is known to be written after c was read, and
// not long ago: when the API server's etcd is restored, versions become older. The caller holds the
// lock of the requester.
func (p *ProbeRequest) isNewerThan(c *v1alpha1.EtcdCluster, interval time.Duration) bool {
	return p.first != nil && p.err == nil && time.Since(p.firstAt) < interval && hasNewerNonce(p.first, c)
}

// Release gives the request back. It must not be used after that.
func (p *ProbeRequest) Release() {
	r := p.requester
	r.mu.Lock()
	defer r.mu.Unlock()
	p.users--
	if p.users == 0 {
		q := r.queues[p.uid]
		q.open = slices.DeleteFunc(q.open, func(o *ProbeRequest) bool { return o == p })
	}
}

// begin waits for the turn of the request, and writes its nonce unless another replica has.
func (r *ProbeRequester) begin(ctx context.Context, q *probeQueue, p *ProbeRequest) {
	defer close(p.written)
	isNeeded, err := r.waitForTurn(ctx, q, p)
	if err == nil && isNeeded {
		err = r.writeNonce(ctx, q, p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.begun, p.err = true, err
	if isNeeded {
		q.writingSince = time.Time{}
		q.notify()
	}
}

// waitForTurn returns when the request before has been answered or is older than the interval, or
// when a nonce has been written that answers the request. Then no other is needed.
func (r *ProbeRequester) waitForTurn(ctx context.Context, q *probeQueue, p *ProbeRequest) (isNeeded bool, err error) {
	reserved := q.pace.Reserve()
	paced, name := time.Now().Add(reserved.Delay()), p.read.Name
	for {
		r.mu.Lock()
		if p.begun {
			r.mu.Unlock()
			reserved.Cancel()
			return false, nil
		}
		wait := max(time.Until(paced), r.untilFree(q))
		if p.begun = wait <= 0; p.begun {
			q.writingSince = time.Now()
		}
		changed := q.changed
		r.mu.Unlock()
		if wait <= 0 {
			return true, nil
		}
		err := loop.Wait(ctx, wait, changed)
		loop.Turn(ctx, name)
		if err != nil {
			reserved.Cancel()
			return false, err
		}
	}
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
	return r.interval - time.Since(q.nonceAt)
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
func (r *ProbeRequester) writeNonce(ctx context.Context, q *probeQueue, p *ProbeRequest) error {
	written, err := r.replaceNonce(ctx, p.read)
	if apierrors.IsInvalid(err) { // A test of the patch failed, or the object is invalid.
		now, readErr := r.read(ctx, p.read.Name)
		switch {
		case readErr != nil:
			return readErr
		case now.UID == p.uid && hasNewerNonce(now, p.read):
			written, err = now, nil
		}
	}
	if err != nil {
		return withWriters(ctx, fmt.Errorf("writing the nonce: %w", err), p.read.Name, r.read)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.adopt(written)
	q.setLatest(written)
	q.addVersionLocked(written)
	return nil
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
	p.begun, p.first, p.firstAt, p.latest, p.nonces = true, c, time.Now(), c, []string{c.Spec.Nonce}
	for _, version := range p.early {
		p.addVersionLocked(version)
	}
	p.early = nil
}

// hasNewerNonce reports whether the nonce of c was first written after the version before was read.
func hasNewerNonce(c, before *v1alpha1.EtcdCluster) bool {
	return c.Spec.Nonce != "" && c.Spec.Nonce != before.Spec.Nonce &&
		apiaccess.IsNewer(c, before)
}

// setLatest records a version. The caller holds the lock of the requester.
func (q *probeQueue) setLatest(c *v1alpha1.EtcdCluster) {
	if q.latest == nil || q.latest.Spec.Nonce != c.Spec.Nonce {
		q.nonceAt = time.Now()
	}
	q.latest = c
	q.notify()
}

// notify wakes the requests that wait for their turn. The caller holds the lock of the requester.
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
	q.addVersionLocked(c)
}

// addVersionLocked passes a version to the open requests. The caller holds the lock of the
// requester.
func (q *probeQueue) addVersionLocked(c *v1alpha1.EtcdCluster) {
	for _, p := range q.open {
		switch {
		case p.err != nil:
		case !p.begun && hasNewerNonce(c, p.read):
			p.adopt(c)
		case !p.begun:
		case p.latest == nil:
			p.early = append(p.early, c)
		default:
			p.addVersionLocked(c)
		}
	}
}

// addVersionLocked adds a version if it is newer than the write of the nonce. The caller holds
// the lock of the requester. Versions come in any order: some from the informer, some from live
// reads.
func (p *ProbeRequest) addVersionLocked(c *v1alpha1.EtcdCluster) {
	if !apiaccess.IsNewer(c, p.first) {
		return
	}
	if c.Spec.Nonce != "" && !slices.Contains(p.nonces, c.Spec.Nonce) {
		p.nonces = append(p.nonces, c.Spec.Nonce)
	}
	if apiaccess.IsNewer(c, p.latest) {
		p.latest = c
	}
	p.notifyLocked()
}

// notifyLocked wakes those that wait for a newer result. The caller holds the lock of the
// requester.
func (p *ProbeRequest) notifyLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}
