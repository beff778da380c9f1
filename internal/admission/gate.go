// Package admission answers the API server's questions about the deletion of Nodes.
//
// It has two entries. The one for nodes with the etcd label fails closed: whatever cannot be understood, read or decided
// in time is refused with a sentence. The one for all other nodes fails open, as the API server itself does there, so that
// a cluster without etcd on its nodes never depends on Holdfast. An entry decides that itself and leaves nothing to
// failurePolicy: an answer that says "error" is a refusal to the API server, whatever the policy says
// (k8s.io/apiserver, plugin/webhook/validating/dispatcher.go).
//
// What may be lost is not decided here. The package knows reviews, and asks a Judge.
package admission

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Paths of the two entries, as in the ValidatingWebhookConfiguration.
const (
	// EtcdNodePath is for nodes with the etcd label: failurePolicy Fail, 10 s.
	EtcdNodePath = "/validate-etcd-node"
	// NodePath is for all other nodes: failurePolicy Ignore, 3 s.
	NodePath = "/validate-node"
)

// The entries' own deadlines lie below those of the API server, so that the answer is ours.
const (
	etcdNodeDeadline = 8 * time.Second
	nodeDeadline     = 2 * time.Second
)

// Judge decides about deletions.
type Judge interface {
	// Judge answers for a Node with the etcd label, and has recorded the grant when it allows. An error comes with a
	// refusal, or with the zero Ruling.
	Judge(ctx context.Context, q protect.Question) (protect.Ruling, error)
	// JudgeUnlabelled answers for any other Node, at once. An error with the zero Ruling says that nothing is known of
	// the node; an error with a refusal says that the refusal could not be set aside.
	JudgeUnlabelled(ctx context.Context, q protect.Question) (protect.Ruling, error)
}

// Options are what a Gate needs. All must be set.
type Options struct {
	Judge Judge
	// Node reads a Node from the API server itself, not from a cache.
	Node func(ctx context.Context, name string) (*corev1.Node, error)
	// Events takes DeletionRefused and DeletionAllowed on the Node. It must not block.
	Events record.EventRecorder
	Log    *slog.Logger
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// Gate holds the two entries.
type Gate struct {
	judge   Judge
	node    func(ctx context.Context, name string) (*corev1.Node, error)
	events  record.EventRecorder
	log     *slog.Logger
	metrics metrics
}

// New returns a Gate.
func New(o Options) (*Gate, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Gate{judge: o.Judge, node: o.Node, events: o.Events, log: o.Log, metrics: m}, nil
}

// Mount puts the entries on the mux.
func (g *Gate) Mount(mux *http.ServeMux) error {
	entries := map[string]entry{
		EtcdNodePath: {path: EtcdNodePath, deadline: etcdNodeDeadline, decide: g.etcdNode, blind: refuseBlind},
		NodePath:     {path: NodePath, deadline: nodeDeadline, decide: g.otherNode, blind: allowBlind},
	}
	for path, e := range entries {
		handler, err := admission.StandaloneWebhook(
			&admission.Webhook{Handler: admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
				return g.handle(ctx, e, req)
			})},
			admission.StandaloneOptions{Logger: logr.FromSlogHandler(g.log.Handler()), MetricsPath: path},
		)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", path, err)
		}
		mux.Handle(path, handler)
	}
	return nil
}

// entry is one of the two paths.
type entry struct {
	path     string
	deadline time.Duration
	decide   func(ctx context.Context, r review) answer
	// blind is the answer when there is no way to decide: to a review that cannot be understood, or after a panic.
	blind func(code int32, reason protect.Reason, why string) answer
}

// handle answers one review, whatever happens, and tells of it.
func (g *Gate) handle(ctx context.Context, e entry, req admission.Request) admission.Response {
	g.metrics.open.Inc()
	defer g.metrics.open.Dec()
	began := time.Now()
	r, err := parse(req.AdmissionRequest)
	var a answer
	if err != nil {
		a = e.blind(http.StatusBadRequest, badReview, fmt.Sprintf("this review is not about the deletion of a Node: %v", err))
	} else {
		a = g.guarded(ctx, e, r)
	}
	g.tell(e.path, r, a, time.Since(began))
	return a.response()
}

// guarded decides within the entry's deadline. A panic costs this answer, not the process with all the others.
func (g *Gate) guarded(ctx context.Context, e entry, r review) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, e.deadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			g.log.Error("deciding about a deletion panicked", "node", r.node.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			a = e.blind(http.StatusInternalServerError, panicked, "holdfast has an error of its own; see the log of the holdfast webhook, and report it")
		}
	}()
	return e.decide(ctx, r)
}
