package leader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// A nodeIndex holds all Nodes of the cache by name.
type nodeIndex map[string]indexedNode

// An indexedNode is a Node with the members that it announces: none if that cannot be parsed.
type indexedNode struct {
	*corev1.Node
	announced []evidence.MemberRef
}

// indexNodes logs the announcements that cannot be parsed.
func (l *Leader) indexNodes(nodes []*corev1.Node) nodeIndex {
	index := make(nodeIndex, len(nodes))
	for _, node := range nodes {
		announced, err := observation.AnnouncedOn(node)
		if l.logged.ChangedErrorText("announcement/"+node.Name, err) && err != nil {
			l.Log.Warn("failed to parse the announcement on a node", "node", node.Name, "err", err)
		}
		index[node.Name] = indexedNode{node, announced}
	}
	return index
}

// announcers returns, sorted, the names of the Nodes that announce a member of the cluster.
func (n nodeIndex) announcers(c *v1alpha1.EtcdCluster) []string {
	var names []string
	for name, node := range n {
		if isAmong(node.announced, observation.ClusterIDOf(c)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// cachedNodes returns the Nodes as they are in the cache: good enough for a summary, never for a
// decision.
func (n nodeIndex) cachedNodes(names []string) map[string]clusterstore.LiveNode {
	found := make(map[string]clusterstore.LiveNode, len(names))
	for _, name := range names {
		found[name] = clusterstore.LiveNode{Node: n[name].Node}
	}
	return found
}

// announcingNodes returns all Nodes as bindings are made from them, sorted by name: the live Nodes
// as they are now, and the others, of which only the addresses matter, as they are in the cache. It
// fails if a Node could not be read, because a Node that is not in the result counts as gone.
func (n nodeIndex) announcingNodes(live map[string]clusterstore.LiveNode) ([]observation.AnnouncingNode, error) {
	current := maps.Clone(n)
	for name, l := range live {
		if l.Err != nil {
			return nil, fmt.Errorf("reading node %q: %w", name, l.Err)
		}
		current[name] = indexedNode{Node: l.Node}
	}
	var found []observation.AnnouncingNode
	for _, node := range current {
		if node.Node != nil {
			found = append(found, observation.NodeOf(node.Node))
		}
	}
	slices.SortFunc(found, func(a, b observation.AnnouncingNode) int { return strings.Compare(a.Node, b.Node) })
	return found, nil
}

// possibleNodes returns the Nodes where the members may run that are not located, by the cache.
func (n nodeIndex) possibleNodes(c *v1alpha1.EtcdCluster) []v1alpha1.Binding {
	if len(observation.Unlocated(c)) == 0 {
		return nil // The usual case. This avoids comparing the addresses of all nodes.
	}
	var all []observation.AnnouncingNode
	for _, node := range n {
		all = append(all, observation.NodeOf(node.Node))
	}
	return quorum.PossibleNodes(c, all)
}

func announces(node *corev1.Node, id v1alpha1.ClusterID) bool {
	announced, _ := observation.AnnouncedOn(node)
	return isAmong(announced, id)
}

func isAmong(announced []evidence.MemberRef, id v1alpha1.ClusterID) bool {
	return slices.ContainsFunc(announced, func(ref evidence.MemberRef) bool { return ref.Cluster == id })
}

// restoreLabels sets the label on Nodes that hold a member and lack it. Without the label, the
// entry that fails open reviews the deletion of the Node.
//
// The agent of a Node to which no member is bound may be right that it has none; it then removes
// the label again. Or it scanned before etcd was installed, and no longer runs. Therefore the
// leader labels such a Node once for the members that are listed there.
func (l *Leader) restoreLabels(ctx context.Context, c *v1alpha1.EtcdCluster, index nodeIndex, s *clusterState) error {
	by, names := labelSources(c), clusterstore.BoundNodeNames(c.Spec.Members)
	if by != place.Bound {
		names = slices.Collect(maps.Keys(index))
	}
	slices.Sort(names)
	var lacking []observation.AnnouncingNode
	for _, name := range slices.Compact(names) {
		if n, exists := index[name]; exists && l.needsLabel(n.Node) {
			lacking = append(lacking, observation.NodeOf(n.Node))
		}
	}
	places := map[string][]place.Place{}
	for _, p := range place.Of(c, lacking) {
		places[p.Node] = append(places[p.Node], p)
	}
	var errs []error
	for _, n := range lacking {
		node, bound := index[n.Node].Node, place.Members(places[n.Node], place.Bound)
		members := place.Members(places[n.Node], by)
		listed := observation.JoinIDs(members, ", ")
		switch {
		case len(bound) > 0:
			errs = append(errs, l.restoreLabel(ctx, c, node, "it is bound to member "+observation.JoinIDs(bound, ", ")))
		case len(members) > 0 && (!hasNoMemberCondition(node) || s.labelled[node.UID] != listed):
			err := l.restoreLabel(ctx, c, node,
				"two other nodes list a member at its address, but its own agent has not announced it yet")
			if err == nil {
				s.labelled[node.UID] = listed
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// needsLabel reports whether the Node must get the label. It must not while a valid break-glass
// annotation is set: users remove the label to delete a node while the webhook is not reachable.
func (l *Leader) needsLabel(node *corev1.Node) bool {
	_, err := quorum.ParseBreakGlass(node.Annotations[quorum.BreakGlassAnnotation], node.UID, l.Now())
	return !observation.IsLabelled(node) && err != nil
}

// labelSources returns the sources because of which a Node gets the label: place.Label, or less.
//
// While no list is confirmed, the last known ones count, as in a review (docs/verdict.md, F89). As
// long as no observer has answered the last probe request, it is not known whether one is. Without
// a confirmed list, the member that a grant names may have left.
func labelSources(c *v1alpha1.EtcdCluster) place.Source {
	isUnlocated := func(m v1alpha1.MemberStatus) bool { return !observation.IsLocated(c, m.ID) }
	hasUnlocated := func(o v1alpha1.Observation) bool { return slices.ContainsFunc(o.Members, isUnlocated) }
	answers := observation.AcceptedWithNonce(c, []string{c.Spec.Nonce})
	switch {
	case len(answers) == 0 || !slices.ContainsFunc(observation.Accepted(c), hasUnlocated):
		return place.Bound // The usual case. This avoids comparing the addresses of all nodes.
	case len(observation.Confirmed(answers)) == 0:
		return place.Label &^ place.Granted
	}
	return place.Label
}

func hasNoMemberCondition(node *corev1.Node) bool {
	c := readiness.FindCondition(node, observation.EtcdMemberCondition)
	return c != nil && c.Status == corev1.ConditionFalse
}

func (l *Leader) restoreLabel(ctx context.Context, c *v1alpha1.EtcdCluster, node *corev1.Node, why string) error {
	isSet, err := l.Store.LabelNode(ctx, node)
	if err != nil || !isSet {
		return err
	}
	l.Log.Warn("restored the label on a node with a member", "node", node.Name, "etcd_cluster", c.Name, "reason", why)
	l.recordEvent(c, corev1.EventTypeNormal, "LabelRestored",
		fmt.Sprintf("node %s lacked the label %s: %s", node.Name, observation.EtcdMemberLabel, why))
	return nil
}

// reportSharedIDs logs and records when a Node with a member has the provider ID of another Node.
// cluster-autoscaler finds only one of them by it, and Karpenter registers neither. Both end a
// machine that they do not find or register, whatever the annotations of its Node.
func (l *Leader) reportSharedIDs(c *v1alpha1.EtcdCluster, index nodeIndex, s *clusterState) {
	text := strings.Join(sharedProviderIDs(c, index), "; ")
	if !s.logged.Changed("provider IDs", text) || text == "" {
		return
	}
	l.Log.Warn("nodes with members share provider IDs with other nodes", "etcd_cluster", c.Name, "shared", text)
	l.recordEvent(c, corev1.EventTypeWarning, "ProviderIDShared", text+"; an autoscaler may end the machine of either "+
		"without regard to annotations: keep both out of its node groups, and give new machines an ID of their own")
}

// sharedProviderIDs describes, sorted, the provider IDs of bound Nodes that other Nodes have too.
func sharedProviderIDs(c *v1alpha1.EtcdCluster, index nodeIndex) []string {
	var found []string
	for _, b := range c.Spec.Members {
		bound, exists := index[b.Node]
		if !exists || bound.UID != b.NodeUID || bound.Spec.ProviderID == "" {
			continue
		}
		for name, other := range index {
			if name != b.Node && other.Spec.ProviderID == bound.Spec.ProviderID {
				found = append(found, fmt.Sprintf("nodes %s and %s have the same spec.providerID %s",
					min(b.Node, name), max(b.Node, name), bound.Spec.ProviderID))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
