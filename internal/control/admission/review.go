package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A review is a call of the API server about the deletion of one Node or of the object of its
// machine, about an update that marks its member for the removal, or about the eviction of one pod.
// k0s marks the member in its EtcdMember.
type review struct {
	// node is the Node as the API server was about to delete it. For an eviction it is empty until
	// the pod and its Node have been read.
	node *corev1.Node
	// version is the resourceVersion of node as the API server was about to delete or to mark it. A
	// live read may return a later one. It is empty if the API server was about to do something else.
	version string
	// namespace and pod name the pod of an eviction. They are empty for the deletion of a Node.
	namespace, pod string
	// machine is the object in the review of a machine. The node is then empty until it is known.
	machine *machine.Object
	// isOwner means that the object is a Cluster or a control plane, which has many machines.
	isOwner bool
	// removal is the marker that the update of a Node sets. It is empty for other reviews.
	removal departure.Removal
	// etcdMember is the object of k0s in the review of a removal. The node is then empty until it is
	// known.
	etcdMember *machine.EtcdMember
	// isLast marks the last review before a machine ends. It refuses if it cannot decide.
	isLast bool
	// endsMachine is true if the machine of a Node that is being deleted ends without another review.
	endsMachine bool
	user        string
	// id is the UID of the request. One DELETE makes several reviews, each with its own ID.
	id     string
	dryRun bool
}

func (r review) isDrain() bool { return r.pod != "" }

func (r review) isRemoval() bool { return r.removal.Key != "" }

// door returns the kind of the request. The API server does not test the version of a Node whose
// machine ends with another object.
func (r review) door() quorum.DoorKind {
	switch {
	case r.isDrain():
		return quorum.DoorDrain
	case r.isRemoval():
		return quorum.DoorRemove
	case r.version == "":
		return quorum.DoorMachine
	}
	return quorum.DoorDelete
}

func parseNode(req admissionv1.AdmissionRequest) (review, error) {
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
	req.Version, req.Labelled, req.Door, req.StopsFirst = r.version, labelled, r.door(), r.removal.StopsFirst
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

// An answer is a Decision with what the API server, the log and the events need in addition.
// The zero value refuses.
type answer struct {
	quorum.Decision
	// code is the HTTP status of a refusal.
	code int32
	// err is the reason for which no decision was possible, for the log.
	err error
	// isRoutine marks an answer that needs no log line and no event: the Node is already being
	// deleted.
	isRoutine bool
	// isNodeUnconfirmed marks an answer about a Node whose existence is not confirmed: it makes no
	// event.
	isNodeUnconfirmed bool
	// isFallback marks the answer of an entry to a review that it cannot decide.
	isFallback bool
}

func (a answer) withProblem(problem string) answer {
	switch {
	case problem == "":
	case a.Allowed:
		a.Warnings = append(a.Warnings, problem)
	default:
		a.Message += "\n" + problem
	}
	return a
}

// response returns the answer for the API server, which passes the status of a refusal and all
// warnings on to the client. The reason is part of both. An allowed dry run carries it in its first
// warning: without that, a client could not tell this answer from that of an API server that has
// not asked Holdfast.
func (a answer) response(isDryRun bool) admission.Response {
	result, warnings := &metav1.Status{Code: http.StatusOK, Message: printable.Text(a.Message)}, slices.Clone(a.Warnings)
	switch {
	case !a.Allowed:
		known := apierrors.NewGenericServerResponse(int(a.code), "", schema.GroupResource{}, "", "", 0, false).ErrStatus
		result.Status, result.Code, result.Reason = metav1.StatusFailure, a.code, known.Reason
		result.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: a.Reason.Cause()}}}
	case isDryRun:
		warnings = slices.Concat([]string{quorum.ReasonText(a.Reason, a.Message)}, a.Warnings)
	}
	for i := range warnings {
		warnings[i] = printable.Text(warnings[i])
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed: a.Allowed, Result: result, Warnings: warnings,
		AuditAnnotations: map[string]string{"reason": string(a.Reason)},
	}}
}

