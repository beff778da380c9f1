package review

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// grantReserve is the part of the caller's deadline that is kept for writing grants.
const grantReserve = 2 * time.Second

// A probedCluster is one cluster with its fresh observations and the verdict from them.
type probedCluster struct {
	request *clusterstore.ProbeRequest
	// others are all EtcdClusters at the begin of the review.
	others  []*v1alpha1.EtcdCluster
	result  clusterstore.ProbeResult
	view    quorum.View
	verdict quorum.Verdict
}

// probeAndGrant probes all selected clusters at the same time. If every verdict allows, it
// writes the grants in the order of cluster IDs. A grant stays even if a later cluster then
// refuses: it can only be too cautious, while its removal could undo one that a second review
// of the same deletion relies on.
func (r *Reviewer) probeAndGrant(
	ctx context.Context, req quorum.Request, selected, all []*v1alpha1.EtcdCluster,
) (quorum.Decision, error) {
	probed := make([]probedCluster, len(selected))
	defer func() {
		for _, p := range probed {
			if p.request != nil {
				p.request.Release()
			}
		}
	}()
	g, probing := errgroup.WithContext(ctx)
	for i, c := range selected {
		g.Go(func() error {
			return loop.RecoverPanic(func() (err error) {
				probed[i], err = r.probeAndDecide(probing, req, c, all)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return quorum.Decision{}, err
	}
	verdicts := make([]quorum.Verdict, len(probed))
	for i, p := range probed {
		verdicts[i] = p.verdict
	}
	if decision := words.Combine(verdicts...); !decision.Allowed {
		return decision, nil
	}
	for i, p := range probed {
		verdict, err := r.grantFromProbe(ctx, req, p)
		if err != nil {
			return quorum.Decision{}, err
		}
		verdicts[i] = verdict
		if !verdict.Allowed {
			break
		}
	}
	return words.Combine(verdicts...), nil
}

// probeAndDecide requests fresh observations of one cluster and decides from each new version of
// them, until no further one can change the verdict, or none arrives any more, or the time is up.
// The caller releases the probe.
func (r *Reviewer) probeAndDecide(
	ctx context.Context, req quorum.Request, c *v1alpha1.EtcdCluster, others []*v1alpha1.EtcdCluster,
) (probedCluster, error) {
	probe, err := r.store.RequestProbe(ctx, c)
	if err != nil {
		return probedCluster{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, r.longestWait(ctx))
	defer cancel()
	quiet := newQuietTimer(r.wait)
	p := probedCluster{request: probe, others: others}
	for {
		p.result = probe.Result()
		quiet.note(len(p.result.Answers))
		if err = p.decide(waiting, r.store, req); err != nil {
			return p, err
		}
		if p.verdict.Final {
			return p, nil
		}
		if !quiet.waitForNewer(waiting, p.result) {
			return r.decideFromLive(ctx, p, req), nil
		}
	}
}

// A quietTimer fires when no further answer has arrived for some time, and for the first one after
// twice that time: without any answer, nothing is known. Agents on a busy machine answer late, but
// one after another.
type quietTimer struct {
	until   time.Time
	quiet   time.Duration
	answers int
}

func newQuietTimer(quiet time.Duration) *quietTimer {
	return &quietTimer{until: time.Now().Add(2 * quiet), quiet: quiet}
}

// note starts the time again if there are more answers than before.
func (q *quietTimer) note(answers int) {
	if answers > q.answers {
		q.answers = answers
		q.until = time.Now().Add(q.quiet)
	}
}

// waitForNewer waits for a newer result, and reports whether there is one.
func (q *quietTimer) waitForNewer(ctx context.Context, result clusterstore.ProbeResult) bool {
	quiet, cancel := context.WithDeadline(ctx, q.until)
	defer cancel()
	return loop.Await(quiet, result.Cluster.Name, result.Changed) == nil && ctx.Err() == nil
}

// decideFromLive decides once more, from a live read of the nonces and then the observations:
// watches that hang must not hide them.
func (r *Reviewer) decideFromLive(ctx context.Context, p probedCluster, req quorum.Request) probedCluster {
	if _, err := r.store.LiveCluster(ctx, p.result.Cluster.Name); err != nil {
		return p
	}
	now := p.request.Result()
	before := p
	p.result = now
	if err := p.decide(ctx, r.store, req); err != nil {
		return before
	}
	return p
}

// decide sets the verdict from the result.
func (p *probedCluster) decide(ctx context.Context, store *clusterstore.Store, req quorum.Request) (err error) {
	if p.view, err = store.ProbedView(ctx, p.request, p.result, req.Node); err != nil {
		return err
	}
	p.view.Others = p.others
	p.verdict = quorum.Decide(p.view, req)
	return nil
}

// longestWait returns how long a review may wait for observations: as long as the caller waits,
// less the time for the grants.
func (r *Reviewer) longestWait(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, time.Until(deadline)-grantReserve)
	}
	return r.wait
}
