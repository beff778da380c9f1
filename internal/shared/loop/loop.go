// Package loop has the parts that every loop of this module needs. A Signal wakes the loop, a
// LogOnce keeps its log short, and a Retry paces attempts after a failure. Rounds is the loop of a
// controller.
package loop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// A Signal wakes one waiting goroutine. Notifications that arrive before the goroutine waits
// become one. A receive from a nil Signal blocks, which suits a case of a select statement
// that is switched off.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Notify sets the signal. It never blocks.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default: // It is set already.
	}
}

// Wait returns nil after d, or as soon as wake delivers. A nil wake never does. If ctx ends
// first, Wait returns the cause.
func Wait(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-wake:
	}
	return nil
}

// A LogOnce remembers the last logged text of each subject, so that a loop logs a change once
// instead of logging the same text in every round. The zero value is ready to use. It is not
// safe for concurrent use.
type LogOnce struct{ last map[string]string }

// Changed records the text of a subject, such as the last error of a watch, and reports
// whether the text differs from the one before. The empty text stands for "no failure": it is
// a change only after another text, and it removes the subject from memory.
func (o *LogOnce) Changed(subject, text string) bool {
	if o.last[subject] == text {
		return false
	}
	if text == "" {
		delete(o.last, subject)
		return true
	}
	if o.last == nil {
		o.last = map[string]string{}
	}
	o.last[subject] = text
	return true
}

// ChangedErrorText is Changed with the text of err.
func (o *LogOnce) ChangedErrorText(subject string, err error) bool {
	if err == nil {
		return o.Changed(subject, "")
	}
	return o.Changed(subject, err.Error())
}

// ChangedErrorKind is Changed with the kind of err as the text. The kind of an error from the API
// server is its reason, and the kind of a network error is its number: their full texts contain
// ports and times that never repeat. The kind of any other error is its text.
func (o *LogOnce) ChangedErrorKind(subject string, err error) bool {
	return o.Changed(subject, kindOf(err))
}

func kindOf(err error) string {
	var errno syscall.Errno
	switch reason := apierrors.ReasonForError(err); {
	case err == nil:
		return ""
	case reason != metav1.StatusReasonUnknown:
		return string(reason)
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// RecoverPanic calls f and returns a panic of f as an error. It is for work in a goroutine of
// its own: a panic there would end the process, because no caller can recover from it.
func RecoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("an error of holdfast's own, please report it: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// steady is how long a call must last for its failure to count as a first one.
const steady = time.Minute

// Backoff returns the delays between attempts after failures. They double up to the limit, and are
// up to a quarter longer at random, so that programs which fail together do not retry together.
func Backoff(first, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: 2, Jitter: 0.25, Steps: math.MaxInt, Cap: limit}
}

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
// of the same kind (see LogOnce.ChangedErrorKind). An error after more than a minute is always
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
		if logged.ChangedErrorKind("", err) && err != nil {
			failed(err)
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}
