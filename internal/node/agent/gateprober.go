package agent

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// probeInterval is the time between the end of a probe and the next one while the node is held.
const probeInterval = time.Second

// A gateProber probes the endpoints of gates beside the node loop, because a probe may take
// seconds. Each endpoint has a goroutine of its own, which makes one probe at a time, and none
// while the decision about the node does not need it.
type gateProber struct {
	cfg Config
	// changed is called when a result has changed.
	changed func()
	gates   []*probedGate
}

// probedGate is one endpoint with the result of its last probe.
type probedGate struct {
	endpoint readiness.Endpoint
	wake     loop.Signal // set when a probe is due earlier

	mu sync.Mutex
	// interval is the time between two probes, 0 if none are needed.
	interval time.Duration
	// generation counts the times at which probes were needed again. A result of an earlier
	// generation is dropped: it may be from before the hold.
	generation int
	result     readiness.Probe
}

func newGateProber(cfg Config, changed func()) *gateProber {
	p := &gateProber{cfg: cfg, changed: changed}
	for _, endpoint := range cfg.Policy.Endpoints() {
		p.gates = append(p.gates, &probedGate{
			endpoint: endpoint, wake: loop.NewSignal(), result: readiness.Probe{Gate: endpoint.Gate},
		})
	}
	return p
}

// run probes until the context ends. Without gates it has nothing to do.
func (p *gateProber) run(ctx context.Context) error {
	var group errgroup.Group
	for _, g := range p.gates {
		group.Go(func() error { return p.runGate(ctx, g) })
	}
	return group.Wait()
}

func (p *gateProber) runGate(ctx context.Context, g *probedGate) error {
	for {
		g.mu.Lock()
		interval, generation := g.interval, g.generation
		g.mu.Unlock()
		if interval == 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-g.wake:
			}
			continue
		}
		err := p.cfg.ProbeGate(ctx, g.endpoint)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g.record(generation, err, time.Now()) {
			p.changed()
		}
		if err := loop.Wait(ctx, interval, g.wake); err != nil {
			return err
		}
	}
}

// follow sets how often the gates are probed, as a decision about the hold needs it.
func (p *gateProber) follow(d readiness.Decision) {
	var interval time.Duration
	switch {
	case d.NeedsProbes && d.Held:
		interval = probeInterval
	case d.NeedsProbes:
		interval = p.cfg.Tick
	}
	for _, g := range p.gates {
		g.setInterval(interval)
	}
}

func (p *gateProber) results() []readiness.Probe {
	var results []readiness.Probe
	for _, g := range p.gates {
		g.mu.Lock()
		results = append(results, g.result)
		g.mu.Unlock()
	}
	return results
}

func (g *probedGate) setInterval(interval time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if interval == 0 && g.interval != 0 {
		g.generation++
		g.result = readiness.Probe{Gate: g.endpoint.Gate}
	}
	if interval != 0 && (g.interval == 0 || interval < g.interval) {
		g.wake.Notify()
	}
	g.interval = interval
}

// record stores the result of a probe and reports whether it differs from the one before.
func (g *probedGate) record(generation int, err error, now time.Time) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if generation != g.generation {
		return false
	}
	next := g.endpoint.Result(g.result, err, now)
	changed = next != g.result
	g.result = next
	return changed
}
