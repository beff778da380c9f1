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
)

func TestEventsWaitForTheServerAndNothingWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, said := record(t)
		posted, up := latest[[]*corev1.Event]{}, atomic.Bool{}
		h := &herald{node: testNode, log: log, queue: make(chan *corev1.Event, eventQueue), post: func(ctx context.Context, e *corev1.Event) error {
			if !up.Load() {
				<-ctx.Done() // the server is away and nothing says so
				return context.Cause(ctx)
			}
			before, _ := posted.take()
			posted.put(append(before, e))
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.run(ctx) }()

		began := time.Now()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "uid-1"}}
		for range eventQueue + 3 {
			h.tell(ctx, node, event{corev1.EventTypeNormal, "Released", "the network works"})
			synctest.Wait()
		}
		require.Zero(t, time.Since(began), "telling waits for nobody")
		require.Equal(t, 2, strings.Count(said(), "too many are waiting"), "one is on its way, the queue is full")

		elapse(t, 7*time.Second)
		up.Store(true)
		elapse(t, time.Minute)
		told, _ := posted.take()
		require.Len(t, told, eventQueue+1)
		require.Equal(t, "Node", told[0].InvolvedObject.Kind)
		require.Equal(t, node.UID, told[0].InvolvedObject.UID)
		require.Equal(t, "Released", told[0].Reason)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestAnEventThatNobodyTakesIsGivenUp(t *testing.T) {
	events := schema.GroupResource{Resource: "events"}
	for name, c := range map[string]struct {
		err             error
		atLeast, atMost int
		within          time.Duration
	}{
		"it is refused":             {apierrors.NewForbidden(events, "", errors.New("no")), eventAttempts, eventAttempts, 2 * time.Second},
		"there is no server":        {syscall.ECONNREFUSED, 60, 100, eventPatience + slowTick},
		"the server is ill":         {apierrors.NewInternalError(errors.New("etcd has no leader")), 60, 100, eventPatience + slowTick},
		"the server is overwhelmed": {apierrors.NewTooManyRequests("later", 1), 60, 100, eventPatience + slowTick},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, said := record(t)
				attempts, last, began := 0, time.Time{}, time.Now()
				h := &herald{node: testNode, log: log, queue: make(chan *corev1.Event, eventQueue), post: func(context.Context, *corev1.Event) error {
					attempts, last = attempts+1, time.Now()
					return c.err
				}}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				h.tell(ctx, &corev1.Node{}, event{corev1.EventTypeNormal, "Held", "waiting"})
				require.ErrorIs(t, h.run(ctx), context.DeadlineExceeded)
				require.GreaterOrEqual(t, attempts, c.atLeast)
				require.LessOrEqual(t, attempts, c.atMost)
				require.Less(t, last.Sub(began), c.within)
				require.Equal(t, 1, strings.Count(said(), c.err.Error()))
			})
		})
	}
}
