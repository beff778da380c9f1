package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A review is a call of the API server about the deletion of one Node or of the object of its
// machine, or about the eviction of one pod.
type review struct {
	// node is the Node as the API server was about to delete it. For an eviction it is empty until
	// the pod and its Node have been read.
	node *corev1.Node
	// namespace and pod name the pod of an eviction. They are empty for the deletion of a Node.
	namespace, pod string
	// machine is the object in the review of a machine. The node is then empty until it is known.
	machine *machine.Object
	user    string
	// version is the resourceVersion of that Node. A live read may return a later one.
	version string
	// id is the UID of the request. One DELETE makes several reviews, each with its own ID.
	id     string
	dryRun bool
}

// verb returns how texts name what is reviewed.
func (r review) verb() quorum.Verb { return quorum.Request{Drain: r.pod != ""}.Verb() }

// parse returns the review in an admission request. It returns an error for everything that is
// not the deletion of a whole Node.
func parse(req admissionv1.AdmissionRequest) (review, error) {
	r := newReview(req)
	r.node.Name = req.Name
	if err := checkDeletion(req, req.Kind == metav1.GroupVersionKind{Version: "v1", Kind: "Node"}); err != nil {
		return r, err
	}
	// A DELETE has no object, and a deletecollection has no name: both are in the old object.
	node := &corev1.Node{}
	if err := json.Unmarshal(req.OldObject.Raw, node); err != nil {
		return r, fmt.Errorf("parsing the old object: %w", err)
	}
	switch {
	case node.Name == "" || node.UID == "":
		return r, errors.New("the old object has no name or no UID")
	case req.Name != "" && req.Name != node.Name:
		return r, fmt.Errorf("it names %q, but its old object is %q", req.Name, node.Name)
	}
	r.node, r.version = node, node.ResourceVersion
	return r, nil
}

// newReview returns a review without its object.
func newReview(req admissionv1.AdmissionRequest) review {
	return review{
		node: &corev1.Node{}, user: req.UserInfo.Username, id: string(req.UID), dryRun: req.DryRun != nil && *req.DryRun,
	}
}

// checkDeletion returns an error for everything that is not the deletion of a whole object of a
// known kind.
func checkDeletion(req admissionv1.AdmissionRequest, isKnownKind bool) error {
	switch {
	case req.Operation != admissionv1.Delete:
		return fmt.Errorf("the operation is %q", req.Operation)
	case !isKnownKind:
		return fmt.Errorf("the kind is %q of group %q, version %q", req.Kind.Kind, req.Kind.Group, req.Kind.Version)
	case req.SubResource != "":
		return fmt.Errorf("it is about the subresource %q", req.SubResource)
	case len(req.OldObject.Raw) == 0:
		return errors.New("it has no old object")
	}
	return nil
}

// target returns the object of the review for a message about the Node.
func (r review) target() string {
	if r.machine == nil {
		return "this node"
	}
	return r.machine.String() + " of this node"
}

// newRequest returns the request to the Reviewer. The problem explains why a break-glass
// annotation does not count; it is empty if there is no annotation, or if it counts. An
// announcement that cannot be parsed is returned as the error, with a request that lacks it.
func newRequest(r review, labelled bool, now time.Time) (req quorum.Request, problem string, err error) {
	req, err = quorum.RequestFor(r.node)
	req.Version, req.Labelled, req.Drain = r.version, labelled, r.pod != ""
	req.User, req.DryRun = r.user, r.dryRun
	if value, isSet := r.node.Annotations[quorum.BreakGlassAnnotation]; isSet {
		breakGlass, bad := quorum.ParseBreakGlass(value, r.node.UID, now)
		if bad != nil {
			problem = fmt.Sprintf("The break-glass annotation on this node is ignored: %v", bad)
		} else {
			req.BreakGlass = &breakGlass
		}
	}
	return req, problem, err
}
