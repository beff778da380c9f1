// Package admission answers the API server's reviews of deletions of Nodes and of the objects of
// their machines, of evictions of guard pods, and of removals of members.
//
// The entries for nodes with the etcd label, for evictions and for the removal of members fail
// closed: they refuse, with an explanation, what they cannot parse, read or decide in time. The
// entry for all other nodes fails open, as the API server does there, so that a cluster without
// etcd on its nodes never depends on Holdfast. The entry for Machines and NodeClaims judges the
// Nodes for which such an object stands, each as its own entry does, and fails open if it does not
// know the Nodes. The entries implement this themselves, because for the API server a response with
// an error is a refusal, whatever failurePolicy is (k8s.io/apiserver,
// plugin/webhook/validating/dispatcher.go). failurePolicy decides only about requests that get an
// HTTP error instead of a review (intake.go).
//
// The package does not decide what may be lost. It parses reviews and calls a [Reviewer].
package admission

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// Paths of the entries, as in the ValidatingWebhookConfiguration.
const (
	// EtcdNodePath is for nodes with the etcd label: failurePolicy Fail, 10 s.
	EtcdNodePath = "/validate-etcd-node"
	// NodePath is for all other nodes: failurePolicy Ignore, 3 s.
	NodePath = "/validate-node"
	// EvictionPath is for evictions of guard pods: failurePolicy Fail, 10 s.
	EvictionPath = "/validate-eviction"
	// MachinePath is for Machines, Clusters and control planes of Cluster API and NodeClaims of
	// Karpenter: failurePolicy Ignore, 10 s.
	MachinePath = "/validate-machine"
	// RemovalPath is for updates that mark the member of a Node for the removal, and for EtcdMembers
	// of k0s: failurePolicy Fail, 10 s.
	RemovalPath = "/validate-removal"
)

// The deadlines of the entries are shorter than those of the API server, so that the API server
// receives an answer.
const (
	reviewDeadline = 8 * time.Second
	nodeDeadline   = 2 * time.Second
	// lastReadTimeout limits the read of a Node after a refusal. It fits between the deadlines of the
	// entries and those of the API server.
	lastReadTimeout = 500 * time.Millisecond
)

// A Reviewer decides about deletions, drains and removals. [review.Reviewer] is the one of the
// webhook.
//
// [review.Reviewer]: https://pkg.go.dev/github.com/holdfast-dev/holdfast/internal/control/review
type Reviewer interface {
	// Review decides for a Node with the etcd label, and for each drain and removal. It has recorded
	// the grant when it allows. After an error, nothing is decided.
	Review(ctx context.Context, req quorum.Request) (quorum.Decision, error)
	// ReviewUnlabelled decides for any other Node, immediately. An error with the zero Decision
	// means that nothing is known of the node. An error with a refusal means that a break-glass
	// annotation could not override the refusal.
	ReviewUnlabelled(ctx context.Context, req quorum.Request) (quorum.Decision, error)
	// ReviewTogether decides for Nodes with the etcd label that go at once. It records nothing.
	ReviewTogether(ctx context.Context, requests []quorum.Request) (quorum.Decision, error)
}

// Options configure a Handler. All fields are required.
type Options struct {
	Reviewer Reviewer
	// Node reads a Node from the API server, not from a cache.
	Node func(ctx context.Context, name string) (*corev1.Node, error)
	// Pod reads a pod from the API server, not from a cache.
	Pod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Nodes lists all Nodes from a cache. They are only read.
	Nodes func(ctx context.Context) ([]*corev1.Node, error)
	// Events records the answers on the Node. It must not block.
	Events     record.EventRecorder
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

type nodeLister func(ctx context.Context) ([]*corev1.Node, error)

// A Handler serves the entries.
type Handler struct {
	Options
	metrics metrics
	// largeBodies limits the large bodies that are read.
	largeBodies *semaphore.Weighted
	underReview objectReviews
}

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{
		Options: o, metrics: newMetrics(o.Registerer), largeBodies: semaphore.NewWeighted(maxLargeBodies),
	}
}

// Mount adds the entries to the mux.
func (h *Handler) Mount(mux *http.ServeMux) error {
	for _, e := range []entry{
		h.etcdNodeEntry(), h.otherNodeEntry(), h.evictionEntry(), h.machineEntry(), h.removalEntry(),
	} {
		handler, err := admission.StandaloneWebhook(
			&admission.Webhook{
				Handler: admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
					return h.handle(ctx, e, req)
				}),
			},
			admission.StandaloneOptions{Logger: logr.FromSlogHandler(h.Log.Handler()), MetricsPath: e.path},
		)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", e.path, err)
		}
		mux.Handle(e.path, h.limit(e, handler))
	}
	return nil
}

// limit passes on the requests that have arrived completely, as many as the entry may review at
// the same time. Each entry has its own limit: nodes without etcd never wait for reviews of nodes
// with etcd, which take seconds.
func (h *Handler) limit(e entry, reviews http.Handler) http.Handler {
	capacity := semaphore.NewWeighted(maxReviewBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := h.readBody(w, r)
		if err != nil {
			h.rejectBody(w, err)
			return
		}
		cost := max(int64(len(body)), minReviewCost)
		if !capacity.TryAcquire(cost) {
			h.metrics.rejected.WithLabelValues(busy).Inc()
			e.rejectBusy(w, body)
			return
		}
		defer capacity.Release(cost)
		r.Body = io.NopCloser(bytes.NewReader(body))
		reviews.ServeHTTP(w, r)
	})
}

