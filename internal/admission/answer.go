package admission

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Reasons of the events on the Node.
const (
	refusedEvent = "DeletionRefused"
	allowedEvent = "DeletionAllowed"
)

// answer is what the API server is told. The zero value refuses.
type answer struct {
	allowed bool
	// code is the HTTP status of a refusal.
	code     int32
	reason   protect.Reason
	message  string
	warnings []string
	// err is why nothing could be decided, for the log.
	err error
	// routine answers are not worth a line or an event: the second and later reviews of one deletion.
	routine bool
	// unproven answers are about a Node that nobody has looked for: no event.
	unproven bool
}

// about adds what is wrong with the break-glass annotation.
func (a answer) about(problem string) answer {
	switch {
	case problem == "":
	case a.allowed:
		a.warnings = append(a.warnings, problem)
	default:
		a.message += "\n" + problem
	}
	return a
}

func (a answer) response() admission.Response {
	result := &metav1.Status{Code: http.StatusOK, Message: a.message}
	if !a.allowed {
		result.Status, result.Code, result.Reason = metav1.StatusFailure, a.code, statusReason(a.code)
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed: a.allowed, Result: result, Warnings: a.warnings, AuditAnnotations: map[string]string{"reason": string(a.reason)},
	}}
}

func statusReason(code int32) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusConflict:
		return metav1.StatusReasonConflict
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	case http.StatusInternalServerError:
		return metav1.StatusReasonInternalError
	default:
		return metav1.StatusReasonForbidden
	}
}

// tell counts the answer, logs it, and makes the event. The recorder queues: no answer waits for it.
func (g *Gate) tell(path string, r review, a answer, took time.Duration) {
	verdict := "refused"
	if a.allowed {
		verdict = "allowed"
	}
	g.metrics.answers.WithLabelValues(path, verdict, string(a.reason)).Inc()
	g.metrics.took.WithLabelValues(path).Observe(took.Seconds())

	// Thirty workers that are scaled down are thirty answers that nobody needs to read.
	if a.routine || (a.allowed && path == NodePath && a.reason == protect.NothingToProtect) {
		return
	}
	log := g.log.With("node", r.node.Name, "node_uid", r.node.UID, "user", r.user, "request_uid", r.id, "dry_run", r.dryRun,
		"path", path, "verdict", verdict, "reason", a.reason, "took", took)
	if a.err != nil {
		log = log.With("err", a.err)
	}
	switch {
	case !a.allowed:
		log.Warn("node deletion refused", "message", a.message)
	case a.unproven:
		log.Warn("node deletion allowed unseen", "warnings", a.warnings)
	default:
		log.Info("node deletion allowed", "message", a.message, "warnings", a.warnings)
	}
	if r.dryRun || a.unproven || a.reason == nodeGone {
		return
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node.Name, UID: r.node.UID}
	switch {
	case !a.allowed:
		g.events.Eventf(node, corev1.EventTypeWarning, refusedEvent, "user %s may not delete this node: %s", r.user, a.message)
	case a.reason == protect.BreakGlassUsed:
		g.events.Eventf(node, corev1.EventTypeWarning, allowedEvent, "user %s deletes this node by breaking the glass: %s", r.user, a.message)
	default:
		g.events.Eventf(node, corev1.EventTypeNormal, allowedEvent, "user %s may delete this node: %s", r.user, a.message)
	}
}

type metrics struct {
	answers *prometheus.CounterVec
	took    *prometheus.HistogramVec
	open    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (metrics, error) {
	m := metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_webhook_admissions_total",
			Help: "Answers to deletions of Nodes, by entry, verdict and reason. One deletion may ask several times.",
		}, []string{"path", "verdict", "reason"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_webhook_admission_duration_seconds",
			Help:    "Time to answer a deletion of a Node, by entry.",
			Buckets: []float64{.005, .02, .1, .5, 1, 2, 3, 5, 8, 10},
		}, []string{"path"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_webhook_admissions_in_flight",
			Help: "Deletions of Nodes that are being judged.",
		}),
	}
	for _, c := range []prometheus.Collector{m.answers, m.took, m.open} {
		if err := r.Register(c); err != nil {
			return metrics{}, fmt.Errorf("registering the metrics of the admission entries: %w", err)
		}
	}
	return m, nil
}
