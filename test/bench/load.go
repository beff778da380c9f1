package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/test/fixture"
)

// loadInterval is the time between two samples of the load.
const loadInterval = 500 * time.Millisecond

// An apiLoad is the load of the API server by agents during a measurement.
type apiLoad struct {
	cluster  *benchCluster
	since    time.Time
	inflight atomic.Int64
}

// sampleLoad samples the load until ctx ends.
func (b *benchCluster) sampleLoad(ctx context.Context, group *errgroup.Group) *apiLoad {
	l := &apiLoad{cluster: b, since: time.Now()}
	group.Go(func() error {
		for fixture.Wait(ctx, loadInterval) == nil {
			now, err := b.inflight(ctx)
			if err != nil {
				return fmt.Errorf("reading the load of the API server: %w", err)
			}
			l.inflight.Store(max(l.inflight.Load(), now))
		}
		return nil
	})
	return l
}

// inflight returns how many requests the API server handles now, without watches.
func (b *benchCluster) inflight(ctx context.Context) (int64, error) {
	text, err := b.nodes.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	sum, err := fixture.SumSeries(string(text), "apiserver_current_inflight_requests")
	return int64(sum), err
}

// report adds the requests of all agents since the start of the measurement to the table.
func (l *apiLoad) report(t *resultTable, what string) error {
	requests, err := l.cluster.API.Requests(agentAccount)
	if err != nil {
		return err
	}
	taken, perSecond, total := time.Since(l.since), map[int64]int{}, 0
	for _, r := range requests {
		if r.Answered.After(l.since) {
			total++
			perSecond[r.Answered.Unix()]++
		}
	}
	busiest := slices.Max(append(slices.Collect(maps.Values(perSecond)), 0))
	t.add(resultRow{
		what: fmt.Sprintf("%s in %s: %s", what, taken.Round(time.Second), countRequests(requests, l.since)),
		median: fmt.Sprintf("%.0f/s, at most %d/s; %d in flight", float64(total)/taken.Seconds(), busiest,
			l.inflight.Load()),
	})
	return nil
}
