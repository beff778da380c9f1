package clusterstore

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// possibleNodes returns the Nodes where the members may run that are not located. The addresses and
// announcements come from the cache, because a Node keeps its addresses; the state of such a Node
// is then read live like that of any other. If the cache has no Node at an address of a member,
// that Node may have registered after the last event that the cache received, so all Nodes are
// listed (docs/verdict.md, F91).
func (s *Store) possibleNodes(ctx context.Context, c *v1alpha1.EtcdCluster) ([]v1alpha1.Binding, error) {
	unlocated := observation.Unlocated(c)
	if len(unlocated) == 0 {
		return nil, nil // The usual case. This avoids comparing the addresses of all nodes.
	}
	if cached, err := s.Nodes.List(); err == nil && s.Nodes.IsCurrent() {
		found := quorum.PossibleNodes(c, addressesOf(cached))
		isMissing := func(id v1alpha1.MemberID) bool {
			return !slices.ContainsFunc(found, func(b v1alpha1.Binding) bool {
				return b.MemberID == id && b.Basis != v1alpha1.BasisClaim
			})
		}
		if !slices.ContainsFunc(unlocated, isMissing) {
			return found, nil
		}
	}
	nodes, err := s.sharedNodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of members that are bound to no node: %w", err)
	}
	return quorum.PossibleNodes(c, addressesOf(nodes)), nil
}

func addressesOf(nodes []*corev1.Node) []observation.AnnouncingNode {
	all := make([]observation.AnnouncingNode, len(nodes))
	for i, node := range nodes {
		all[i] = observation.NodeOf(node)
	}
	return all
}
