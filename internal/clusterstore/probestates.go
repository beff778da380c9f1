package clusterstore

import (
	"context"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Result returns the newest version of the object, with the nonces that count for it.
func (p *ProbeRequest) Result() ProbeResult {
	p.requester.mu.Lock()
	defer p.requester.mu.Unlock()
	return ProbeResult{Cluster: p.latest, Nonces: slices.Clone(p.nonces), Changed: p.changed}
}

// liveStates returns the states of the named Nodes since the request began. All reviews that share
// the request read each Node once. A Node that cannot be read is read again for the next review.
func (p *ProbeRequest) liveStates(
	ctx context.Context, names []string, read func(context.Context, []string) map[string]observation.NodeState,
) map[string]observation.NodeState {
	for {
		known, missing, reading := p.knownStates(names)
		switch {
		case len(missing) == 0:
			return known
		case reading != nil:
			select {
			case <-reading:
				continue
			case <-ctx.Done():
				return known
			}
		}
		states := read(ctx, missing)
		p.addStates(states)
		maps.Copy(known, states)
		return known
	}
}

// knownStates returns the states that are known, and the names of the others. If reading is nil,
// the caller has to read those and call addStates.
func (p *ProbeRequest) knownStates(names []string) (
	known map[string]observation.NodeState, missing []string, reading <-chan struct{},
) {
	p.requester.mu.Lock()
	defer p.requester.mu.Unlock()
	known = make(map[string]observation.NodeState, len(names))
	for _, name := range names {
		if state, ok := p.nodes[name]; ok {
			known[name] = state
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 && p.reading == nil {
		p.reading = make(chan struct{})
		return known, missing, nil
	}
	return known, missing, p.reading
}

func (p *ProbeRequest) addStates(states map[string]observation.NodeState) {
	p.requester.mu.Lock()
	defer p.requester.mu.Unlock()
	for name, state := range states {
		if state.Known {
			p.nodes[name] = state
		}
	}
	close(p.reading)
	p.reading = nil
}
