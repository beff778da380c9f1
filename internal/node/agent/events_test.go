package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// A createFunc is a client for Events.
type createFunc func(context.Context, *corev1.Event) error

func (f createFunc) Create(ctx context.Context, e *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	return e, f(ctx, e)
}

// TestEventQueue records events while the server is away.
func TestEventQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logs := recordLog(t)
		created, up := latest[[]*corev1.Event]{}, atomic.Bool{}
		create := createFunc(func(ctx context.Context, e *corev1.Event) error {
			if !up.Load() {
				<-ctx.Done() // the server is away, and its connections hang
				return context.Cause(ctx)
			}
			before, _ := created.get()
			created.set(append(before, e))
			return nil
		})
		r := newEventRecorder(Config{Node: testNode, Events: create, Log: log})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.run(ctx) }()

		began := time.Now()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "uid-1"}}
		for range eventQueueSize + 3 {
			r.record(ctx, node, readiness.Event{Type: corev1.EventTypeNormal, Reason: "Released", Message: "the network works"})
			synctest.Wait()
		}
		require.Zero(t, time.Since(began), "record does not block")
		require.Equal(t, 2, strings.Count(logs(), "the queue is full"), "one is in progress, the queue is full")

		elapse(t, 7*time.Second)
		up.Store(true)
		elapse(t, time.Minute)
		events, _ := created.get()
		require.Len(t, events, eventQueueSize+1)
		require.Equal(t, "Node", events[0].InvolvedObject.Kind)
		require.Equal(t, node.UID, events[0].InvolvedObject.UID)
		require.Equal(t, "Released", events[0].Reason)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestEventLimits(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no"))
	for name, c := range map[string]struct {
		err             error
		atLeast, atMost int
		within          time.Duration
	}{
		"refused":           {refused, 1, 1, time.Second},
		"no server":         {syscall.ECONNREFUSED, 60, 100, eventMaxAge + slowTick},
		"internal error":    {apierrors.NewInternalError(errors.New("etcd has no leader")), 60, 100, eventMaxAge + slowTick},
		"too many requests": {apierrors.NewTooManyRequests("later", 1), 60, 100, eventMaxAge + slowTick},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logs := recordLog(t)
				attempts, last, began := 0, time.Time{}, time.Now()
				create := createFunc(func(context.Context, *corev1.Event) error {
					attempts, last = attempts+1, time.Now()
					return c.err
				})
				r := newEventRecorder(Config{Node: testNode, Events: create, Log: log})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r.record(ctx, &corev1.Node{}, readiness.Event{Type: corev1.EventTypeNormal, Reason: "Held", Message: "waiting"})
				require.ErrorIs(t, r.run(ctx), context.DeadlineExceeded)
				require.GreaterOrEqual(t, attempts, c.atLeast)
				require.LessOrEqual(t, attempts, c.atMost)
				require.Less(t, last.Sub(began), c.within)
				require.Equal(t, 1, strings.Count(logs(), c.err.Error()))
			})
		})
	}
}
