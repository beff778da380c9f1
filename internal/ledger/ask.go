package ledger

import (
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

// burst is how many questions about one cluster may follow each other at once: one of the leader's, say, and the deletion
// that happens to come right after it.
const burst = 2

// asker asks the agents of a cluster to look again, by writing a new nonce, and collects what counts as an answer.
//
// Every question means a probe of every member by every agent, so that they are paced, and those who wait for the next one
// share it. A question that is being written already is not shared: the agents may look before the newcomer's request was
// made, and a member list from before a request says nothing about a member that was removed in between.
type asker struct {
	client client.Writer
	pace   time.Duration
	asks   prometheus.Counter

	mu sync.Mutex // guards queues, and everything in their asks but the channel written
	// queues are by the object's UID.
	queues map[types.UID]*queue
}

// queue are the questions about one cluster that somebody uses, the latest one last.
type queue struct {
	turns *rate.Limiter
	open  []*ask
}

// ask is one question to the agents of one cluster.
type ask struct {
	// begun says that the nonce is being written, or was.
	begun bool
	users int
	// written is closed when the nonce was written or could not be; err says which.
	written chan struct{}
	err     error
	// early are versions that were seen while the nonce was being written: whether they came after is not known yet.
	early []*v1alpha1.EtcdCluster
	// since is the version that the write of our nonce made.
	since string
	// latest is the newest version of the object, never older than since.
	latest *v1alpha1.EtcdCluster
	// nonces are ours and those that followed it: an observer that read one of those before its look began looked after
	// we had asked. Another replica's question may overwrite ours before anybody read it.
	nonces []string
	// changed is closed, and replaced, with every new version.
	changed chan struct{}
}

// sight is what there is to decide from at one moment.
type sight struct {
	cluster *v1alpha1.EtcdCluster
	asked   []string
	changed <-chan struct{}
}

// ask puts a question, or joins one that waits for its turn. Whoever got an ask gives it back with release.
func (a *asker) ask(ctx context.Context, c *v1alpha1.EtcdCluster) (*ask, error) {
	for {
		q, turns := a.join(c.UID)
		mine := turns != nil
		if mine {
			a.write(ctx, c, q, turns)
		}
		select {
		case <-q.written:
		case <-ctx.Done():
			a.release(c.UID, q)
			return nil, fmt.Errorf("waiting to ask the agents of etcd cluster %s: %w", c.Name, context.Cause(ctx))
		}
		if q.err == nil {
			return q, nil
		}
		a.release(c.UID, q)
		if mine || ctx.Err() != nil {
			return nil, fmt.Errorf("asking the agents of etcd cluster %s: %w", c.Name, q.err)
		}
		// The one whose question we joined could not write it, perhaps for want of time: we write our own.
	}
}

// join returns the question to wait for. Turns are not nil if the caller is the one to write it.
func (a *asker) join(uid types.UID) (*ask, *rate.Limiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := a.queues[uid]
	if line == nil {
		line = &queue{turns: rate.NewLimiter(rate.Every(a.pace), burst)}
		a.queues[uid] = line
	}
	if len(line.open) > 0 {
		if last := line.open[len(line.open)-1]; !last.begun {
			last.users++
			return last, nil
		}
	}
	q := &ask{users: 1, written: make(chan struct{}), changed: make(chan struct{})}
	line.open = append(line.open, q)
	return q, line.turns
}

// release gives an ask back.
func (a *asker) release(uid types.UID, q *ask) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q.users--
	if q.users == 0 {
		line := a.queues[uid]
		line.open = slices.DeleteFunc(line.open, func(o *ask) bool { return o == q })
	}
}

// write waits for the question's turn and writes the nonce. The patch is blind: whoever asks at the same moment asks the
// same thing.
func (a *asker) write(ctx context.Context, c *v1alpha1.EtcdCluster, q *ask, turns *rate.Limiter) {
	defer close(q.written)
	waited := turns.Wait(ctx)
	a.mu.Lock()
	q.begun, q.err = true, waited
	a.mu.Unlock()
	if waited != nil {
		return
	}
	a.asks.Inc()
	nonce := rand.Text() // 130 random bits
	written := &v1alpha1.EtcdCluster{}
	written.Name = c.Name
	// The UID makes it fail on an object that was made anew under this name.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": c.UID}, "spec": map[string]any{"nonce": nonce},
	})
	if err == nil {
		err = a.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, body), client.FieldOwner(FieldManager))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		q.err = fmt.Errorf("writing the nonce: %w", err)
		return
	}
	q.latest, q.since, q.nonces = written, written.ResourceVersion, []string{nonce}
	for _, version := range q.early {
		q.take(version)
	}
	q.early = nil
}

// seen takes note of a version of an object.
func (a *asker) seen(c *v1alpha1.EtcdCluster) {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := a.queues[c.UID]
	if line == nil {
		return
	}
	for _, q := range line.open {
		switch {
		case !q.begun:
		case q.err != nil:
		case q.latest == nil:
			q.early = append(q.early, c)
		default:
			q.take(c)
		}
	}
}

// take adds a version if it is newer than the write of our nonce. Versions come in any order: some from the informer,
// some from reads of our own.
func (q *ask) take(c *v1alpha1.EtcdCluster) {
	if !newer(c.ResourceVersion, q.since) {
		return
	}
	if c.Spec.Nonce != "" && !slices.Contains(q.nonces, c.Spec.Nonce) {
		q.nonces = append(q.nonces, c.Spec.Nonce)
	}
	if newer(c.ResourceVersion, q.latest.ResourceVersion) {
		q.latest = c
	}
	close(q.changed)
	q.changed = make(chan struct{})
}

// newer compares two versions of one object; what cannot be compared is not newer.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// sight returns the newest version, with the nonces that count for it.
func (a *asker) sight(q *ask) sight {
	a.mu.Lock()
	defer a.mu.Unlock()
	return sight{cluster: q.latest, asked: slices.Clone(q.nonces), changed: q.changed}
}
