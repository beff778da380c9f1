package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

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
