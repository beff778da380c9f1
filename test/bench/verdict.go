package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	verdicts = 40
	// verdictInterval is the time between two deletions. A replica requests two probes a second at
	// most, and after each grant the leader also requests one.
	verdictInterval = 1200 * time.Millisecond
	// verdictTarget limits the median with three healthy members, as a multiple of a bare patch.
	// Three writes and their events in the watches are the floor.
	verdictTarget = 9.0
	// hungVerdicts is the number of deletions while a member hangs. Each may take the timeout of its
	// probe longer than a verdict.
	hungVerdicts = 8
	hungTimeout  = 500 * time.Millisecond
)

// A verdictSample has the times of one deletion.
type verdictSample struct {
	loggedAnswer
	// bare is the duration of a bare patch of a Node before the deletion.
	bare time.Duration
	// total is the duration of the client's request.
	total time.Duration
	// The times at which watches report the nonce, the first observation with it, and the grant.
	nonceAt, observedAt, grantedAt time.Duration
}

// measureVerdict measures allowed deletions of an etcd node: nonce, probes, observations and
// grant.
func measureVerdict(ctx context.Context, b *benchCluster, t *resultTable) error {
	all, err := b.sampleVerdicts(ctx, verdicts, nodeName(1), "allowed")
	if err != nil {
		return err
	}
	var total, own, bare durations
	parts := [4]durations{}
	for _, j := range all {
		total, own, bare = append(total, j.total), append(own, j.took), append(bare, j.bare)
		at := time.Duration(0)
		for i, end := range []time.Duration{j.nonceAt, j.observedAt, j.grantedAt, j.total} {
			parts[i], at = append(parts[i], end-at), end
		}
	}
	t.add(bare.row("bare patch of a Node, in turn with the reviews"))
	r := total.row(fmt.Sprintf("full review with %d healthy TLS members, allowed", b.members))
	if b.members == 3 {
		r = r.judged(total.ratioTo(bare), verdictTarget)
	} else {
		r.ratio = fmt.Sprintf("×%.2f", total.ratioTo(bare))
	}
	t.add(r)
	for i, what := range []string{
		"request → nonce", "nonce → first observation", "first observation → grant", "grant → response to the client",
	} {
		part := parts[i].row("  " + what)
		part.ratio = fmt.Sprintf("×%.2f", parts[i].ratioTo(bare))
		t.add(part)
	}
	t.add(own.row("  whole review, as the webhook logs it"))
	return nil
}

// measureHung measures deletions while a member hangs: of its own node, which is allowed, and
// of another node, which is refused.
func measureHung(ctx context.Context, b *benchCluster, t *resultTable) (err error) {
	if err := b.resolveGrants(ctx); err != nil {
		return err
	}
	if err := b.etcd.Member(3).Pause(); err != nil {
		return err
	}
	defer func() {
		if resumed := b.etcd.Member(3).Resume(); err == nil {
			err = resumed
		}
	}()
	for _, one := range []struct {
		what, node, verdict string
		wait                time.Duration
	}{
		{"a healthy member's node, refused", nodeName(1), "refused", hungTimeout},
		{"the hung member's own node, allowed", nodeName(3), "allowed", hungTimeout},
	} {
		all, err := b.sampleVerdicts(ctx, hungVerdicts, one.node, one.verdict)
		if err != nil {
			return err
		}
		var total, bare durations
		for _, j := range all {
			total, bare = append(total, max(0, j.total-one.wait)), append(bare, j.bare)
		}
		r := total.row("one of 3 members hangs: "+one.what).judged(total.ratioTo(bare), verdictTarget)
		r.median, r.p99 = ms(one.wait)+" + "+r.median, ms(one.wait)+" + "+r.p99
		r.target += " after " + ms(one.wait)
		t.add(r)
	}
	return nil
}

// resolveGrants resolves all grants, like an operator whose nodes still exist.
func (b *benchCluster) resolveGrants(ctx context.Context) error {
	select { // Earlier, no grant is old enough.
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(quorum.ResolveByHandAfter):
	}
	return b.WaitUntil(ctx, "the resolution of all grants", func(ctx context.Context) error {
		c, err := b.etcdCluster(ctx)
		if err != nil || len(c.Spec.Grants) == 0 {
			return err
		}
		_, err = b.API.Kubectl(ctx, "annotate", "--overwrite", "etcdcluster", c.Name,
			"holdfast.dev/settle="+string(c.Spec.Grants[0].NodeUID))
		return errors.Join(err, fmt.Errorf("%d grants are open", len(c.Spec.Grants)))
	})
}

