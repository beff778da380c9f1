package clusterstore

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// View returns one version of the cluster together with its observations and the live states of all
// Nodes that matter to it, and of the additional Nodes named. It reads both now, side by side. A
// Node that could not be read until ctx ended has no known state. The caller adds the nonces that
// count, and the time.
func (s *Store) View(ctx context.Context, c *v1alpha1.EtcdCluster, additional ...string) (quorum.View, error) {
	var joined *v1alpha1.EtcdCluster
	states := map[string]observation.NodeState{}
	g, reading := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		joined, err = s.WithObservations(reading, c, additional...)
		return err
	})
	g.Go(func() error {
		s.readStates(reading, states, slices.Concat(NodeNames(c), additional))
		return nil
	})
	if err := g.Wait(); err != nil {
		return quorum.View{}, err
	}
	possible, err := s.possibleNodes(ctx, joined)
	if err != nil {
		return quorum.View{}, err
	}
	s.readStates(ctx, states, BoundNodeNames(possible))
	view := s.viewOf(joined, states)
	view.PossibleNodes = possible
	return view, nil
}

// readStates reads the named Nodes that have no state.
func (s *Store) readStates(ctx context.Context, states map[string]observation.NodeState, names []string) {
	missing := slices.DeleteFunc(names, func(name string) bool { _, isRead := states[name]; return isRead })
	maps.Copy(states, s.LiveStates(ctx, missing))
}

// CachedView returns the result of a probe request as the watches have delivered it, however old
// that is. It shows whether a View may be enough for a decision, and no decision is made from it.
func (s *Store) CachedView(p *ProbeRequest, additional string) (quorum.View, error) {
	result := p.Result()
	joined := observation.Join(result.Cluster, s.requester.observationsOf(p.uid))
	states := map[string]observation.NodeState{}
	for _, name := range append(NodeNames(joined), additional) {
		node, err := s.Nodes.Get(name)
		if err != nil {
			return quorum.View{}, err
		}
		states[name] = LiveNode{Node: node}.State(s.trimmer.Departures)
	}
	view := s.viewOf(joined, states)
	view.Nonces = result.Nonces
	return view, nil
}

func (s *Store) viewOf(joined *v1alpha1.EtcdCluster, states map[string]observation.NodeState) quorum.View {
	return quorum.View{Cluster: joined, Nodes: states, MinRemainingTolerance: s.tolerance}
}
