package quorum

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// MachineAddresses returns the Addresses of a grant for the Node of these members. The members that
// no confirmed list contains add nothing.
func MachineAddresses(c *v1alpha1.EtcdCluster, ids []v1alpha1.MemberID, nodeAddresses []string) []string {
	var members []v1alpha1.MemberStatus
	for _, o := range observation.Confirmed(observation.Accepted(c)) {
		for _, m := range o.Members {
			if slices.Contains(ids, m.ID) {
				members = append(members, m)
			}
		}
	}
	return observation.MachineAddresses(members, nodeAddresses)
}

// IsReplaced reports whether a machine that is known to be different has registered a Node with the
// name of the grant's Node.
func IsReplaced(g v1alpha1.Grant, n observation.NodeState) bool {
	machine := observation.NewMachine(g.MachineID, g.SystemUUID)
	return n.Known && n.UID != "" && n.UID != g.NodeUID && machine.IsOther(n.Machine)
}

// unlocatedHosts returns the hosts of the peer URLs of the members whose binding does not show
// where they run, according to all confirmed lists of observers. Only grants need them.
func unlocatedHosts(c *v1alpha1.EtcdCluster) map[v1alpha1.MemberID][]string {
	if len(c.Spec.Grants) == 0 {
		return nil
	}
	found := map[v1alpha1.MemberID][]string{}
	for _, o := range observation.Confirmed(observation.Accepted(c)) {
		for _, m := range o.Members {
			if !observation.IsLocated(c, m.ID) {
				found[m.ID] = append(found[m.ID], observation.PeerHosts(m)...)
			}
		}
	}
	return found
}

// GivenUpBy returns, sorted, the members that a grant covers.
func (s Snapshot) GivenUpBy(g v1alpha1.Grant) []v1alpha1.MemberID {
	found := map[v1alpha1.MemberID]bool{}
	for _, id := range g.Members {
		found[id] = true
	}
	for id := range s.Bindings {
		found[id] = s.isGranted(id, g)
	}
	for id := range s.unlocatedHosts {
		found[id] = s.isGranted(id, g)
	}
	return observation.SortedIDs(found)
}

// hasReturned reports whether the member joined again on the machine that the grant gives up. It is
// then on a younger Node of the same name, or it is at an address of the machine, and no binding
// shows that it runs elsewhere: etcd may start before the kubelet registers. The claim of another
// Node alone does not show that.
func (s Snapshot) hasReturned(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	n := s.Nodes[g.Node]
	if IsReplaced(g, n) {
		return false
	}
	isOnYounger := func(b v1alpha1.Binding) bool {
		return b.Node == g.Node && b.NodeUID == n.UID // The grant names the members of its own Node.
	}
	isAtMachine := func(host string) bool { return slices.Contains(g.Addresses, host) }
	return slices.ContainsFunc(s.nodesOf(id), isOnYounger) || slices.ContainsFunc(s.unlocatedHosts[id], isAtMachine)
}

// describeReturn explains why a member that joined again counts as lost, and until when.
func describeReturn(g v1alpha1.Grant) string {
	if g.Reason == v1alpha1.GrantDrain {
		return "it joined again on a machine that may still restart or go: " + describeGrant(g, "the machine's node")
	}
	return fmt.Sprintf("it joined again on a machine that may still be removed: %s; it counts again when the agent "+
		"of its node has proven it healthy for %s, not before %s", describeGrant(g, "the machine's earlier node"),
		ResolveMovedAfter, g.Time.Add(ResolveMovedAfter).UTC().Format(time.RFC3339))
}
