package admission

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Reasons of answers that are about the review and not about etcd, beside those of package protect.
const (
	badReview protect.Reason = "BadReview"
	nodeGone  protect.Reason = "NodeGone"
	panicked  protect.Reason = "Panicked"
	// notKnown: the entry for other nodes could not find out anything, and lets pass as the API server would without us.
	notKnown protect.Reason = "NotKnown"
)

// etcdNode decides about a node with the etcd label.
func (g *Gate) etcdNode(ctx context.Context, r review) answer {
	if r.node.DeletionTimestamp != nil {
		return alreadyDeleting()
	}
	// Whoever reaches this port can send a review. One that names no living Node must not leave a grant behind, and what
	// else it says of the Node is taken from the Node.
	live, err := g.node(ctx, r.node.Name)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return cannotDecide(fmt.Sprintf("the Node %q cannot be read: %v. Try again; if this lasts, see whether the API server answers.", r.node.Name, err))
	case err != nil || live.UID != r.node.UID:
		a := refuse(nodeGone, fmt.Sprintf("there is no Node %q with UID %s any more. Look again with `kubectl get node %s`; nothing was allowed.", r.node.Name, r.node.UID, r.node.Name))
		a.code = http.StatusConflict
		return a
	case live.DeletionTimestamp != nil:
		return alreadyDeleting()
	}
	r.node = live
	q, problem, err := question(r, true, time.Now())
	if err != nil && q.BreakGlass == nil {
		return cannotDecide(protect.Garbled(q.Request, err).Message).about(problem)
	}
	ruling, err := g.judge.Judge(ctx, q)
	if err != nil {
		return undecided(r, ruling, err).about(problem)
	}
	return judged(ruling).about(problem)
}

// otherNode decides about a node without the etcd label. It reads nothing but the cache behind the Judge, unless
// somebody has broken the glass.
func (g *Gate) otherNode(ctx context.Context, r review) answer {
	if r.node.DeletionTimestamp != nil {
		return alreadyDeleting()
	}
	// An announcement that cannot be read is no reason to refuse: the bindings say what is known of this node.
	q, problem, _ := question(r, false, time.Now())
	if q.BreakGlass != nil {
		// It becomes a grant, so a forged one must not count.
		live, err := g.node(ctx, r.node.Name)
		if err != nil || live.UID != r.node.UID || live.Annotations[protect.BreakGlassAnnotation] != r.node.Annotations[protect.BreakGlassAnnotation] {
			q.BreakGlass, problem = nil, "The break-glass annotation does not count: it could not be confirmed that the Node carries it. Try again."
		}
	}
	ruling, err := g.judge.JudgeUnlabelled(ctx, q)
	switch {
	case err != nil && ruling.Reason != "":
		return undecided(r, ruling, err).about(problem)
	case err != nil:
		a := allowBlind(http.StatusServiceUnavailable, notKnown, fmt.Sprintf("holdfast cannot read what it knows of etcd: %v", err))
		a.err = err
		return a
	}
	return judged(ruling).about(problem)
}

func alreadyDeleting() answer {
	return answer{allowed: true, reason: protect.Deleting, routine: true}
}

func judged(r protect.Ruling) answer {
	a := answer{allowed: r.Allowed, reason: r.Reason, message: r.Message, warnings: r.Warnings, code: http.StatusForbidden}
	if r.Reason == protect.CannotDecide {
		a.code = http.StatusServiceUnavailable
	}
	return a
}

// undecided refuses although there may be no ruling at all.
func undecided(r review, ruling protect.Ruling, err error) answer {
	message := ruling.Message
	if message == "" || ruling.Allowed {
		message = fmt.Sprintf("holdfast cannot decide whether node %q may be deleted: %v. Try again; if this lasts, see the log of the holdfast webhook.", r.node.Name, err)
	}
	a := cannotDecide(message)
	a.err = err
	return a
}

func cannotDecide(message string) answer {
	a := refuse(protect.CannotDecide, message)
	a.code = http.StatusServiceUnavailable
	return a
}

func refuse(reason protect.Reason, message string) answer {
	return answer{reason: reason, message: message, code: http.StatusForbidden}
}

func refuseBlind(code int32, reason protect.Reason, why string) answer {
	a := refuse(reason, why+". Deletions of nodes with the label "+protect.EtcdMemberLabel+" are refused while this is so.")
	a.code, a.unproven = code, true
	return a
}

func allowBlind(_ int32, reason protect.Reason, why string) answer {
	return answer{
		allowed: true, reason: reason, unproven: true,
		warnings: []string{why + ". The node does not carry the label " + protect.EtcdMemberLabel + ", so its deletion is allowed."},
	}
}
