package loop

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// steady is how long a call must last for its failure to count as a first one.
const steady = time.Minute

// A Retry returns the delays between attempts. It is a wait.Backoff that can be reset. It is
// not safe for concurrent use.
type Retry struct{ initial, current wait.Backoff }

// NewRetry returns a Retry that begins with the first delay of b.
func NewRetry(b wait.Backoff) *Retry { return &Retry{initial: b, current: b} }

// Next returns the delay before the next attempt.
func (r *Retry) Next() time.Duration { return r.current.Step() }

// Reset makes Next return the first delay again. Call it after a success.
func (r *Retry) Reset() { r.current = r.initial }

// Wait waits for the next delay. If ctx ends first, Wait returns the cause.
func (r *Retry) Wait(ctx context.Context) error { return Wait(ctx, r.Next(), nil) }

// KeepRunning calls run, for example a watch, and calls it again whenever it returns, until ctx
// ends; then it returns the cause. The delays between the calls are those of b. They begin again
// with the first one after a call that lasted more than a minute.
//
// KeepRunning calls failed with the error of run, unless the previous call ended with an error
// of the same kind (see LogOnce.ChangedError). An error after more than a minute is always
// reported.
func KeepRunning(ctx context.Context, b wait.Backoff, run func(context.Context) error, failed func(error)) error {
	retry, logged := NewRetry(b), LogOnce{}
	for {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(began) > steady {
			retry.Reset()
			logged = LogOnce{}
		}
		if logged.ChangedError("", err) && err != nil {
			failed(err)
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}
