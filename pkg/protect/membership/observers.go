package membership

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	// MaxUnboundObservers limits the observations of a cluster by Nodes to which no member is bound.
	// Each agent can announce any cluster.
	MaxUnboundObservers = 30
	// maxObserverName limits the name of a Node. The name of its EtcdObservation also has the cluster
	// ID, of up to 16 characters, and a dot, and the API server accepts 253.
	maxObserverName = 236
)

// Observers returns, sorted, the Nodes whose agents may publish an observation of the cluster:
// those to which a member is bound, whether they exist or not, and those that announce the cluster.
// existing are those that may already, which take precedence if too many announce it. refused has a
// sentence about those that announce the cluster and may not publish.
func Observers(c *v1alpha1.EtcdCluster, announcers, existing []string) (nodes, refused []string) {
	for _, b := range c.Spec.Members {
		nodes = append(nodes, b.Node)
	}
	unbound, left := 0, 0
	isBound := func(node string) bool {
		return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.Node == node })
	}
	hasOne := func(node string) bool { return slices.Contains(existing, node) }
	first := slices.DeleteFunc(slices.Clone(announcers), func(node string) bool { return !hasOne(node) })
	last := slices.DeleteFunc(slices.Clone(announcers), hasOne)
	for _, node := range slices.Concat(first, last) {
		switch {
		case isBound(node):
		case unbound == MaxUnboundObservers:
			left++
		default:
			unbound++
			nodes = append(nodes, node)
		}
	}
	if left > 0 {
		refused = append(refused, fmt.Sprintf("%d more Nodes announce the cluster, and only %d to which no member is "+
			"bound may publish an observation: find the Nodes with a wrong annotation, and stop their agents",
			left, MaxUnboundObservers))
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	isTooLong := func(node string) bool { return len(node) > maxObserverName }
	for _, node := range slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return !isTooLong(node) }) {
		refused = append(refused, fmt.Sprintf("the name of node %s has more than %d characters, so its agent cannot "+
			"publish an observation: the other nodes observe its member; give its replacement a shorter name",
			node, maxObserverName))
	}
	return slices.DeleteFunc(nodes, isTooLong), refused
}
