package loop

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Notify()
	s.Notify()
	require.Len(t, s, 1, "two notifications become one")
}

func TestWait(t *testing.T) {
	stop := errors.New("stop")
	for name, c := range map[string]struct {
		prepare func(cancel context.CancelCauseFunc, wake Signal)
		noWake  bool
		takes   time.Duration
		want    error
	}{
		"time passes":  {noWake: true, takes: time.Hour},
		"never set":    {takes: time.Hour},
		"set":          {prepare: func(_ context.CancelCauseFunc, wake Signal) { wake.Notify() }},
		"context ends": {prepare: func(cancel context.CancelCauseFunc, _ Signal) { cancel(stop) }, want: stop},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				wake := NewSignal()
				if c.prepare != nil {
					c.prepare(cancel, wake)
				}
				if c.noWake {
					wake = nil
				}
				began := time.Now()
				require.ErrorIs(t, Wait(ctx, time.Hour, wake), c.want)
				require.Equal(t, c.takes, time.Since(began))
			})
		})
	}
}

func TestLogOnce(t *testing.T) {
	var o LogOnce
	require.False(t, o.Changed("a", ""), "there was no failure before")
	require.True(t, o.Changed("a", "broken"))
	require.False(t, o.Changed("a", "broken"))
	require.True(t, o.Changed("b", "broken"), "subjects are independent")
	require.True(t, o.Changed("a", "broken again"))
	require.True(t, o.Changed("a", ""), "the failure is over")
	require.False(t, o.Changed("a", ""))
	require.Len(t, o.last, 1)
}

func TestLogOnceErrors(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	refused := func(port int) error {
		return fmt.Errorf("dial tcp 127.0.0.1:%d->127.0.0.1:6443: %w", port, syscall.ECONNREFUSED)
	}
	conflict := func(text string) error {
		return fmt.Errorf("patching: %w", apierrors.NewConflict(nodes, "n1", errors.New(text)))
	}
	var o LogOnce
	for i, step := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{refused(40001), true},
		{refused(40002), false},
		{apierrors.NewTooManyRequests("slow down", 1), true},
		{conflict("one"), true},
		{conflict("another"), false},
		{errors.New("reading: nothing"), true},
		{errors.New("reading: nothing"), false},
		{errors.New("reading: something"), true},
		{nil, true},
	} {
		require.Equal(t, step.want, o.ChangedErrorKind("a", step.err), "step %d: %v", i, step.err)
	}
	require.Equal(t, "reading: nothing", kindOf(errors.New("reading: nothing")))
}

func TestRetry(t *testing.T) {
	r := NewRetry(Backoff(time.Second, 5*time.Second))
	for range 2 {
		for _, least := range []time.Duration{1, 2, 4, 5, 5, 5} {
			next := r.Next()
			require.GreaterOrEqual(t, next, least*time.Second)
			require.Less(t, next, least*time.Second*5/4)
		}
		r.Reset()
	}
}

// forAnHour runs KeepRunning for an hour. It returns when KeepRunning called run, and which
// errors it reported.
func forAnHour(t *testing.T, run func(ctx context.Context, call int) error) (calls []time.Time, failed []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := KeepRunning(ctx, Backoff(50*time.Millisecond, 8*time.Second), func(ctx context.Context) error {
			calls = append(calls, time.Now())
			return run(ctx, len(calls))
		}, func(err error) { failed = append(failed, err.Error()) })
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	return calls, failed
}

func TestKeepRunning(t *testing.T) {
	t.Run("delays grow, and a failure is reported once", func(t *testing.T) {
		calls, failed := forAnHour(t, func(context.Context, int) error { return errors.New("no D-Bus on this host") })
		require.Equal(t, []string{"no D-Bus on this host"}, failed)
		require.InDelta(t, 3600/9, len(calls), 20) // with the random part
	})
	t.Run("a steady call starts again soon", func(t *testing.T) {
		calls, failed := forAnHour(t, func(ctx context.Context, call int) error {
			if call == 10 {
				_ = Wait(ctx, 5*time.Minute, nil)
			}
			return errors.New("gone")
		})
		require.Equal(t, []string{"gone", "gone"}, failed)
		require.InDelta(t, 5*time.Minute+56*time.Millisecond, calls[10].Sub(calls[9]), float64(7*time.Millisecond))
	})
	t.Run("a call that ends without an error is not a failure", func(t *testing.T) {
		_, failed := forAnHour(t, func(_ context.Context, call int) error {
			if call%3 > 0 {
				return errors.New("gone")
			}
			return nil
		})
		require.Equal(t, "gone", failed[0])
		require.Greater(t, len(failed), 100)
	})
}

func TestRecoverPanic(t *testing.T) {
	err := RecoverPanic(func() error {
		var empty []error
		return empty[len(empty)]
	})
	require.ErrorContains(t, err, "index out of range [0] with length 0")
	require.ErrorContains(t, err, "loop_test.go", "the error contains the stack")
	require.NoError(t, RecoverPanic(func() error { return nil }))
	ours := errors.New("ours")
	require.ErrorIs(t, RecoverPanic(func() error { return ours }), ours)
}
