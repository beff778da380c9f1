package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	rolloutSize = 5000
	// rolloutBatch is the number of agents that a rolling update of the DaemonSet replaces at a
	// time: maxUnavailable is 10 %.
	rolloutBatch = rolloutSize / 10
)

// measureRollout measures the load of the API server while a rolling update replaces 5,000 agents
// of released nodes, as fast as they can start. A DaemonSet is slower, because pods start slowly.
func measureRollout(ctx context.Context, b *benchCluster, t *resultTable) (err error) {
	f, err := newAgentFleet(b, "worker-rollout", rolloutSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.logFile.Close()) }()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	f.tick = time.Hour // All hosts are one. Its scans do not concern the API server.
	t.progress("registering %d nodes", len(f.list))
	if err := f.register(ctx); err != nil {
		return err
	}
	if _, err := b.writeSubnetFile(f.host); err != nil {
		return err
	}
	group, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	defer func() {
		stop()
		err = errors.Join(err, group.Wait())
	}()
	t.progress("starting %d agents", len(f.list))
	old, err := f.startBatches(running)
	defer func() {
		for _, one := range old {
			err = errors.Join(err, one.stop())
		}
	}()
	if err != nil {
		return err
	}
	t.progress("replacing %d agents, %d at a time", len(f.list), rolloutBatch)
	load := b.sampleLoad(running, group)
	for i := range old {
		if err := old[i].stop(); err != nil {
			return err
		}
		if old[i], err = f.startBatch(running, i); err != nil {
			return err
		}
	}
	throttled := f.throttledAnswers()
	t.add(resultRow{
		what:   fmt.Sprintf("rolling update of %d agents, %d at a time", len(f.list), rolloutBatch),
		median: ms(time.Since(load.since)),
		target: "no response \"too many requests\"", missed: throttled > 0,
	})
	return load.report(t, "  load by these agents")
}

// An agentBatch is a part of a fleet that is replaced at once.
type agentBatch struct {
	cancel context.CancelFunc
	agents *errgroup.Group
}

func (b agentBatch) stop() error {
	b.cancel()
	if err := b.agents.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// startBatches starts all agents, and waits until their nodes are released. It returns the batches
// that run, also with an error.
func (f *agentFleet) startBatches(ctx context.Context) ([]agentBatch, error) {
	var all []agentBatch
	for i := range len(f.list) / rolloutBatch {
		started, err := f.startBatch(ctx, i)
		if err != nil {
			return all, err
		}
		all = append(all, started)
	}
	for _, a := range f.list {
		if _, err := a.waitForRelease(ctx); err != nil {
			return all, err
		}
	}
	return all, nil
}

// startBatch starts the agents of a batch, and returns when each of them watches its Node.
func (f *agentFleet) startBatch(ctx context.Context, number int) (agentBatch, error) {
	running, cancel := context.WithCancel(ctx)
	agents, running := errgroup.WithContext(running)
	batch := agentBatch{cancel: cancel, agents: agents}
	list := f.list[number*rolloutBatch : (number+1)*rolloutBatch]
	var starting errgroup.Group
	starting.SetLimit(fleetParallelism)
	for _, a := range list {
		a.watching = make(chan struct{}, 1)
		starting.Go(func() error { return f.startOne(running, agents, a) })
	}
	err := starting.Wait()
	for _, a := range list {
		select {
		case <-a.watching:
		case <-running.Done():
			err = errors.Join(err, context.Cause(running))
		}
	}
	if err != nil {
		return batch, errors.Join(err, batch.stop())
	}
	return batch, nil
}
