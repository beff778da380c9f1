package agent

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	// publishEvery is how often an entry is written although nothing changed: its time says that the observer lives.
	publishEvery = time.Minute
	// turnTime is how long a node leaves to each one before it to answer the same question: about as long as one write and
	// the grant that follows from it take.
	turnTime = 25 * time.Millisecond
	// roundsAtOnce bounds the probes that run beside each other. A member that hangs costs its round the whole of its
	// budget, and the question that comes next must not wait for it.
	roundsAtOnce = 4
	// roundBudget bounds one round whatever the probe does, publishBudget one write.
	roundBudget   = 6 * time.Second
	publishBudget = 5 * time.Second
)

// question is all that the next look at a cluster depends on. A new look is due when it changes.
type question struct {
	object  types.UID
	nonce   string
	node    types.UID
	subject subject
}

// round is one look at one cluster.
type round struct {
	cluster  v1alpha1.ClusterID
	number   int
	question question
	// turn is how long after the beginning of the look the answer is due at the earliest.
	turn time.Duration
	// beat says that the entry is written even if it is what was written last.
	beat bool
	seen v1alpha1.Observation
}

// topic is what the reporter knows of its entry in one EtcdCluster.
type topic struct {
	question question
	number   int
	beat     time.Time // when the entry is due again
	retry    time.Time // when what failed is due again, zero if nothing did
	delays   wait.Backoff
	silence  wait.Backoff // the delays while the cluster cannot be seen
	written  round
	trouble  said
}

// reporter publishes what the agent sees of the clusters of its local members, and answers when the webhook asks.
// All its state belongs to the one goroutine of run; rounds only probe, and hand back what they saw.
type reporter struct {
	node     string
	observe  func(context.Context, protect.Sighting, protect.Answer) v1alpha1.Observation
	publish  func(context.Context, v1alpha1.ClusterID, string, *v1alpha1.Observation) error
	own      *mirror[*corev1.Node]
	clusters *mirror[*v1alpha1.EtcdCluster]
	evidence *latest[protect.HostEvidence]
	pods     bool
	log      *slog.Logger
	metrics  *metrics

	woken    bell
	finished chan round
	topics   map[v1alpha1.ClusterID]*topic
	subjects map[v1alpha1.ClusterID]subject
}

// run asks and publishes until the context ends.
func (r *reporter) run(ctx context.Context) error {
	rounds, ctx := errgroup.WithContext(ctx)
	rounds.SetLimit(roundsAtOnce)
	timer := time.NewTimer(publishEvery)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(r.ask(ctx, rounds))
		select {
		case <-ctx.Done():
		case <-r.woken:
		case <-timer.C:
		case done := <-r.finished:
			r.write(ctx, done)
		}
	}
	return errors.Join(rounds.Wait(), context.Cause(ctx))
}

// ask starts the rounds that are due, and returns in how long the next one will be.
func (r *reporter) ask(ctx context.Context, rounds *errgroup.Group) time.Duration {
	seen, looked := r.evidence.take()
	node, there, _ := r.own.one(r.node)
	if !looked || !there {
		return publishEvery
	}
	// What is announced wrongly is announced anew by the loop that writes the Node, and logged there.
	k, _ := known(node, seen, r.clusters, r.pods)
	r.subjects = subjects(seen, r.subjects, k.Announced, r.pods)
	if protect.Assess(seen, k).Membership == protect.HoldsNot {
		r.retire(ctx)
		return publishEvery
	}
	next := publishEvery
	for cluster, s := range r.subjects {
		object, exists, _ := r.clusters.one(string(cluster))
		t := r.topic(cluster)
		if !exists {
			if t.trouble.changed("absent") {
				r.log.InfoContext(ctx, "waiting for the webhook's leader to make the etcdcluster", "cluster", cluster)
			}
			continue
		}
		// The nonce is read here, before the look begins: what is seen later answers it, what was seen before does not.
		asked := question{object: object.UID, nonce: object.Spec.Nonce, node: node.UID, subject: s}
		next = min(next, r.due(ctx, rounds, cluster, t, asked, turnOf(r.node, object)))
	}
	return next
}

// due starts a round if one is due, and returns in how long the next one will be.
func (r *reporter) due(ctx context.Context, rounds *errgroup.Group, cluster v1alpha1.ClusterID, t *topic, asked question, turn time.Duration) time.Duration {
	now := time.Now()
	beat := !now.Before(t.beat)
	if beat || !reflect.DeepEqual(asked, t.question) || (!t.retry.IsZero() && !now.Before(t.retry)) {
		this := round{cluster: cluster, number: t.number + 1, question: asked, beat: beat, turn: turn}
		if !rounds.TryGo(func() error { r.round(ctx, this); return nil }) {
			return publishEvery // a round that ends makes room, and wakes
		}
		t.question, t.number, t.retry = asked, this.number, time.Time{}
		if beat {
			t.beat = now.Add(jittered(publishEvery))
		}
	}
	next := t.beat.Sub(now)
	if !t.retry.IsZero() {
		next = min(next, t.retry.Sub(now))
	}
	return max(next, 0)
}

