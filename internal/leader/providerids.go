package leader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// sharedIDEvent is the reason of the event about two Nodes with the same provider ID.
const sharedIDEvent = "ProviderIDShared"

// reportSharedIDs logs and records when a Node with a member has the provider ID of another Node.
// cluster-autoscaler finds only one of them by it, and Karpenter registers neither. Both end a
// machine that they do not find or register, whatever the annotations of its Node.
func (l *Leader) reportSharedIDs(c *v1alpha1.EtcdCluster, index nodeIndex, s *clusterState) {
	text := strings.Join(sharedProviderIDs(c, index), "; ")
	if !s.logged.Changed("provider IDs", text) || text == "" {
		return
	}
	l.Log.Warn("nodes with members share provider IDs with other nodes", "etcd_cluster", c.Name, "shared", text)
	l.Event(c, sharedIDEvent, text+"; an autoscaler may end the machine of either without regard to annotations: "+
		"register each node again with the ID of its own machine")
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
				pair := []string{b.Node, name}
				slices.Sort(pair)
				found = append(found, fmt.Sprintf("nodes %s and %s have the same spec.providerID %s",
					pair[0], pair[1], bound.Spec.ProviderID))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
