package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	component = "holdfast-agent"
	// eventQueue is how many events may wait while the API server is slow. More than a few never do: each is a change
	// that was written to the Node before.
	eventQueue = 32
	// eventBudget is how long one attempt at posting an event may take.
	eventBudget = 5 * time.Second
	// eventAttempts is how often an event is tried that the server refuses, eventPatience for how long one is for which there
	// is no server. What it says stands in the Node's conditions as well.
	eventAttempts = 5
	eventPatience = 10 * time.Minute
)

// event is one Kubernetes Event on the agent's Node.
type event struct{ kind, reason, message string }

// herald posts events, one after the other, beside the loops: a slow API server delays the telling and never the doing.
type herald struct {
	node  string
	post  func(context.Context, *corev1.Event) error
	log   *slog.Logger
	queue chan *corev1.Event
}

func newHerald(cfg Config) *herald {
	return &herald{
		node: cfg.Node, log: cfg.Log, queue: make(chan *corev1.Event, eventQueue),
		post: func(ctx context.Context, e *corev1.Event) error {
			_, err := cfg.Events.Create(ctx, e, metav1.CreateOptions{})
			return err
		},
	}
}

// tell queues an event about the Node and returns at once.
func (h *herald) tell(ctx context.Context, n *corev1.Node, e event) {
	now := metav1.Now()
	made := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "holdfast-", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID},
		Reason:         e.reason, Message: e.message, Type: e.kind,
		Source:         corev1.EventSource{Component: component, Host: h.node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: "holdfast.dev/agent", ReportingInstance: h.node,
	}
	select {
	case h.queue <- made:
	default:
		h.log.WarnContext(ctx, "dropping an event, too many are waiting", "reason", e.reason, "message", e.message)
	}
}

// run posts what is queued until the context ends.
func (h *herald) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-h.queue:
			if err := h.deliver(ctx, e); err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "dropping an event", "reason", e.Reason, "message", e.Message, "err", err)
			}
		}
	}
}

func (h *herald) deliver(ctx context.Context, e *corev1.Event) error {
	delays, began, refused := retries(), time.Now(), 0
	for {
		budget, cancel := context.WithTimeout(ctx, eventBudget)
		err := h.post(budget, e)
		cancel()
		if err == nil {
			return nil
		}
		var answer apierrors.APIStatus
		if errors.As(err, &answer) && answer.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err) {
			refused++
		}
		if refused == eventAttempts || time.Since(began) > eventPatience {
			return fmt.Errorf("posting event %q: %w", e.Reason, err)
		}
		if pause(ctx, delays.Step()) != nil {
			return context.Cause(ctx)
		}
	}
}

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
