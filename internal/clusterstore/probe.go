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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	defaultProbeInterval = 500 * time.Millisecond
	// probeBurst is the number of probe requests for one cluster that need not wait for each
	// other: for example one of the leader, and one of a deletion that follows immediately.
	probeBurst = 2
)

// A ProbeRequester requests fresh observations from the agents of a cluster, by writing a new
// nonce, and collects the versions of the object that may contain them.
//
// Every request makes each agent probe every member. Therefore requests are paced, and
// deletions that wait for the next request share it. A request that is already being written is
// not shared: an agent may have begun its probe before the later deletion arrived, and its
// member list may still contain a member that was removed in between.
type ProbeRequester struct {
	client   client.Writer
	interval time.Duration
	requests prometheus.Counter

	mu sync.Mutex // guards queues, and all fields of their probes but the channel written
	// queues are by the object's UID.
	queues map[types.UID]*probeQueue
}

func newProbeRequester(c client.Writer, interval time.Duration, requests prometheus.Counter) *ProbeRequester {
	return &ProbeRequester{
		client: c, interval: cmp.Or(interval, defaultProbeInterval), requests: requests, queues: map[types.UID]*probeQueue{},
	}
}

// A probeQueue holds the requests for one cluster that are in use, the latest last.
type probeQueue struct {
	pace *rate.Limiter
	open []*ProbeRequest
}

// A ProbeRequest is one request for fresh observations of one cluster.
type ProbeRequest struct {
	requester *ProbeRequester
	uid       types.UID
	// begun is true as soon as the nonce is being written.
	begun bool
	users int
	// written is closed when the nonce is written, or when that failed with err.
	written chan struct{}
	err     error
	// early are the versions that arrived while the nonce was being written. Whether they are
	// newer than the write is not known yet.
	early []*v1alpha1.EtcdCluster
	// since is the version that the write of the nonce made.
	since string
	// latest is the newest version of the object, never older than since.
	latest *v1alpha1.EtcdCluster
	// nonces are the one that this request wrote and those that followed it: an agent that
	// read one of them before it began has probed after the request. The request of another
	// replica may overwrite the nonce before any agent reads it.
	nonces []string
	// changed is closed, and replaced, with every new version.
	changed chan struct{}
}

// A ProbeResult is the state of a cluster, as far as it is known after a probe request.
type ProbeResult struct {
	Cluster *v1alpha1.EtcdCluster
	// Nonces mark the observations of Cluster that answer the request.
	Nonces []string
	// Changed is closed when there is a newer result.
	Changed <-chan struct{}
}

// RequestProbe requests fresh observations from the agents of c, or joins a request that waits
// for its turn. The caller must release the Probe.
func (s *Store) RequestProbe(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	return s.requester.request(ctx, c)
}

func (r *ProbeRequester) request(ctx context.Context, c *v1alpha1.EtcdCluster) (*ProbeRequest, error) {
	for {
		p, pace := r.join(c.UID)
		isOwn := pace != nil
		if isOwn {
			r.writeNonce(ctx, c, p, pace)
		}
		select {
		case <-p.written:
		case <-ctx.Done():
			p.Release()
			return nil, fmt.Errorf("waiting to request a probe of etcd cluster %s: %w", c.Name, context.Cause(ctx))
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

// join returns the request to wait for. pace is not nil if the caller has to write it.
func (r *ProbeRequester) join(uid types.UID) (p *ProbeRequest, pace *rate.Limiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[uid]
	if q == nil {
		q = &probeQueue{pace: rate.NewLimiter(rate.Every(r.interval), probeBurst)}
		r.queues[uid] = q
	}
	if len(q.open) > 0 {
		if last := q.open[len(q.open)-1]; !last.begun {
			last.users++
			return last, nil
		}
	}
	p = &ProbeRequest{requester: r, uid: uid, users: 1, written: make(chan struct{}), changed: make(chan struct{})}
	q.open = append(q.open, p)
	return p, q.pace
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

// writeNonce waits for the turn of the request and writes its nonce. The patch has no
// condition: a request that is written at the same moment has the same effect.
func (r *ProbeRequester) writeNonce(ctx context.Context, c *v1alpha1.EtcdCluster, p *ProbeRequest, pace *rate.Limiter) {
	defer close(p.written)
	waited := pace.Wait(ctx)
	r.mu.Lock()
	p.begun, p.err = true, waited
	r.mu.Unlock()
	if waited != nil {
		return
	}
	r.requests.Inc()
	nonce := rand.Text() // 130 random bits
	written := &v1alpha1.EtcdCluster{}
	written.Name = c.Name
	// The UID makes the patch fail on another object of this name.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": c.UID}, "spec": map[string]any{"nonce": nonce},
	})
	if err == nil {
		err = r.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		p.err = fmt.Errorf("writing the nonce: %w", err)
		return
	}
	p.latest, p.since, p.nonces = written, written.ResourceVersion, []string{nonce}
	for _, version := range p.early {
		p.addVersionLocked(version)
	}
	p.early = nil
}

// addVersion passes a version of an object to the open requests for it.
func (r *ProbeRequester) addVersion(c *v1alpha1.EtcdCluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[c.UID]
	if q == nil {
		return
	}
	for _, p := range q.open {
		switch {
		case !p.begun:
		case p.err != nil:
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
	if !isNewer(c.ResourceVersion, p.since) {
		return
	}
	if c.Spec.Nonce != "" && !slices.Contains(p.nonces, c.Spec.Nonce) {
		p.nonces = append(p.nonces, c.Spec.Nonce)
	}
	if isNewer(c.ResourceVersion, p.latest.ResourceVersion) {
		p.latest = c
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// isNewer reports whether a is a newer version of an object than b. A version that cannot be
// compared is not newer.
func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Result returns the newest version of the object, with the nonces that count for it.
func (p *ProbeRequest) Result() ProbeResult {
	p.requester.mu.Lock()
	defer p.requester.mu.Unlock()
	return ProbeResult{Cluster: p.latest, Nonces: slices.Clone(p.nonces), Changed: p.changed}
}
