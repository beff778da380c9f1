package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// record returns a logger and what it has written so far.
func record(t *testing.T) (*slog.Logger, func() string) {
	t.Helper()
	lines := &latest[string]{}
	return slog.New(slog.NewTextHandler(writer(func(p []byte) {
		lines.mu.Lock()
		defer lines.mu.Unlock()
		lines.value += string(p)
	}), nil)), func() string { text, _ := lines.take(); return text }
}

// elapse lets time pass in a bubble, and everybody else come to rest.
func elapse(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, pause(t.Context(), d))
	synctest.Wait()
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestRetriesGrowAndStayUnderTenSeconds(t *testing.T) {
	delays := retries()
	var before time.Duration
	for i := range 40 {
		d := delays.Step()
		require.Positive(t, d)
		require.LessOrEqual(t, d, 10*time.Second, "attempt %d", i)
		if i < 6 {
			require.Greater(t, d, before, "attempt %d", i)
		}
		before = d
	}
	require.GreaterOrEqual(t, before, 8*time.Second)
}

func TestJitterIsAFifthAndNeverMore(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 2000 {
		d := jittered(10 * time.Second)
		low, high = min(low, d), max(high, d)
	}
	require.InDelta(t, 8, low.Seconds(), 0.1)
	require.InDelta(t, 10, high.Seconds(), 0.1)
	require.LessOrEqual(t, high, 10*time.Second)
}

func TestRingsBecomeOne(t *testing.T) {
	b := newBell()
	b.ring()
	b.ring()
	require.Len(t, b, 1)
}

func TestCauseTellsFailuresApartAndNotTheirOccurrences(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	refused := func(port int) error {
		return fmt.Errorf("dial tcp 127.0.0.1:%d->127.0.0.1:6443: %w", port, syscall.ECONNREFUSED)
	}
	require.Empty(t, cause(nil))
	require.Equal(t, cause(refused(40001)), cause(refused(40002)))
	require.Equal(t,
		cause(fmt.Errorf("patching: %w", apierrors.NewConflict(nodes, "n1", errors.New("one")))),
		cause(fmt.Errorf("patching: %w", apierrors.NewConflict(nodes, "n1", errors.New("another")))))
	require.NotEqual(t, cause(refused(1)), cause(apierrors.NewTooManyRequests("slow down", 1)))
	require.Equal(t, "reading: nothing", cause(errors.New("reading: nothing")))
}

func TestAWatchThatFailsIsSaidOnceAndStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, said := record(t)
		starts, notified := 0, 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := persist(ctx, log, func(context.Context, func()) error {
			starts++
			if starts > 1000 {
				return nil
			}
			return errors.New("no D-Bus on this host")
		}, func() { notified++ })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, strings.Count(said(), "no D-Bus on this host"))
		require.Equal(t, starts, notified, "what happened while nobody watched must be looked at")
		require.InDelta(t, 3600/9, starts, 100, "the delay has to grow to some eight to ten seconds")
	})
}

func TestAWatchThatHeldForLongStartsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := record(t)
		var starts []time.Time
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_ = persist(ctx, log, func(ctx context.Context, _ func()) error {
			starts = append(starts, time.Now())
			if len(starts) == 10 {
				_ = pause(ctx, 5*time.Minute)
			}
			return errors.New("gone")
		}, func() {})
		require.Less(t, starts[10].Sub(starts[9]), 5*time.Minute+200*time.Millisecond)
	})
}