// sampleVerdicts deletes a node repeatedly and expects the same verdict each time. The stub
// keeps the node.
func (b *benchCluster) sampleVerdicts(ctx context.Context, count int, name, expected string) ([]verdictSample, error) {
	c, err := b.etcdCluster(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := b.clusters.EtcdClusters.Watch(ctx, metav1.ListOptions{ResourceVersion: c.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer changes.Stop()
	observations, err := b.clusters.Observations.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	defer observations.Stop()
	answers := answerLog{offsets: map[string]int{}}
	if _, err := answers.readNew(b); err != nil {
		return nil, err
	}
	tick := time.NewTicker(verdictInterval)
	defer tick.Stop()
	var all []verdictSample
	for len(all) < count {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		bare, err := b.barePatch(ctx)
		if err != nil {
			return nil, err
		}
		var j verdictSample
		j, c = b.sampleVerdict(ctx, name, changes, observations, c)
		j.bare = bare
		found, err := answers.readNew(b)
		switch {
		case err != nil:
			return nil, err
		case len(found) == 0:
			return nil, fmt.Errorf("no webhook logged the deletion of %s; see the logs of the webhooks", name)
		case len(found) > 1:
			continue // the Node changed meanwhile, and the API server called the webhook twice
		case found[0].verdict != expected:
			return nil, fmt.Errorf("the deletion of %s was %s (%s), want %s; see the logs of the webhooks", name,
				found[0].verdict, found[0].reason, expected)
		}
		j.loggedAnswer = found[0]
		all = append(all, j)
	}
	return all, nil
}

// sampleVerdict deletes a node and records the changes of the EtcdCluster and its observations. c
// is the version before the deletion.
func (b *benchCluster) sampleVerdict(ctx context.Context, name string, changes, observations watch.Interface,
	c *v1alpha1.EtcdCluster,
) (verdictSample, *v1alpha1.EtcdCluster) {
	var j verdictSample
	var deleting errgroup.Group
	answered := make(chan struct{})
	before := drain(changes, c)
	drain(observations, nil)
	c = before
	begun := time.Now()
	deleting.Go(func() error {
		defer close(answered)
		j.total, _ = b.delete(ctx, name, false) // the stub refuses it; Holdfast's answer is in its log
		return nil
	})
	var seen verdictSample
	for open := true; open; {
		select {
		case <-answered:
			open = false
		case e := <-changes.ResultChan():
			if now, ok := e.Object.(*v1alpha1.EtcdCluster); ok {
				seen.record(time.Since(begun), before, now)
				c = now
			}
		case e := <-observations.ResultChan():
			if o, ok := e.Object.(*v1alpha1.EtcdObservation); ok {
				seen.recordAnswer(time.Since(begun), c, before, o)
			}
		}
	}
	_ = deleting.Wait() // the function returns no error
	seen.total = j.total
	return seen, c
}

// bareNode is a Node without etcd and without an agent.
const bareNode = "worker-bare"

// barePatch cordons or uncordons a Node that nothing else writes, and returns how long that took.
// It is what other times are compared with.
func (b *benchCluster) barePatch(ctx context.Context) (time.Duration, error) {
	nodes := b.nodes.CoreV1().Nodes()
	if b.barePatches == 0 { // The first patch of a run only establishes the connection.
		if _, err := b.createWorkers(ctx, bareNode, 1, nil); err != nil && !apierrors.IsAlreadyExists(err) {
			return 0, err
		}
		b.barePatches++
		if _, err := b.barePatch(ctx); err != nil {
			return 0, err
		}
	}
	b.barePatches++
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, b.barePatches%2 == 0)
	begun := time.Now()
	if _, err := nodes.Patch(ctx, bareNode+"-1", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return 0, fmt.Errorf("patching node %s-1: %w", bareNode, err)
	}
	return time.Since(begun), nil
}

// drain reads the remaining changes of the previous deletion and returns the newest version of the
// EtcdCluster.
func drain(changes watch.Interface, c *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	const silence = 50 * time.Millisecond
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case e := <-changes.ResultChan():
			if e.Object == nil {
				return c
			}
			if now, ok := e.Object.(*v1alpha1.EtcdCluster); ok {
				c = now
			}
			timer.Reset(silence)
		case <-timer.C:
			return c
		}
	}
}

// record records what a version of the EtcdCluster shows for the first time.
func (j *verdictSample) record(at time.Duration, before, now *v1alpha1.EtcdCluster) {
	if now.Spec.Nonce == before.Spec.Nonce {
		return
	}
	noteFirst(&j.nonceAt, at)
	if now.Spec.Ledger > before.Spec.Ledger {
		noteFirst(&j.grantedAt, at)
	}
}

// recordAnswer records the first answer to another nonce than before.
func (j *verdictSample) recordAnswer(at time.Duration, now, before *v1alpha1.EtcdCluster, o *v1alpha1.EtcdObservation) {
	if o.Nonce == now.Spec.Nonce && o.Nonce != before.Spec.Nonce {
		noteFirst(&j.observedAt, at)
	}
}

func noteFirst(moment *time.Duration, at time.Duration) {
	if *moment == 0 {
		*moment = at
	}
}

// A loggedAnswer is an answer in a webhook's log. The client cannot see Holdfast's answer,
// because the API server returns only one refusal, and the stub's is the first.
type loggedAnswer struct {
	verdict, reason string
	took            time.Duration
}

// An answerLog remembers the offsets up to which the webhooks' logs have been read.
type answerLog struct{ offsets map[string]int }

// readNew returns the answers about etcd nodes since the last call. A webhook logs an answer
// before sending it.
func (l *answerLog) readNew(b *benchCluster) ([]loggedAnswer, error) {
	pattern := regexp.MustCompile(`path=/validate-(?:etcd-node|eviction) verdict=(\w+) reason=(\w+) took=(\S+)`)
	files, err := filepath.Glob(filepath.Join(b.Dir, "webhook-*.log"))
	if err != nil {
		return nil, err
	}
	var found []loggedAnswer
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the logs of the webhooks: %w", err)
		}
		for _, match := range pattern.FindAllStringSubmatch(string(text[l.offsets[file]:]), -1) {
			took, err := time.ParseDuration(match[3])
			if err != nil {
				return nil, fmt.Errorf("reading the logs of the webhooks: %w", err)
			}
			found = append(found, loggedAnswer{match[1], match[2], took})
		}
		l.offsets[file] = len(text)
	}
	return found, nil
}

// countAnswers counts answers by verdict and reason.
func countAnswers(answers []loggedAnswer) map[string]int {
	sums := map[string]int{}
	for _, a := range answers {
		sums[a.verdict+" "+a.reason]++
	}
	return sums
}
