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

// parseRemoval returns the review in an admission request. It returns an error for everything that
// is not the update of a Node or of its status, which can change annotations as well.
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

// decideRemovalFrom decides about the removal of the member of a Node.
func (h *Handler) decideRemovalFrom(ctx context.Context, r *review) answer {
	if refusal := h.confirm(ctx, r); refusal != nil {
		return *refusal
	}
	if observation.IsLabelled(r.node) {
		return h.review(ctx, *r, true)
	}
	a := h.decideOtherNode(ctx, r)
	if a.Allowed && a.isFallback {
		return answerCannotDecide(fmt.Sprintf("Holdfast does not know whether node %q has etcd, because of an error of its "+
			"own. Try again; if the problem persists, see the log of the Holdfast webhook.", r.node.Name))
	}
	return a
}