// round looks at one cluster and hands back what it saw.
func (r *reporter) round(ctx context.Context, this round) {
	budget, cancel := context.WithTimeout(ctx, roundBudget)
	defer cancel()
	turn := time.NewTimer(this.turn)
	defer turn.Stop()
	began := time.Now()
	this.seen = r.observe(budget, this.question.subject.sighting, this.question.subject.answer)
	this.seen.Node, this.seen.NodeUID, this.seen.Nonce = r.node, this.question.node, this.question.nonce
	this.seen.Time = metav1.Now()
	r.metrics.observed(time.Since(began))
	select {
	case <-turn.C:
	case <-ctx.Done():
	}
	select {
	case r.finished <- this:
	case <-ctx.Done():
	}
}

// write publishes a round if it says anything new. One that was overtaken by a later one is history.
func (r *reporter) write(ctx context.Context, done round) {
	t := r.topic(done.cluster)
	if done.number < t.written.number {
		return
	}
	if done.seen.Problem == "" {
		t.silence = silences()
	} else if done.number == t.number {
		// A certificate that is being replaced this moment, an election, a server that is just starting: it may be over
		// long before the next minute.
		t.retry = time.Now().Add(t.silence.Step())
	}
	if !done.beat && done.question.object == t.written.question.object && same(done.seen, t.written.seen) {
		return
	}
	budget, cancel := context.WithTimeout(ctx, publishBudget)
	defer cancel()
	err := r.publish(budget, done.cluster, r.node, &done.seen)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if t.trouble.changed("") {
			r.log.InfoContext(ctx, "publishing what is seen of the etcd cluster", "cluster", done.cluster,
				"member", done.seen.LocalMember, "members", len(done.seen.Members), "problem", done.seen.Problem)
		}
		t.written, t.delays = done, retries()
		r.metrics.wrote(result(done.seen))
	default:
		r.metrics.wrote(publishFailed)
		t.retry = time.Now().Add(t.delays.Step())
		if apierrors.IsNotFound(err) {
			t.retry = time.Time{} // its return wakes
		}
		if t.trouble.changed(cause(err)) {
			r.log.WarnContext(ctx, "what is seen of the etcd cluster cannot be published, trying again", "err", err)
		}
	}
}

// turnOf says when a node answers, counted from the beginning of its look. All answers go into one object, where those that
// come together are in each other's way: the API server repeats each write that lost a race, at the cost of a new one, and
// so delays the grant, which most often waits for the first answer alone.
func turnOf(node string, c *v1alpha1.EtcdCluster) time.Duration {
	before := map[string]bool{}
	for _, b := range c.Spec.Members {
		if b.Node < node {
			before[b.Node] = true
		}
	}
	return time.Duration(len(before)) * turnTime
}

// retire takes the node's entries out of every EtcdCluster: its member is gone for good.
func (r *reporter) retire(ctx context.Context) {
	objects, _ := r.clusters.all()
	for _, o := range objects {
		cluster := v1alpha1.ClusterID(o.Name)
		if !hasEntry(o, r.node) {
			continue
		}
		budget, cancel := context.WithTimeout(ctx, publishBudget)
		err := r.publish(budget, cluster, r.node, nil)
		cancel()
		t := r.topic(cluster)
		switch {
		case err == nil || apierrors.IsNotFound(err):
			delete(r.topics, cluster)
			r.log.InfoContext(ctx, "entry taken out of the etcdcluster, the member is gone", "cluster", cluster)
		case ctx.Err() == nil && t.trouble.changed(cause(err)):
			r.log.WarnContext(ctx, "the entry of a member that is gone cannot be taken out, trying again", "err", err)
		}
	}
}

func (r *reporter) topic(cluster v1alpha1.ClusterID) *topic {
	t, there := r.topics[cluster]
	if !there {
		t = &topic{delays: retries(), silence: silences(), trouble: said{last: "new"}}
		r.topics[cluster] = t
	}
	return t
}

func hasEntry(c *v1alpha1.EtcdCluster, node string) bool {
	for _, o := range c.Status.Observations {
		if o.Node == node {
			return true
		}
	}
	return false
}

// result is how an observation that was published is counted.
func result(o v1alpha1.Observation) string {
	if o.Problem != "" {
		return publishedProblem
	}
	return publishedWhole
}

// same says whether two observations differ in nothing but their time.
func same(a, b v1alpha1.Observation) bool {
	a.Time, b.Time = metav1.Time{}, metav1.Time{}
	return reflect.DeepEqual(a, b)
}
