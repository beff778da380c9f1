package world

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// A Controller does what is due in rounds, one after the other.
type Controller struct {
	// Name is the name of the controller in the log.
	Name string
	// Round does what is due. It must not rest on what earlier rounds have read: a later round repeats
	// what fails in this one.
	Round func(context.Context, World) error
	// Wake begins the next round. Every change of the World does that too.
	Wake loop.Signal
	// Tick is the time between two rounds if nothing wakes the controller, and Pause the shortest time
	// between two rounds.
	Tick, Pause time.Duration
	// InEveryReplica means that the controller runs without leadership.
	InEveryReplica bool
	// Watch follows more than the World beside the rounds, until its context ends. Optional.
	Watch func(context.Context)
	// Stop is called after the last round. Optional.
	Stop func()
}

// A Loop runs controllers.
type Loop struct {
	Store *clusterstore.Store
	// Elected is closed once this replica leads.
	Elected <-chan struct{}
	Log     *slog.Logger
}

// A Runnable is a controller for the manager of controller-runtime.
type Runnable struct {
	Controller
	loop Loop
}

// Runnables returns the controllers as runnables, which each change of the World wakes from now on.
func (l Loop) Runnables(controllers ...Controller) ([]Runnable, error) {
	runnables := make([]Runnable, len(controllers))
	for i, c := range controllers {
		runnables[i] = Runnable{c, l}
	}
	wake := func() {
		for _, c := range controllers {
			c.Wake.Notify()
		}
	}
	return runnables, errors.Join(onChange(l.Store, wake)...)
}

// NeedLeaderElection reports whether the manager starts the controller in the leader only.
func (r Runnable) NeedLeaderElection() bool { return !r.InEveryReplica }

// Start runs the controller until ctx ends, and then returns nil.
func (r Runnable) Start(ctx context.Context) error {
	if r.Stop != nil {
		defer r.Stop()
	}
	if r.Watch != nil {
		var watching sync.WaitGroup
		watching.Go(func() { r.Watch(ctx) })
		defer watching.Wait()
	}
	if !r.loop.Store.WaitForSync(ctx) {
		return nil
	}
	var logged loop.LogOnce
	loop.Rounds{
		Do: r.round, Pause: r.Pause, Wake: r.Wake, Idle: func() time.Duration { return max(0, r.Tick-r.Pause) },
		Done: func(err error) {
			if logged.ChangedErrorText("", err) && err != nil {
				r.loop.Log.ErrorContext(ctx, "failed to complete a round; retrying", "controller", r.Name, "err", err)
			}
		},
	}.Run(ctx)
	return nil
}

func (r Runnable) round(ctx context.Context) error {
	w, err := Read(ctx, r.loop.Store)
	if err != nil {
		return err
	}
	w.IsLeading = r.loop.isLeading()
	return r.Round(ctx, w)
}

func (l Loop) isLeading() bool {
	select {
	case <-l.Elected:
		return true
	default:
		return false
	}
}
