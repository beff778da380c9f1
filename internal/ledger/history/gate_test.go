package history

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// errCrashed is what a crashed replica's calls come back with; nobody is left to read it.
var errCrashed = errors.New("the replica has crashed")

// call is one request of a replica to the API server. It waits until the driver has it carried out and answered.
type call struct {
	replica *replica
	// asker is the review on whose behalf it is made, nil for the leader's.
	asker *review
	what  string
	write bool
	// do carries it out. It may be called although the caller has long gone.
	do    func() error
	began time.Time

	// done says that it was carried out, or failed: err is the answer.
	done  bool
	err   error
	reply chan struct{}
	// abandoned says that the caller did not wait. Guarded by the gate's mutex.
	abandoned bool
}

// gate holds the calls that wait.
type gate struct {
	mu    sync.Mutex
	calls []*call
	// rang tells the driver that there may be something to do.
	rang chan struct{}
}

func newGate() *gate { return &gate{rang: make(chan struct{}, 1)} }

func (g *gate) ring() {
	select {
	case g.rang <- struct{}{}:
	default:
	}
}

// pass makes a call and waits for its answer, or for the end of the context.
func (g *gate) pass(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err // client-go sends nothing then
	}
	c.asker, _ = ctx.Value(reviewKey{}).(*review)
	c.began, c.reply = time.Now(), make(chan struct{})
	g.mu.Lock()
	g.calls = append(g.calls, c)
	g.mu.Unlock()
	g.ring()
	select {
	case <-c.reply:
		return c.err
	case <-ctx.Done():
		g.mu.Lock()
		c.abandoned = true
		g.mu.Unlock()
		return ctx.Err()
	}
}

// waiting returns the calls whose callers wait for them, in an order that does not depend on how goroutines are scheduled,
// and takes out those that were abandoned.
func (g *gate) waiting() (waiting, abandoned []*call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if c.abandoned {
			abandoned = append(abandoned, c)
		} else {
			waiting = append(waiting, c)
		}
	}
	g.calls = slices.Clone(waiting)
	order := func(a, b *call) int {
		return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.replica.number, b.replica.number),
			cmp.Compare(a.asker.order(), b.asker.order()), cmp.Compare(a.what, b.what))
	}
	slices.SortStableFunc(waiting, order)
	slices.SortStableFunc(abandoned, order)
	return waiting, abandoned
}

// answer lets the caller have the answer of a call that is done.
func (g *gate) answer(c *call) {
	g.mu.Lock()
	g.calls = slices.DeleteFunc(g.calls, func(o *call) bool { return o == c })
	g.mu.Unlock()
	close(c.reply)
}

// carryOut does what the call asks for.
func (c *call) carryOut() {
	c.err, c.done = c.do(), true
}

// fail makes an error its answer.
func (c *call) fail(err error) { c.err, c.done = err, true }
