package deletion

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// grantReserve is the part of the caller's deadline that is kept for writing grants.
const grantReserve = 2 * time.Second

// A probedCluster is one cluster with its fresh observations and the verdict from them.
type probedCluster struct {
	request *clusterstore.ProbeRequest
	result  clusterstore.ProbeResult
	view    quorum.View
	verdict quorum.Verdict
}

// probeAndGrant probes all selected clusters at the same time. If every verdict allows, it
// writes the grants in the order of cluster IDs. A grant stays even if a later cluster then
// refuses: it can only be too cautious, while its removal could undo one that a second review
// of the same deletion relies on.
func (r *Reviewer) probeAndGrant(
	ctx context.Context, req quorum.Request, selected []*v1alpha1.EtcdCluster,
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
				probed[i], err = r.probeAndDecide(probing, req, c)
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
	if decision := quorum.Combine(verdicts); !decision.Allowed {
		if repeated, isRepeated := r.repeat(ctx, req, probed); isRepeated {
			return repeated, nil
		}
		return decision, nil
	}
	for i, p := range probed {
		nonces := func() []string { return p.request.Result().Nonces }
		verdict, err := r.grant(ctx, req, p.result.Cluster, nonces, quorum.Decide)
		if err != nil {
			return quorum.Decision{}, err
		}
		verdicts[i] = verdict
		if !verdict.Allowed {
			break
		}
	}
	return quorum.Combine(verdicts), nil
}

// probeAndDecide requests fresh observations of one cluster and decides from each new version of
// them, until no further one can change the verdict, or the time is up. The caller releases the
// probe.
func (r *Reviewer) probeAndDecide(
	ctx context.Context, req quorum.Request, c *v1alpha1.EtcdCluster,
) (probedCluster, error) {
	probe, err := r.store.RequestProbe(ctx, c)
	if err != nil {
		return probedCluster{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, r.waitTime(ctx))
	defer cancel()
	p := probedCluster{request: probe}
	for {
		p.result = probe.Result()
		if p.view, err = r.store.ProbedView(waiting, probe, p.result, req.Node); err != nil {
			return p, err
		}
		p.verdict = quorum.Decide(p.view, req)
		if repeated, isRepeated := quorum.Repeat(p.view, req, time.Now()); p.verdict.Final || (isRepeated && repeated.Final) {
			return p, nil
		}
		select {
		case <-p.result.Changed:
		case <-waiting.Done():
			return r.decideFromLive(ctx, p, req), nil
		}
	}
}

// decideFromLive decides once more, from the live object: a watch that hangs must not hide
// observations.
func (r *Reviewer) decideFromLive(ctx context.Context, p probedCluster, req quorum.Request) probedCluster {
	if _, err := r.store.Cluster(ctx, p.result.Cluster.Name); err != nil {
		return p
	}
	now := p.request.Result()
	if now.Cluster == p.result.Cluster {
		return p
	}
	view, err := r.store.ProbedView(ctx, p.request, now, req.Node)
	if err != nil {
		return p
	}
	p.result, p.view, p.verdict = now, view, quorum.Decide(view, req)
	return p
}

// waitTime returns how long to wait for observations.
func (r *Reviewer) waitTime(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(r.wait, max(0, time.Until(deadline)-grantReserve))
	}
	return r.wait
}
