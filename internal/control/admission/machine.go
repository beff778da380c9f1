package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// machineEntry returns the entry for machines. It is for all machines of the cluster, so it fails
// open.
func (h *Handler) machineEntry() entry {
	return entry{
		path: MachinePath, deadline: reviewDeadline, subject: "deletion of a Machine or NodeClaim", parse: parseMachine,
		decide: h.decideMachine,
		fallback: fallback{allows: true, consequence: "Holdfast does not know whether this machine has a node with etcd, " +
			"so its deletion is allowed."},
	}
}

func parseMachine(req admissionv1.AdmissionRequest) (review, error) {
	r := newReview(req)
	r.machine = &machine.Object{Kind: req.Kind.Kind, Namespace: req.Namespace, Name: req.Name}
	isOwner := machine.IsOwnerKind(req.Kind.Group, req.Kind.Kind)
	isKnown := isOwner || req.Kind.Group == machine.ClusterAPIGroup && req.Kind.Kind == machine.KindMachine ||
		req.Kind.Group == machine.KarpenterGroup && req.Kind.Kind == machine.KindNodeClaim
	if err := checkDeletion(req, isKnown); err != nil {
		return r, err
	}
	object, err := machine.Parse(req.Kind.Kind, req.OldObject.Raw)
	switch {
	case err != nil:
		return r, err
	case object.Name == "" || object.UID == "":
		return r, errors.New("the old object has no name or no UID")
	case req.Name != "" && req.Name != object.Name || req.Namespace != object.Namespace:
		return r, fmt.Errorf("it names %q in namespace %q, but its old object is %s", req.Name, req.Namespace, object)
	}
	r.machine, r.isOwner = &object, isOwner
	return r, nil
}

// ReviewMachine decides whether the machine of a Machine or a NodeClaim may end that is being
// deleted already, as if the user deleted its Nodes. It refuses if it cannot decide. The message
// explains the answer. A refusal makes no event, because the caller asks again and again.
//
// The list has at least the Nodes for which the object stands. This is the last review before the
// machine ends, so they must come from the API server: its kubelet may have registered again.
func (h *Handler) ReviewMachine(
	ctx context.Context, m machine.Object, list func(context.Context) ([]*corev1.Node, error), user string,
) (isAllowed bool, message string) {
	began := time.Now()
	e := h.machineEntry()
	e.fallback = fallback{consequence: "The hook stays until this is resolved."}
	e.decide = func(ctx context.Context, r *review) answer {
		return h.decideNodesOf(ctx, r, list, e.fallback)
	}
	r := review{node: &corev1.Node{}, machine: &m, user: user, isLast: true}
	a := h.decideInTime(ctx, e, &r)
	if a.Allowed {
		h.record(e.path, r, a, time.Since(began))
	} else {
		h.count(e.path, r.dryRun, a, time.Since(began))
	}
	return a.Allowed, a.Message
}

func (h *Handler) decideMachine(ctx context.Context, r *review) answer {
	switch {
	case r.machine.Deleting:
		return allowRoutine(quorum.Deleting)
	case r.isOwner:
		return h.decideOwner(ctx, r)
	}
	return h.decideNodesOf(ctx, r, h.cachedNodesFor(*r.machine), h.machineEntry().fallback)
}

// cachedNodesFor lists the Nodes of the cache, so that machines without a Node cost no request. It
// adds the Node that the object names if the cache lacks it (docs/verdict.md, F90), also beside an
// earlier Node of the same machine (F92). A Node that cannot be read is not added, because the
// entry fails open.
func (h *Handler) cachedNodesFor(m machine.Object) nodeLister {
	return func(ctx context.Context) ([]*corev1.Node, error) {
		nodes, err := h.Nodes(ctx)
		isOwn := func(n *corev1.Node) bool { return n.Name == m.Node && m.Match(n.Name, n.Spec.ProviderID) != "" }
		if err != nil || m.Node == "" || slices.ContainsFunc(nodes, isOwn) {
			return nodes, err
		}
		reading, cancel := context.WithTimeout(ctx, lastReadTimeout)
		defer cancel()
		if live, err := h.Node(reading, m.Node); err == nil {
			nodes = append(slices.Clone(nodes), live)
		}
		return nodes, nil
	}
}

// decideNodesOf decides about a machine: every Node for which the object stands must be allowed to
// go. Two Nodes may have the provider ID of one machine. The fallback answers if the Nodes are not
// known. The last Node that the answer is about becomes that of the review.
func (h *Handler) decideNodesOf(
	ctx context.Context, r *review, list nodeLister, unknown fallback,
) answer {
	nodes, err := list(ctx)
	if err != nil {
		return unknown.notKnown("holdfast cannot list the nodes", err)
	}
	combined := answer{Decision: quorum.Decision{
		Allowed: true, Reason: quorum.NothingToProtect, Message: r.machine.String() + " stands for no node with etcd",
	}}
	for _, node := range nodes {
		why := r.machine.Match(node.Name, node.Spec.ProviderID)
		if why == "" {
			continue
		}
		a, node := h.decideNodeOf(ctx, *r, node)
		switch {
		case a.Reason == nodeGone || a.Reason == quorum.Deleting || a.Reason == quorum.NothingToProtect:
			continue
		case !a.Allowed:
			r.node = node
			a.Message += fmt.Sprintf("\n%s stands for node %s: %s.", r.machine, node.Name, why)
			return a
		case r.node.Name != "":
			a.Message = combined.Message + "\n" + a.Message
			a.Warnings = append(combined.Warnings, a.Warnings...)
		}
		r.node = node
		combined = a
	}
	return combined
}

// decideNodeOf decides about one Node of a machine as the entry for that Node does. The kubelet of
// the machine may register again while the Node is reviewed: then the new Node is reviewed too, and
// if it cannot be read, the answer refuses. decideNodeOf also returns the Node that the answer is
// about.
func (h *Handler) decideNodeOf(ctx context.Context, r review, node *corev1.Node) (answer, *corev1.Node) {
	for reviewed := types.UID(""); ; {
		reading, cancel := context.WithTimeout(ctx, lastReadTimeout)
		live, err := h.Node(reading, node.Name)
		cancel()
		isOther := err == nil && (live.UID == reviewed || r.machine.Match(live.Name, live.Spec.ProviderID) == "")
		switch {
		case apierrors.IsNotFound(err) || isOther:
			return answer{Decision: quorum.Decision{Reason: nodeGone}}, node
		case err == nil:
			node = live
		}
		a := h.decideReadNode(ctx, r, node)
		switch {
		case a.Reason != nodeGone:
			return a, node
		case ctx.Err() != nil:
			return unconfirmed(answerCannotRead("Node", node.Name, context.Cause(ctx))), node
		}
		reviewed = node.UID
	}
}

// decideReadNode decides about a Node of a machine. If the Node comes from the cache, because it
// cannot be read, the cache decides which entry that is.
func (h *Handler) decideReadNode(ctx context.Context, r review, node *corev1.Node) answer {
	e := h.otherNodeEntry()
	if observation.IsLabelled(node) {
		e = h.etcdNodeEntry()
	}
	r.endsMachine = r.isLast || r.machine.EndsWithNode()
	// The grant is about no version of the Node: the machine ends although its Node is written.
	r.node, r.version, r.machine = node, "", nil
	a := h.decideInTime(ctx, e, &r)
	if r.isLast && a.Allowed && a.isFallback {
		a = answerNotKnown(node.Name, "It tries again")
		a.isFallback, a.isNodeUnconfirmed = true, true
	}
	return a
}

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
