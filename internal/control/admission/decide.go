package admission

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// Reasons of answers that are about the review and not about etcd, in addition to those of
// package quorum.
const (
	badReview quorum.Reason = "BadReview"
	nodeGone  quorum.Reason = "NodeGone"
	panicked  quorum.Reason = "Panicked"
	// notKnown: the entry for other nodes could read nothing. It allows, as the API server does
	// without the webhook.
	notKnown quorum.Reason = "NotKnown"
)

func (h *Handler) decideEtcdNode(ctx context.Context, r *review) answer {
	if r.needsNoReview(r.node) {
		return allowRoutine(quorum.Deleting)
	}
	if refusal := h.confirm(ctx, r); refusal != nil {
		return *refusal
	}
	if r.needsNoReview(r.node) {
		return allowRoutine(quorum.Deleting)
	}
	return h.review(ctx, *r, true)
}

// confirm makes the live Node that of the review, or returns a refusal. Any client that reaches the
// port can send a review. A review of a Node that does not exist must not leave a grant, and its
// other fields are taken from the live Node.
func (h *Handler) confirm(ctx context.Context, r *review) (refusal *answer) {
	live, err := h.Node(ctx, r.node.Name)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return new(answerCannotRead("Node", r.node.Name, err))
	case err != nil || live.UID != r.node.UID:
		return new(answerGone(*r))
	}
	r.node = live
	return nil
}

// review returns the answer of the Reviewer about the live Node of a review.
func (h *Handler) review(ctx context.Context, r review, isLabelled bool) answer {
	req, problem, err := newRequest(r, isLabelled, time.Now())
	if err != nil && req.BreakGlass == nil {
		return answerCannotDecide(words.Message(quorum.RefuseUnparsable(req, err))).withProblem(problem)
	}
	decision, err := h.Reviewer.Review(ctx, req)
	if err != nil {
		return undecided(r, err).withProblem(problem)
	}
	return decided(decision).withProblem(problem)
}

// decideOtherNode decides about a node without the etcd label. Unless the Node has a break-glass
// annotation or a watch may hang, it makes no request to the API server.
func (h *Handler) decideOtherNode(ctx context.Context, r *review) answer {
	if r.needsNoReview(r.node) {
		return allowRoutine(quorum.Deleting)
	}
	// An announcement that cannot be parsed is no reason to refuse: the bindings are enough here.
	req, problem, _ := newRequest(*r, false, time.Now())
	if req.BreakGlass != nil {
		// It becomes a grant, so a forged one must not count.
		live, err := h.Node(ctx, r.node.Name)
		if err != nil || live.UID != r.node.UID ||
			live.Annotations[quorum.BreakGlassAnnotation] != r.node.Annotations[quorum.BreakGlassAnnotation] {
			req.BreakGlass = nil
			problem = "The break-glass annotation is ignored: Holdfast could not confirm that the Node has it. Try again."
		}
	}
	decision, err := h.Reviewer.ReviewUnlabelled(ctx, req)
	switch {
	case err != nil && decision.Reason != "":
		return undecided(*r, err).withProblem(problem)
	case err != nil:
		return h.otherNodeEntry().fallback.notKnown(fmt.Sprintf("holdfast cannot read its EtcdClusters: %v", err), err)
	}
	return decided(decision).withProblem(problem)
}

func answerGone(r review) answer {
	if r.isDrain() {
		return allowRoutine(nodeGone)
	}
	return refuse(http.StatusConflict, nodeGone, fmt.Sprintf(
		"Node %q with UID %s no longer exists. Check with `kubectl get node %s`; nothing was allowed.",
		r.node.Name, r.node.UID, r.node.Name))
}

// needsNoReview reports whether the Node is already being deleted, so that its deletion needs no
// review. The removal of its member and the end of its machine need one: a finalizer may keep the
// Node for a long time, and by then another member may have failed.
func (r review) needsNoReview(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil && !r.endsMachine && !r.isRemoval()
}

// allowRoutine allows what needs no decision. It makes no grant.
func allowRoutine(reason quorum.Reason) answer {
	return answer{Decision: quorum.Decision{Allowed: true, Reason: reason}, isRoutine: true}
}

func decided(d quorum.Decision) answer {
	a := answer{Decision: d, code: http.StatusForbidden}
	if d.Reason == quorum.CannotDecide {
		a.code = http.StatusServiceUnavailable
	}
	return a
}

// undecided refuses because of a failure of Holdfast, not because of etcd.
func undecided(r review, err error) answer {
	a := answerCannotDecide(fmt.Sprintf("holdfast cannot decide whether node %q may be %s: %v. This says nothing about "+
		"its etcd. Try again; if the problem persists, see the log of the Holdfast webhook.",
		r.node.Name, words.VerbOf(r.door()).Past, err))
	a.err = err
	return a
}

func answerCannotRead(kind, name string, err error) answer {
	return answerCannotDecide(fmt.Sprintf(
		"%s %q cannot be read: %v. Try again; if the problem persists, check that the API server answers.", kind, name, err))
}

// unconfirmed returns the answer about a Node whose existence is not confirmed.
func unconfirmed(a answer) answer {
	a.isNodeUnconfirmed = true
	return a
}

// answerNotKnown refuses where the entry for other nodes would fail open.
func answerNotKnown(node, next string) answer {
	return answerCannotDecide(fmt.Sprintf("Holdfast does not know whether node %q has etcd, because of an error of its "+
		"own. %s; if the problem persists, see the log of the Holdfast webhook.", node, next))
}

func answerCannotDecide(message string) answer {
	return refuse(http.StatusServiceUnavailable, quorum.CannotDecide, message)
}

func refuse(code int32, reason quorum.Reason, message string) answer {
	return answer{Decision: quorum.Decision{Reason: reason, Message: message}, code: code}
}
