package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// joinTime is the time in which fleetSize nodes register.
const joinTime = time.Minute

// measureJoin measures 1,000 nodes that register within a minute, each with an agent that starts
// then, on a host whose network is ready. It measures the time from the registration, held, to the
// release, and the load of the API server.
func measureJoin(ctx context.Context, b *benchCluster, t *resultTable) (err error) {
	f, err := newAgentFleet(b, "worker-join", fleetSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.logFile.Close()) }()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	if err := b.registerHeld(ctx, f.host); err != nil {
		return err
	}
	if _, err := b.writeSubnetFile(f.host); err != nil {
		return err
	}
	t.progress("registering %d nodes in %s", len(f.list), joinTime)
	running, stop := context.WithCancel(ctx)
	agents, running := errgroup.WithContext(running)
	defer func() {
		stop()
		if ended := agents.Wait(); !errors.Is(ended, context.Canceled) {
			err = errors.Join(err, ended)
		}
	}()
	if err := f.startWatch(running, agents); err != nil {
		return err
	}
	load := b.sampleLoad(running, agents)
	taken, err := f.join(running, agents)
	if err != nil {
		return err
	}
	throttled := f.throttledAnswers()
	t.add(resultRow{
		what:   fmt.Sprintf("%d nodes that register in %s, from the registration to the release", len(f.list), joinTime),
		median: ms(taken.median()), p99: ms(taken.p99()),
		target: "no response \"too many requests\"", missed: throttled > 0,
	})
	return load.report(t, "  load by these agents")
}

// join registers the nodes one after the other and starts their agents. It returns how long each
// node was held.
func (f *agentFleet) join(ctx context.Context, agents *errgroup.Group) (durations, error) {
	limit := rate.NewLimiter(rate.Limit(float64(len(f.list))/joinTime.Seconds()), 1)
	registered := make([]time.Time, len(f.list))
	var joining errgroup.Group
	joining.SetLimit(fleetParallelism)
	for i, a := range f.list {
		if err := limit.Wait(ctx); err != nil {
			return nil, errors.Join(err, joining.Wait())
		}
		joining.Go(func() error {
			if err := f.registerOne(ctx, a); err != nil {
				return err
			}
			registered[i] = time.Now()
			return f.startOne(ctx, agents, a)
		})
	}
	if err := joining.Wait(); err != nil {
		return nil, err
	}
	var taken durations
	for i, a := range f.list {
		released, err := a.waitForRelease(ctx)
		if err != nil {
			return nil, err
		}
		taken = append(taken, released.Sub(registered[i]))
	}
	return taken, nil
}
