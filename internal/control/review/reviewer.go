// Package review reviews deletions and drains of Nodes, and removals of their members. A [Reviewer]
// selects the etcd clusters that may have a member on the Node, requests fresh observations from
// their agents, decides with package quorum, and writes the grants before it allows.
//
// One path, from top to bottom: Review and ReviewUnlabelled in this file, the probes in probe.go,
// whose turn it is in turns.go, the decision and its grants in turn.go. The package treats what it
// cannot read as a reason to refuse.
package review

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

const defaultWait = 3 * time.Second

// Options configure a Reviewer. Store is required.
type Options struct {
	Store *clusterstore.Store
	// Wait is the longest time that a verdict waits for a further observation after the last one. It
	// waits twice as long for the first one. Default 3 s.
	Wait time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// A Reviewer reviews deletions, drains and removals.
type Reviewer struct {
	store *clusterstore.Store
	wait  time.Duration
	now   func() time.Time
	turns *turns
}

// New returns a Reviewer.
func New(o Options) *Reviewer {
	r := &Reviewer{store: o.Store, wait: cmp.Or(o.Wait, defaultWait), now: o.Now, turns: newTurns()}
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// Review decides whether a Node with the etcd label may be deleted, any Node drained, or a member
// removed. If so, and members are lost with it, the grants are written before Review returns. After
// an error, nothing is decided.
func (r *Reviewer) Review(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
	if req.Door != quorum.DoorDrain {
		return r.reviewClusters(ctx, req)
	}
	live := r.store.LiveNodesNamed(ctx, []string{req.Node})[req.Node]
	node := r.store.StatesOf(map[string]clusterstore.LiveNode{req.Node: live})[req.Node]
	if err := requireNode(node, req); err != nil {
		return quorum.Decision{}, err
	}
	if verdict, isRefused := quorum.RefuseOpenNode(node, req); isRefused && req.BreakGlass == nil {
		return words.Combine(verdict), nil
	}
	decision, err := r.reviewClusters(ctx, req)
	if err != nil || req.DryRun || !decision.NeedsGrant() {
		return decision, err
	}
	// The drain relies on the cordon, which must not be opened for another reason.
	if err := r.store.RecordDrain(ctx, live.Node, r.now()); err != nil {
		return quorum.Decision{}, err
	}
	return decision, nil
}

// reviewClusters decides, and writes the grants.
func (r *Reviewer) reviewClusters(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
	all, err := r.store.LiveClusters(ctx)
	if err != nil {
		return quorum.Decision{}, err
	}
	if req.BreakGlass != nil {
		return r.breakGlass(ctx, req, quorum.Select(all, req), all)
	}
	selected, decision := quorum.SelectOrDecide(all, req)
	switch {
	case len(selected) == 0:
		return words.Explain(decision), nil
	case req.DryRun:
		return r.dryRun(ctx, req, selected, all)
	}
	return r.probeAndGrant(ctx, req, selected, all)
}

// ReviewUnlabelled decides for a Node without the label, without a probe: from the cache if its
// agent has reported no member, or else from a live read. A watch that has hung for seconds may be
// why the leader has not set the label (F99). An override of its refusal is recorded as that of
// Review. An error with the zero Decision means that nothing is known of the Node; the caller
// decides what follows from that. An error with a refusal means that the override could not be
// recorded.
func (r *Reviewer) ReviewUnlabelled(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
	list := r.store.CachedClusters
	if req.AgentSilent {
		list = r.store.LatestClusters
	}
	all, err := list(ctx)
	if err != nil {
		return quorum.Decision{}, err
	}
	decision := words.Combine(quorum.DecideUnlabelled(all, req))
	if decision.Allowed || req.BreakGlass == nil {
		return decision, nil
	}
	// More members may be lost with the Node than DecideUnlabelled found.
	override, err := r.breakGlass(ctx, req, quorum.Select(all, req), all)
	if err != nil {
		return decision, err
	}
	return override, nil
}

// dryRun decides from the last observations, without those of agents that have become silent. It
// requests no probe and writes nothing.
func (r *Reviewer) dryRun(
	ctx context.Context, req quorum.Request, selected, all []*v1alpha1.EtcdCluster,
) (quorum.Decision, error) {
	decision, err := r.decideFromLast(ctx, selected, all, func(v quorum.View) quorum.Verdict {
		return quorum.Decide(v, req)
	}, req.Node)
	if err != nil {
		return quorum.Decision{}, err
	}
	decision.Message = "dry run: decided from the last observations, without a fresh probe: " + decision.Message
	return decision, nil
}

// breakGlass allows against any verdict, and records the members that are lost with the Node
// as far as they are known.
func (r *Reviewer) breakGlass(
	ctx context.Context, req quorum.Request, selected, all []*v1alpha1.EtcdCluster,
) (quorum.Decision, error) {
	decision := quorum.Decision{
		Allowed: true, Reason: quorum.BreakGlassUsed,
		Message: fmt.Sprintf("break-glass override in effect for node %q until %s: %s",
			req.Node, req.BreakGlass.Until.Format(time.RFC3339), req.BreakGlass.Reason),
		Warnings: []string{
			fmt.Sprintf("node %q is %s without a check that its etcd clusters keep quorum",
				req.Node, words.VerbOf(req.Door).Past),
		},
	}
	if req.DryRun {
		return decision, nil
	}
	for _, c := range selected {
		last := clusterstore.ProbeResult{Cluster: c, Nonces: []string{c.Spec.Nonce}}
		verdict, err := r.turns.take(&attempt{
			ctx: ctx, request: req, result: func() clusterstore.ProbeResult { return last }, others: all,
			judge: quorum.Force, mayGrant: true,
		}, r.turn)
		if err != nil {
			return quorum.Decision{}, err
		}
		decision.Verdicts = append(decision.Verdicts, verdict)
	}
	return decision, nil
}
