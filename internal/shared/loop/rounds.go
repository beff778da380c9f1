package loop

import (
	"context"
	"time"
)

// Rounds repeats the work of a controller.
type Rounds struct {
	// Do does one round. A panic in it fails the round.
	Do func(context.Context) error
	// Done is called with the error of each round, nil after a success. It is not called for the
	// round during which the context ends.
	Done func(error)
	// Pause is the shortest time between two rounds.
	Pause time.Duration
	// Idle returns how long the loop waits after Pause if nothing wakes it.
	Idle func() time.Duration
	// Wake begins the next round after Pause.
	Wake Signal
}

// Run does one round after the other until ctx ends.
func (r Rounds) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := RecoverPanic(func() error { return r.Do(ctx) })
		if ctx.Err() == nil {
			r.Done(err)
		}
		if Wait(ctx, r.Pause, nil) == nil {
			_ = Wait(ctx, r.Idle(), r.Wake) // The condition above checks ctx.
		}
		Woke(ctx, "round")
	}
}
