package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// removalEntry returns the entry for what removes a member: updates that mark a Node for it, and
// the EtcdMembers of k0s. Only such requests reach it, so it fails closed for nodes without the
// label too.
func (h *Handler) removalEntry() entry {
	return entry{
		path: RemovalPath, deadline: reviewDeadline, subject: "removal of an etcd member",
		parse: parseRemoval, decide: h.decideRemoval, ofKubelets: true,
		fallback: fallback{
			consequence: "Until this is resolved, no etcd member can be removed in this way.",
		},
	}
}

// parseRemoval accepts also updates of the status of a Node, which can change annotations as well.
func parseRemoval(req admissionv1.AdmissionRequest) (review, error) {
	if req.Kind.Group == machine.K0sGroup && req.Kind.Kind == machine.EtcdMemberKind {
		return parseEtcdMember(req)
	}
	r := newReview(req)
	r.node.Name = req.Name
	switch {
	case req.Operation != admissionv1.Update:
		return r, fmt.Errorf("the operation is %q", req.Operation)
	case req.Kind != metav1.GroupVersionKind{Version: "v1", Kind: "Node"}:
		return r, fmt.Errorf("the kind is %q of group %q, version %q", req.Kind.Kind, req.Kind.Group, req.Kind.Version)
	case !slices.Contains([]string{"", "status"}, req.SubResource):
		return r, fmt.Errorf("it is about the subresource %q", req.SubResource)
	}
	old, updated := &corev1.Node{}, &corev1.Node{}
	if err := errors.Join(json.Unmarshal(req.OldObject.Raw, old), json.Unmarshal(req.Object.Raw, updated)); err != nil {
		return r, fmt.Errorf("parsing the objects: %w", err)
	}
	if old.UID == "" || old.Name != req.Name || updated.Name != req.Name || updated.UID != old.UID {
		return r, fmt.Errorf("it names %q, but its objects are %q with UID %q and %q with UID %q",
			req.Name, old.Name, old.UID, updated.Name, updated.UID)
	}
	r.node, r.version, r.removal = old, old.ResourceVersion, departure.RemovalBy(old, updated)
	return r, nil
}

// decideRemoval decides about the removal of a member. It allows an update that sets no marker: one
// that removes it, and those by which the distribution reports what it has done.
func (h *Handler) decideRemoval(ctx context.Context, r *review) answer {
	switch {
	case !r.isRemoval():
		return allowRoutine(quorum.NothingToProtect)
	case r.etcdMember != nil:
		return h.decideEtcdMember(ctx, r)
	}
	return h.decideRemovalFrom(ctx, r)
}

func (h *Handler) decideRemovalFrom(ctx context.Context, r *review) answer {
	if refusal := h.confirm(ctx, r); refusal != nil {
		return *refusal
	}
	if observation.IsLabelled(r.node) {
		return h.review(ctx, *r, true)
	}
	a := h.decideOtherNode(ctx, r)
	if a.Allowed && a.isFallback {
		return answerNotKnown(r.node.Name, "Try again")
	}
	return a
}

// parseEtcdMember returns the review in an admission request about an EtcdMember of k0s, which
// removes the member if it sets spec.leave or deletes the object.
func parseEtcdMember(req admissionv1.AdmissionRequest) (review, error) {
	r := newReview(req)
	old, err := machine.ParseEtcdMember(req.OldObject.Raw)
	updated := machine.EtcdMember{Leaves: true}
	if req.Operation == admissionv1.Update && err == nil {
		updated, err = machine.ParseEtcdMember(req.Object.Raw)
	}
	switch {
	case err != nil:
		return r, err
	case req.Operation != admissionv1.Update && req.Operation != admissionv1.Delete || req.SubResource != "":
		return r, fmt.Errorf("the operation is %q, and the subresource %q", req.Operation, req.SubResource)
	case old.Name == "" || req.Name != "" && req.Name != old.Name:
		return r, fmt.Errorf("it names %q, but its old object is %q", req.Name, old.Name)
	case updated.Leaves && (req.Operation == admissionv1.Delete || !old.Leaves):
		r.etcdMember, r.removal = &old, departure.Removal{Key: machine.EtcdMemberKind, StopsFirst: true}
	}
	return r, nil
}

// decideEtcdMember decides about the removal of a member by k0s: it must be allowed on every Node
// that may have the member. The Node with the name of the member comes first. If the answer about
// it is about the member, it counts alone: a worker can announce any member, and forge its address.
// A controller that runs no kubelet has no Node, and is not protected.
func (h *Handler) decideEtcdMember(ctx context.Context, r *review) answer {
	nodes, err := h.Nodes(ctx)
	named, errNamed := h.Node(ctx, r.etcdMember.Name)
	if err = errors.Join(err, client.IgnoreNotFound(errNamed)); err != nil {
		return unconfirmed(answerCannotRead("Node", r.etcdMember.Name, err))
	}
	if errNamed == nil {
		nodes = append([]*corev1.Node{named}, nodes...)
	}
	last := answer{Decision: quorum.Decision{
		Allowed: true, Reason: quorum.NothingToProtect, Message: "no Node has etcd member " + r.etcdMember.Name,
	}}
	reviewed := map[types.UID]bool{}
	for _, node := range nodes {
		if reviewed[node.UID] || !r.etcdMember.MayBeOn(node) {
			continue
		}
		reviewed[node.UID] = true
		one := *r
		one.node = node
		a := h.decideRemovalFrom(ctx, &one)
		if a.Reason == quorum.NothingToProtect {
			continue
		}
		isAbout := func(v quorum.Verdict) bool { return slices.Contains(v.Members, r.etcdMember.Member) }
		last, r.node = a, one.node
		if !a.Allowed || node == named && slices.ContainsFunc(a.Verdicts, isAbout) {
			break
		}
	}
	return last
}
