package loop

import "context"

type turnKey struct{}

// WithTurns returns a context in which Woke calls take. It is for simulations. take returns when
// the goroutine may go on, and ctx and what identify the goroutine.
func WithTurns(ctx context.Context, take func(ctx context.Context, what string)) context.Context {
	return context.WithValue(ctx, turnKey{}, take)
}

// Woke lets a simulation decide which of several goroutines that woke at the same moment goes on
// first. In production it does nothing. Call it after each wake-up before touching shared state,
// with no lock held.
func Woke(ctx context.Context, what string) {
	if take, ok := ctx.Value(turnKey{}).(func(context.Context, string)); ok {
		take(ctx, what)
	}
}

// Await waits until done is closed, or until ctx ends first. Then it returns the cause.
func Await(ctx context.Context, what string, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
	}
	Woke(ctx, what)
	select {
	case <-done:
		return nil
	default:
		return context.Cause(ctx)
	}
}
