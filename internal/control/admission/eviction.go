package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// Reasons of answers to evictions that need no decision.
const (
	// notGuard: the pod is not the guard pod of a node. Holdfast has no say in its eviction.
	notGuard quorum.Reason = "NotGuard"
	// guardGone: there is no such pod.
	guardGone quorum.Reason = "GuardGone"
)

func parseEviction(req admissionv1.AdmissionRequest) (review, error) {
	r := newReview(req)
	r.namespace, r.pod = req.Namespace, req.Name
	kind, versions := req.Kind, []string{"v1", "v1beta1"}
	switch {
	case req.Operation != admissionv1.Create:
		return r, fmt.Errorf("the operation is %q", req.Operation)
	case kind.Group != policyv1.GroupName || kind.Kind != "Eviction" || !slices.Contains(versions, kind.Version):
		return r, fmt.Errorf("the kind is %q of group %q, version %q", kind.Kind, kind.Group, kind.Version)
	case req.Resource.Group != "" || req.Resource.Resource != "pods" || req.SubResource != "eviction":
		return r, fmt.Errorf("it is about the resource %q, subresource %q", req.Resource.Resource, req.SubResource)
	case req.Name == "" || req.Namespace == "":
		return r, errors.New("it names no pod, or no namespace")
	case len(req.Object.Raw) == 0:
		return r, errors.New("it has no object")
	}
	// The fields that are read here are the same in both versions.
	eviction := &policyv1.Eviction{}
	if err := json.Unmarshal(req.Object.Raw, eviction); err != nil {
		return r, fmt.Errorf("parsing the object: %w", err)
	}
	if eviction.Name != "" && eviction.Name != req.Name {
		return r, fmt.Errorf("it names %q, but its object is %q", req.Name, eviction.Name)
	}
	if o := eviction.DeleteOptions; o != nil && slices.Contains(o.DryRun, metav1.DryRunAll) {
		r.dryRun = true
	}
	return r, nil
}

// decideEviction decides about the eviction of a pod. Each refusal tells the client to try again,
// because that is what programs that drain nodes do then; another code ends `kubectl drain`. It
// names no time to wait: client-go would wait inside the request.
func (h *Handler) decideEviction(ctx context.Context, r *review) answer {
	if r.namespace != guard.Namespace || !strings.HasPrefix(r.pod, guard.NamePrefix) {
		return allowRoutine(notGuard)
	}
	pod, err := h.Pod(ctx, r.namespace, r.pod)
	switch {
	case apierrors.IsNotFound(err):
		// The answer that the API server would give. An allowed eviction could reach a guard pod that
		// is created in the meantime.
		why := fmt.Sprintf("pod %q in namespace %s does not exist", r.pod, r.namespace)
		a := unconfirmed(refuse(http.StatusNotFound, guardGone, why))
		a.isRoutine = true
		return a
	case err != nil:
		return retriable(unconfirmed(answerCannotRead("Pod", r.pod, err)))
	case pod.Spec.NodeName == "" || r.pod != guard.Name(pod.Spec.NodeName):
		return allowRoutine(notGuard)
	}
	return retriable(h.decideDrain(ctx, r, pod.Spec.NodeName))
}

// decideDrain decides about the drain of the node of a guard pod. The name and the node of the pod
// make it a guard pod; its labels and owners, which users can change, do not matter. A Node that is
// being deleted is decided too: a finalizer keeps it until its machine ends after the drain, and
// another member may have failed since its deletion was allowed.
func (h *Handler) decideDrain(ctx context.Context, r *review, node string) answer {
	r.node.Name = node
	live, err := h.Node(ctx, node)
	switch {
	case apierrors.IsNotFound(err):
		return allowRoutine(nodeGone)
	case err != nil:
		return unconfirmed(answerCannotRead("Node", node, err))
	}
	r.node = live
	return h.review(ctx, *r, observation.IsLabelled(live))
}

// retriable returns a refusal with the status that means "try again".
func retriable(a answer) answer {
	if !a.Allowed {
		a.code = http.StatusTooManyRequests
	}
	return a
}
