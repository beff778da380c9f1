package admission

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// decideOwner decides about the deletion of a Cluster or of a control plane of Cluster API, which
// deletes all of its Machines. The nodes with etcd among them must be allowed to go at once, or
// each must have a break-glass annotation. The Machines are reviewed one by one afterwards, so the
// answer makes no grant.
func (h *Handler) decideOwner(ctx context.Context, r *review) answer {
	nodes, err := h.Nodes(ctx)
	if err != nil {
		return h.machineEntry().fallback.notKnown("holdfast cannot list the nodes", err)
	}
	requests, refusal := ownedRequests(r, nodes)
	switch {
	case refusal != nil:
		return *refusal
	case len(requests) == 0:
		return answer{Decision: quorum.Decision{
			Allowed: true, Reason: quorum.NothingToProtect, Message: r.machine.String() + " has no node with etcd",
		}}
	case !slices.ContainsFunc(requests, func(q quorum.Request) bool { return q.BreakGlass == nil }):
		return answer{Decision: quorum.Decision{
			Allowed: true, Reason: quorum.BreakGlassUsed,
			Message: "a break-glass override is in effect for each node with etcd of " + r.machine.String(),
		}}
	}
	decision, err := h.Reviewer.ReviewTogether(ctx, requests)
	if err != nil {
		return answerCannotDecide(fmt.Sprintf("Holdfast cannot decide whether %s may be deleted: %v. Try again; if the "+
			"problem persists, see the log of the Holdfast webhook.", r.machine, err))
	}
	if !decision.Allowed {
		decision.Message = fmt.Sprintf("deleting %s would end all of its machines\n%s\nWhat helps:\n  - to end single "+
			"machines, delete their Machines one by one\n  - only if this etcd may be lost: set a break-glass annotation on "+
			"each of these nodes", r.machine, decision.Message)
	}
	return decided(decision)
}

// ownedRequests returns the requests about the nodes with etcd of a Cluster or control plane. One
// of them becomes the Node of the review, for its event. If one cannot be parsed, it returns a
// refusal.
func ownedRequests(r *review, nodes []*corev1.Node) (requests []quorum.Request, refusal *answer) {
	for _, node := range nodes {
		if !observation.IsLabelled(node) || !r.machine.Owns(node) {
			continue
		}
		r.node = node
		req, _, err := newRequest(*r, true, time.Now())
		if err != nil && req.BreakGlass == nil {
			return nil, new(answerCannotDecide(words.Message(quorum.RefuseUnparsable(req, err))))
		}
		requests = append(requests, req)
	}
	return requests, nil
}