const deletionOfNode = "deletion of a Node"

type entry struct {
	path     string
	deadline time.Duration
	// subject is what the reviews of the entry are about.
	subject string
	// parse returns an error for every request that is not about the subject.
	parse func(req admissionv1.AdmissionRequest) (review, error)
	// decide decides. It sets the Node of a review that does not name one.
	decide   func(ctx context.Context, r *review) answer
	fallback fallback
	// ofKubelets means that a kubelet can make such requests about its own Node and pods, also as dry
	// runs. Then few about one object are reviewed at the same time.
	ofKubelets bool
}

func (h *Handler) etcdNodeEntry() entry {
	return entry{
		path: EtcdNodePath, deadline: reviewDeadline, subject: deletionOfNode,
		parse: parseNode, decide: h.decideEtcdNode,
		fallback: fallback{consequence: "Until this is resolved, deletions of nodes with the label " +
			observation.EtcdMemberLabel + " are refused."},
	}
}

func (h *Handler) otherNodeEntry() entry {
	return entry{
		path: NodePath, deadline: nodeDeadline, subject: deletionOfNode,
		parse: parseNode, decide: h.decideOtherNode,
		fallback: fallback{allows: true, consequence: "The node does not have the label " +
			observation.EtcdMemberLabel + ", so its deletion is allowed."},
	}
}

func (h *Handler) evictionEntry() entry {
	return entry{
		path: EvictionPath, deadline: reviewDeadline, subject: "eviction of a pod",
		parse: parseEviction, decide: h.decideEviction, ofKubelets: true,
		fallback: fallback{
			isRetriable: true, consequence: "Until this is resolved, evictions of guard pods are refused.",
		},
	}
}

// A fallback is how an entry answers if no decision is possible: to a review that cannot be parsed,
// or after a panic.
type fallback struct {
	// allows is true for an entry that fails open.
	allows bool
	// isRetriable is true if a refusal tells the client to try again, unless the review cannot be
	// parsed: it could not be the next time either.
	isRetriable bool
	// consequence is the last sentence of the answer.
	consequence string
}

// answer returns the answer. The code is that of a refusal.
func (f fallback) answer(code int32, reason quorum.Reason, why string) answer {
	text := why + ". " + f.consequence
	a := refuse(code, reason, text)
	if f.allows {
		a = answer{Decision: quorum.Decision{Allowed: true, Reason: reason, Warnings: []string{text}}}
	}
	a.isFallback, a.isNodeUnconfirmed = true, true
	if f.isRetriable && code != http.StatusBadRequest {
		return retriable(a)
	}
	return a
}

// notKnown returns the answer if something that the decision needs could not be read.
func (f fallback) notKnown(why string, err error) answer {
	a := f.answer(http.StatusServiceUnavailable, notKnown, why)
	a.err = err
	return a
}

// handle answers one review in all cases, and records the answer.
func (h *Handler) handle(ctx context.Context, e entry, req admission.Request) admission.Response {
	h.metrics.inFlight.Inc()
	defer h.metrics.inFlight.Dec()
	if e.ofKubelets {
		end, isFree := h.underReview.begin(e.path + " " + req.Name)
		if !isFree {
			h.metrics.rejected.WithLabelValues(busy).Inc()
			return refuse(http.StatusTooManyRequests, busy, busyMessage).response(false)
		}
		defer end()
	}
	began := time.Now()
	r, err := e.parse(req.AdmissionRequest)
	var a answer
	if err != nil {
		why := fmt.Sprintf("this review is not about the %s: %v", e.subject, err)
		a = e.fallback.answer(http.StatusBadRequest, badReview, why)
	} else {
		a = h.decideInTime(ctx, e, &r)
	}
	h.record(e.path, r, a, time.Since(began))
	return a.response(r.dryRun)
}

// decideInTime decides within the deadline of the entry. A panic costs this answer only, not the
// process with all other answers.
func (h *Handler) decideInTime(ctx context.Context, e entry, r *review) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			h.Log.Error("panic during a review",
				"node", r.node.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			a = e.fallback.answer(http.StatusInternalServerError, panicked,
				"holdfast failed with an internal error; see the log of the Holdfast webhook, and report the error")
		}
	}()
	a = e.decide(ctx, r)
	if !a.Allowed && !a.isNodeUnconfirmed && a.Reason != nodeGone && h.isGone(ctx, *r) {
		a = answerGone(*r)
	}
	return a
}

// isGone reports whether the Node of a review that refuses is gone by now. A process that was
// paused decides long after the API server has given up, and another replica may have allowed the
// deletion meanwhile. Its refusal would then be an event about a Node that does not exist. The read
// has its own deadline, because that of the entry may have passed. A Node that cannot be read
// exists. For a drain, so does one that was registered again: the drain goes on with that machine.
func (h *Handler) isGone(ctx context.Context, r review) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReadTimeout)
	defer cancel()
	live, err := h.Node(ctx, r.node.Name)
	return apierrors.IsNotFound(err) || (err == nil && !r.isDrain() && live.UID != r.node.UID)
}
