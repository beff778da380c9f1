package review

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// ReviewTogether decides whether every etcd cluster that may have a member on one of the Nodes
// keeps quorum if the Nodes of all requests go at once, from the last observations. It writes no
// grant, because each Node is reviewed again before its machine ends.
func (r *Reviewer) ReviewTogether(ctx context.Context, requests []quorum.Request) (quorum.Decision, error) {
	all, err := r.store.LiveClusters(ctx)
	if err != nil {
		return quorum.Decision{}, err
	}
	nodes := make([]string, len(requests))
	var selected []*v1alpha1.EtcdCluster
	for i, request := range requests {
		nodes[i] = request.Node
		of, decision := quorum.SelectOrDecide(all, request)
		if len(of) == 0 && !decision.Allowed {
			return words.Explain(decision), nil
		}
		selected = append(selected, of...)
	}
	slices.SortFunc(selected, func(a, b *v1alpha1.EtcdCluster) int { return strings.Compare(a.Name, b.Name) })
	selected = slices.Compact(selected)
	return r.decideFromLast(ctx, selected, all, func(v quorum.View) quorum.Verdict {
		verdict, _ := quorum.DecideTogether(v, requests)
		return verdict
	}, nodes...)
}

// decideFromLast decides about each cluster from the last observations, without those of agents
// that have become silent.
func (r *Reviewer) decideFromLast(
	ctx context.Context, selected, all []*v1alpha1.EtcdCluster, judge func(quorum.View) quorum.Verdict, nodes ...string,
) (quorum.Decision, error) {
	verdicts := make([]quorum.Verdict, len(selected))
	for i, c := range selected {
		view, err := r.store.View(ctx, c, nodes...)
		if err != nil {
			return quorum.Decision{}, err
		}
		now, err := r.store.LiveCluster(ctx, c.Name) // The agents may have answered a newer nonce.
		if err != nil {
			return quorum.Decision{}, err
		}
		view.Now, view.Nonces = r.now(), []string{c.Spec.Nonce, now.Spec.Nonce}
		view.Cluster, view.Others = observation.Recent(view.Cluster, view.Now), all
		verdicts[i] = judge(view)
	}
	return words.Combine(verdicts...), nil
}
