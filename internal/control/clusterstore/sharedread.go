package clusterstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// A sharedRead makes one read for all callers that wait for it. A caller shares only a read that
// began after its call: callers that arrive while a read is under way wait for the next one.
type sharedRead[T any] struct {
	name string
	// turn contains a value during a read.
	turn chan struct{}
	// next is the result of the read that begins next.
	next atomic.Pointer[readResult[T]]
}

// A readResult is the result of a read. done is closed when it is set.
type readResult[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newSharedRead[T any](name string) *sharedRead[T] {
	s := &sharedRead[T]{name: name, turn: make(chan struct{}, 1)}
	s.next.Store(newReadResult[T]())
	return s
}

// errNotRead is the error of a read that has not ended. It stays after a panic.
var errNotRead = errors.New("an error of holdfast's own in the read of another review")

func newReadResult[T any]() *readResult[T] {
	return &readResult[T]{done: make(chan struct{}), err: errNotRead}
}

// maxSharedRead limits one read: others wait for it.
const maxSharedRead = 5 * time.Second

// do returns the result of a read that began after the call. The first caller that gets the turn
// reads. The read does not end with that caller, but has its deadline. If that passes, those who
// share the read begin another one.
func (s *sharedRead[T]) do(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	for ctx.Err() == nil {
		result, isOwn := s.next.Load(), false
		select {
		case s.turn <- struct{}{}:
			loop.Woke(ctx, s.name)
			isOwn = s.take(ctx, result, read)
		case <-result.done:
			loop.Woke(ctx, s.name)
		case <-ctx.Done():
			loop.Woke(ctx, s.name)
		}
		if isOwn || ctx.Err() == nil && !errors.Is(result.err, context.DeadlineExceeded) {
			return result.value, result.err
		}
	}
	var none T
	return none, context.Cause(ctx)
}

// take reads, and ends the turn. It reports false if ctx has ended, which may be known only after
// the turn was given, or if another caller has read this result before.
func (s *sharedRead[T]) take(
	ctx context.Context, result *readResult[T], read func(context.Context) (T, error),
) (isOwn bool) {
	defer func() { <-s.turn }()
	// From here on, callers wait for the next read.
	if ctx.Err() != nil || !s.next.CompareAndSwap(result, newReadResult[T]()) {
		return false
	}
	defer close(result.done)
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeLeft(ctx))
	defer cancel()
	result.value, result.err = read(reading)
	return true
}

// timeLeft returns the time until the deadline of ctx, at most maxSharedRead.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, isSet := ctx.Deadline(); isSet {
		return min(time.Until(deadline), maxSharedRead)
	}
	return maxSharedRead
}
