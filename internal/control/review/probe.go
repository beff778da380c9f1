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

// cacheTrust is how long the caches alone may show that answers are missing. A watch that hangs
// delays a review by that.
const cacheTrust = time.Second

// A clusterReview is the part of a review that is about one cluster.
type clusterReview struct {
	*Reviewer
	request quorum.Request
	// others are all EtcdClusters at the begin of the review.
	others []*v1alpha1.EtcdCluster
	probe  *clusterstore.ProbeRequest
	quiet  *quietTimer
}

// probeAndGrant probes all selected clusters, and decides about them at the same time. If every
// verdict allows, it writes the grants in the order of cluster IDs. A grant stays even if a later
// cluster then refuses: it can only be too cautious, while its removal could undo one that a second
// review of the same deletion relies on.
func (r *Reviewer) probeAndGrant(
	ctx context.Context, req quorum.Request, selected, all []*v1alpha1.EtcdCluster,
) (quorum.Decision, error) {
	reviews, verdicts := make([]*clusterReview, len(selected)), make([]quorum.Verdict, len(selected))
	defer func() {
		for _, review := range reviews {
			if review != nil {
				review.probe.Release()
			}
		}
	}()
	isOnly := len(selected) == 1
	g, probing := errgroup.WithContext(ctx)
	for i, c := range selected {
		g.Go(func() error {
			return loop.RecoverPanic(func() error {
				probe, err := r.store.RequestProbe(probing, c)
				if err != nil {
					return err
				}
				reviews[i] = &clusterReview{Reviewer: r, request: req, others: all, probe: probe, quiet: newQuietTimer(r.wait)}
				verdicts[i], err = reviews[i].await(probing, isOnly)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return quorum.Decision{}, err
	}
	decision := words.Combine(verdicts...)
	if isOnly || !decision.Allowed {
		return decision, nil
	}
	for i, review := range reviews {
		var err error
		if verdicts[i], err = review.await(ctx, true); err != nil {
			return quorum.Decision{}, err
		}
		if !verdicts[i].Allowed {
			break
		}
	}
	return words.Combine(verdicts...), nil
}

// await takes a turn when the answers to the probe seem to be enough, and once a second, until no
// further answer can change the verdict. It takes the last turn when no answer arrives any more, or
// the time is up. With mayGrant, the grant of a verdict that allows is written before it returns.
func (c *clusterReview) await(ctx context.Context, mayGrant bool) (quorum.Verdict, error) {
	waiting, cancel := context.WithTimeout(ctx, c.longestWait(ctx))
	defer cancel()
	a := &attempt{
		ctx: ctx, request: c.request, result: c.probe.Result, others: c.others, judge: quorum.Decide, mayGrant: mayGrant,
	}
	for looked := time.Now(); ; {
		result := c.probe.Result()
		c.quiet.note(len(result.Answers))
		if c.isEnough() || time.Since(looked) >= cacheTrust {
			looked = time.Now()
			if verdict, err := c.turns.take(a, c.turn); err != nil || a.ends(verdict) {
				return verdict, err
			}
		}
		if !c.quiet.waitForNewer(waiting, result) {
			a.mustEnd = true
			break
		}
	}
	return c.turns.take(a, c.turn)
}

// isEnough reports whether the answers seem to be enough for a verdict. Only live reads show
// whether they are.
func (c *clusterReview) isEnough() bool {
	view, err := c.store.CachedView(c.probe, c.request.Node)
	if err != nil {
		return true
	}
	view.Others = c.others
	return quorum.Decide(view, c.request).Final
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

// waitForNewer waits for a newer result, at most for cacheTrust, and reports whether there is one
// or the timer has not fired.
func (q *quietTimer) waitForNewer(ctx context.Context, result clusterstore.ProbeResult) bool {
	quiet, cancel := context.WithTimeout(ctx, min(cacheTrust, time.Until(q.until)))
	defer cancel()
	err := loop.Await(quiet, result.Cluster.Name, result.Changed)
	return (err == nil || time.Now().Before(q.until)) && ctx.Err() == nil
}

// longestWait returns how long a review may wait for observations: as long as the caller waits,
// less the time for the grants.
func (r *Reviewer) longestWait(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, time.Until(deadline)-grantReserve)
	}
	return r.wait
}
