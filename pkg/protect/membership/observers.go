package membership

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// MaxUnboundObservers limits the observations of a cluster by Nodes to which no member is bound.
// Each agent can announce any cluster.
const MaxUnboundObservers = 30

// Observers returns, sorted, the Nodes whose agents may publish an observation of the cluster:
// those to which a member is bound, whether they exist or not, and those that announce the cluster.
// existing are those that may already, which take precedence if too many announce it. refused is a
// sentence about those that announce the cluster and may not publish, empty if there are none.
func Observers(c *v1alpha1.EtcdCluster, announcers, existing []string) (nodes []string, refused string) {
	for _, b := range c.Spec.Members {
		nodes = append(nodes, b.Node)
	}
	hasOne := func(node string) bool { return slices.Contains(existing, node) }
	first := slices.DeleteFunc(slices.Clone(announcers), func(node string) bool { return !hasOne(node) })
	unbound := slices.DeleteFunc(slices.Concat(first, slices.DeleteFunc(slices.Clone(announcers), hasOne)),
		func(node string) bool { return slices.Contains(nodes, node) })
	if left := len(unbound) - MaxUnboundObservers; left > 0 {
		unbound = unbound[:MaxUnboundObservers]
		refused = fmt.Sprintf("%d more Nodes announce the cluster, and only %d to which no member is bound may publish an "+
			"observation: find the Nodes with a wrong annotation, and stop their agents", left, MaxUnboundObservers)
	}
	nodes = append(nodes, unbound...)
	slices.Sort(nodes)
	return slices.Compact(nodes), refused
}
