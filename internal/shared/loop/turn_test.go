package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestAwait(t *testing.T) {
	stop := errors.New("stop")
	for name, c := range map[string]struct {
		isDone, isStopped, endsInTurn bool
		want                          error
	}{
		"done":                       {isDone: true},
		"context ends":               {isStopped: true, want: stop},
		"done and the context ended": {isDone: true, isStopped: true},
		"done before its turn":       {isStopped: true, endsInTurn: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				done, taken := make(chan struct{}), ""
				ctx = WithTurns(ctx, func(_ context.Context, what string) {
					if taken = what; c.endsInTurn {
						close(done)
					}
				})
				var got error
				go func() { got = Await(ctx, "c1", done) }()
				synctest.Wait()
				require.Empty(t, taken, "nothing has woken it")
				if c.isDone {
					close(done)
				}
				if c.isStopped {
					cancel(stop)
				}
				synctest.Wait()
				require.Equal(t, c.want, got)
				require.Equal(t, "c1", taken)
			})
		})
	}
	done := make(chan struct{})
	close(done)
	require.NoError(t, Await(t.Context(), "", done), "without a simulation")
}
