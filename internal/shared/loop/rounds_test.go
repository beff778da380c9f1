package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun, wake := time.Now(), NewSignal()
		var times []time.Duration
		var results []error
		failed := errors.New("failed")
		r := Rounds{
			Pause: time.Second, Idle: func() time.Duration { return 9 * time.Second }, Wake: wake,
			Done: func(err error) { results = append(results, err) },
			Do: func(context.Context) error {
				times = append(times, time.Since(begun))
				switch len(times) {
				case 2:
					panic("broken")
				case 3:
					wake.Notify()
					return failed
				case 4:
					cancel()
					return failed
				}
				return nil
			},
		}
		r.Run(ctx)
		require.Equal(t, []time.Duration{0, 10 * time.Second, 20 * time.Second, 21 * time.Second}, times)
		require.Len(t, results, 3, "the round during which the context ends has no result")
		require.NoError(t, results[0])
		require.ErrorContains(t, results[1], "broken")
		require.ErrorIs(t, results[2], failed)
		require.Equal(t, 21*time.Second, time.Since(begun))
	})
}
