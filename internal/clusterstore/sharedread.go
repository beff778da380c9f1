package clusterstore

import (
	"context"

	"golang.org/x/sync/singleflight"
)

// A sharedRead makes one read for all callers that wait for it. A caller shares only a read that
// began after its call: callers that arrive while a read is under way wait for the next one.
type sharedRead[T any] struct {
	group singleflight.Group
	// turn contains a value during a read.
	turn chan struct{}
}

func newSharedRead[T any]() *sharedRead[T] { return &sharedRead[T]{turn: make(chan struct{}, 1)} }

// do returns the result of a read that began after the call. The read has the deadline of the
// caller that waits longest, but does not end with that caller.
func (s *sharedRead[T]) do(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	const key = "" // There is one read.
	result, err, _ := s.group.Do(key, func() (any, error) {
		s.turn <- struct{}{}
		defer func() { <-s.turn }()
		s.group.Forget(key) // From here on, callers wait for the next read.
		reading, cancel := withoutCancel(ctx)
		defer cancel()
		return read(reading)
	})
	value, _ := result.(T)
	return value, err
}

// withoutCancel returns a context with the deadline of ctx that does not end with ctx before.
func withoutCancel(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, isSet := ctx.Deadline(); isSet {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}
