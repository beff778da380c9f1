package clusterstore

import (
	"context"
	"time"

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

// maxSharedRead limits one read: others wait for it.
const maxSharedRead = 5 * time.Second

// do returns the result of a read that began after the call. The read does not end with the caller
// that began it, but has its deadline.
func (s *sharedRead[T]) do(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	const key = "" // There is one read.
	result, err, _ := s.group.Do(key, func() (any, error) {
		s.turn <- struct{}{}
		defer func() { <-s.turn }()
		s.group.Forget(key) // From here on, callers wait for the next read.
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeLeft(ctx))
		defer cancel()
		return read(reading)
	})
	value, _ := result.(T)
	return value, err
}

// timeLeft returns the time until the deadline of ctx, at most maxSharedRead.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, isSet := ctx.Deadline(); isSet {
		return min(time.Until(deadline), maxSharedRead)
	}
	return maxSharedRead
}
