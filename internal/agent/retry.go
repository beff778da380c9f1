package agent

import (
	"errors"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// retries are the delays between attempts at something that fails: from 50 ms, doubling, never above 10 s (a cap of
// 8 s with a quarter of jitter on top).
func retries() wait.Backoff {
	return wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.25, Steps: 10, Cap: 8 * time.Second}
}

// jittered shortens d by up to a fifth, so that agents that were started together do not act together, and none later than
// was promised.
func jittered(d time.Duration) time.Duration {
	return wait.Jitter(d*4/5, 1.0/4)
}

// bell wakes one waiting goroutine. Rings before it listens become one.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// said remembers the last thing that was said of a matter, so that it is said once and again only when it changes.
type said struct{ last string }

// changed says whether text is news, and remembers it.
func (s *said) changed(text string) bool {
	if s.last == text {
		return false
	}
	s.last = text
	return true
}

// cause is what distinguishes one failure from another for a reader of the log: errors of the API server by their
// reason, those of the network by their number, since the full texts carry ports and times that never repeat.
func cause(err error) string {
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
