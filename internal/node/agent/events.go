package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	eventComponent = "holdfast-agent"
	// eventQueueSize is how many events can wait while the API server is slow. Few ever wait:
	// each event follows a change that was written to the Node.
	eventQueueSize = 32
	// eventTimeout limits one attempt to create an event.
	eventTimeout = 5 * time.Second
	// eventMaxAge limits the attempts while no server answers. An event that the server refuses is
	// dropped at once. The conditions of the Node have the same content.
	eventMaxAge = 10 * time.Minute
)

// An eventRecorder creates events, one after the other, in a goroutine of its own: a slow API
// server delays events and nothing else.
type eventRecorder struct {
	cfg   Config
	queue chan *corev1.Event
}

func newEventRecorder(cfg Config) *eventRecorder {
	return &eventRecorder{cfg: cfg, queue: make(chan *corev1.Event, eventQueueSize)}
}

// record queues an event about the Node. It never blocks.
func (r *eventRecorder) record(ctx context.Context, n *corev1.Node, e readiness.Event) {
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "holdfast-", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID},
		Reason:         e.Reason, Message: e.Message, Type: e.Type,
		Source:         corev1.EventSource{Component: eventComponent, Host: r.cfg.Node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: "holdfast.dev/agent", ReportingInstance: r.cfg.Node,
	}
	select {
	case r.queue <- event:
	default:
		r.cfg.Log.WarnContext(ctx, "dropped an event; the queue is full", "reason", e.Reason, "message", e.Message)
	}
}

func (r *eventRecorder) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-r.queue:
			if err := r.deliver(ctx, e); err != nil && ctx.Err() == nil {
				r.cfg.Log.WarnContext(ctx, "failed to create an event; dropped it",
					"reason", e.Reason, "message", e.Message, "err", err)
			}
		}
	}
}

func (r *eventRecorder) deliver(ctx context.Context, e *corev1.Event) error {
	retry, began := loop.NewRetry(retryBackoff()), time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, eventTimeout)
		_, err := r.cfg.Events.Create(attempt, e, metav1.CreateOptions{})
		cancel()
		if err == nil {
			return nil
		}
		if isRefusal(err) || time.Since(began) > eventMaxAge {
			return fmt.Errorf("creating event %q: %w", e.Reason, err)
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}

// isRefusal reports whether the server has answered that it does not accept the request, now or
// later.
func isRefusal(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code < http.StatusInternalServerError &&
		!apierrors.IsTooManyRequests(err)
}