// record counts the answer, logs it, and makes the event. The event recorder has a queue, so
// no answer waits for it.
func (h *Handler) record(path string, r review, a answer, took time.Duration) {
	verdict := h.count(path, r.dryRun, a, took)

	// The deletion of an ordinary node needs no log line: there are many when workers are scaled down.
	if a.isRoutine || (a.Allowed && path != EtcdNodePath && a.Reason == quorum.NothingToProtect) {
		return
	}
	log := h.Log.With("node", r.node.Name, "node_uid", r.node.UID, "user", r.user, "request_uid", r.id,
		"dry_run", r.dryRun, "path", path, "verdict", verdict, "reason", a.Reason, "took", took)
	if a.err != nil {
		log = log.With("err", a.err)
	}
	if r.machine != nil {
		log = log.With("machine", r.machine.String())
	}
	switch isDrain, isRemoval := r.isDrain(), r.isRemoval(); {
	case !a.Allowed && isDrain:
		log.Warn("drain refused", "message", a.Message)
	case !a.Allowed && isRemoval:
		log.Warn("removal of a member refused", "message", a.Message)
	case !a.Allowed:
		log.Warn("node deletion refused", "message", a.Message)
	case a.isFallback:
		log.Warn("node deletion allowed without a decision", "warnings", a.Warnings)
	case isDrain:
		log.Info("drain allowed", "message", a.Message, "warnings", a.Warnings)
	case isRemoval:
		log.Info("removal of a member allowed", "message", a.Message, "warnings", a.Warnings)
	default:
		log.Info("node deletion allowed", "message", a.Message, "warnings", a.Warnings)
	}
	if r.dryRun || a.isNodeUnconfirmed || a.Reason == nodeGone {
		return
	}
	h.recordEvent(r, a)
}

func (h *Handler) recordEvent(r review, a answer) {
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node.Name, UID: r.node.UID}
	verb, refused, allowed := words.VerbOf(r.door()), "DeletionRefused", "DeletionAllowed"
	switch {
	case r.isDrain():
		refused, allowed = "DrainRefused", "DrainAllowed"
	case r.isRemoval():
		refused, allowed = "RemovalRefused", "RemovalAllowed"
	}
	switch {
	case !a.Allowed:
		h.Events.Eventf(node, corev1.EventTypeWarning, refused,
			"user %s may not %s %s: %s", r.user, verb.Base, r.target(), a.Message)
	case a.Reason == quorum.BreakGlassUsed:
		h.Events.Eventf(node, corev1.EventTypeWarning, allowed,
			"user %s %s %s with a break-glass override: %s", r.user, verb.Third, r.target(), a.Message)
	default:
		h.Events.Eventf(node, corev1.EventTypeNormal, allowed,
			"user %s may %s %s: %s", r.user, verb.Base, r.target(), a.Message)
	}
}

// count counts the answer, and returns the verdict as a word. A refused dry run delays no program,
// so the alert about refusals must not see it.
func (h *Handler) count(path string, dryRun bool, a answer, took time.Duration) (verdict string) {
	verdict = refused
	if a.Allowed {
		verdict = "allowed"
	}
	if !dryRun {
		h.metrics.answers.WithLabelValues(path, verdict, string(a.Reason)).Inc()
	}
	h.metrics.duration.WithLabelValues(path).Observe(took.Seconds())
	return verdict
}

// refused is the value of the label verdict for answers that refuse.
const refused = "refused"

type metrics struct {
	answers  *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	rejected *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	to := promauto.With(r)
	m := metrics{
		answers: to.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_webhook_admissions_total",
			Help: "Answers to reviews, by path, verdict and reason, without dry runs. One deletion can cause several reviews.",
		}, []string{"path", "verdict", "reason"}),
		duration: to.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_webhook_admission_duration_seconds",
			Help:    "Time to answer a review, by path.",
			Buckets: []float64{.005, .02, .1, .5, 1, 2, 3, 5, 8, 10},
		}, []string{"path"}),
		inFlight: to.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_admissions_in_flight",
			Help: "Reviews in progress.",
		}),
		rejected: to.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_webhook_requests_rejected_total",
			Help: "Requests that were rejected without a review, by reason.",
		}, []string{"reason"}),
	}
	// A series that begins with its first refusal hides that refusal from rate().
	for _, path := range []string{EtcdNodePath, NodePath, EvictionPath, MachinePath, RemovalPath} {
		for _, reason := range append(quorum.RefusingReasons(), panicked) {
			m.answers.WithLabelValues(path, refused, string(reason))
		}
	}
	for _, reason := range []string{tooLarge, tooSlow, busy} {
		m.rejected.WithLabelValues(reason)
	}
	return m
}
