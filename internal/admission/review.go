package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// review is a question about the deletion of one Node.
type review struct {
	// node is the Node as the API server was about to delete it.
	node *corev1.Node
	user string
	// id is the request's UID. One DELETE makes several reviews, each with an ID of its own.
	id     string
	dryRun bool
}

// parse reads a review. It returns an error for everything that is not the deletion of a whole Node.
func parse(req admissionv1.AdmissionRequest) (review, error) {
	r := review{node: &corev1.Node{}, user: req.UserInfo.Username, id: string(req.UID), dryRun: req.DryRun != nil && *req.DryRun}
	r.node.Name = req.Name
	kind := metav1.GroupVersionKind{Version: "v1", Kind: "Node"}
	switch {
	case req.Operation != admissionv1.Delete:
		return r, fmt.Errorf("the operation is %q", req.Operation)
	case req.Kind != kind:
		return r, fmt.Errorf("the kind is %q of group %q, version %q", req.Kind.Kind, req.Kind.Group, req.Kind.Version)
	case req.SubResource != "":
		return r, fmt.Errorf("it is about the subresource %q", req.SubResource)
	case len(req.OldObject.Raw) == 0:
		return r, errors.New("it has no old object")
	}
	// A DELETE has no object, and a deletecollection no name: both are in the old object.
	node := &corev1.Node{}
	if err := json.Unmarshal(req.OldObject.Raw, node); err != nil {
		return r, fmt.Errorf("parsing the old object: %w", err)
	}
	switch {
	case node.Name == "" || node.UID == "":
		return r, errors.New("the old object has no name or no UID")
	case req.Name != "" && req.Name != node.Name:
		return r, fmt.Errorf("it names %q, and its old object is %q", req.Name, node.Name)
	}
	r.node = node
	return r, nil
}

// question is what the Judge is asked about the Node. The problem says why a break-glass annotation does not count,
// empty if there is none or if it does. What cannot be read of the agent's word about its members comes back as the
// error, with a question that lacks it.
func question(r review, labelled bool, now time.Time) (q protect.Question, problem string, err error) {
	q = protect.Question{
		Request: protect.Request{Node: r.node.Name, UID: r.node.UID, Labelled: labelled},
		User:    r.user,
		DryRun:  r.dryRun,
	}
	for _, a := range r.node.Status.Addresses {
		q.Request.Addresses = append(q.Request.Addresses, a.Address)
	}
	if value, set := r.node.Annotations[protect.BreakGlassAnnotation]; set {
		broken, bad := protect.ParseBreakGlass(value, r.node.UID, now)
		if bad != nil {
			problem = fmt.Sprintf("The break-glass annotation on this node does not count: %v", bad)
		} else {
			q.BreakGlass = &broken
		}
	}
	q.Request.Announced, err = protect.ParseAnnouncement(r.node.Annotations[protect.AnnouncementAnnotation])
	if err == nil {
		q.Request.Unverified, err = protect.ParseUnverified(r.node.Annotations[protect.UnverifiedAnnotation])
	}
	return q, problem, err
}
