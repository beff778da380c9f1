package quorum

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// DecideUnlabelled decides for a node without the etcd label from cached data, without a probe.
// It refuses because of the missing label; with the label, Decide applies. It refuses for a node
//
//   - that has a member by binding, announcement or earlier grant; a member that has left its
//     cluster is not one because of a grant,
//   - that has the name of an earlier Node with a member, unless a grant gives that member up and
//     the agent of the node has reported,
//   - at whose address the observers on two other Nodes list a member that is not located: its own
//     agent has not announced the member yet,
//   - whose agent found a server that has never identified itself,
//   - whose agent has not reported yet, and at whose address one observer lists a member that is
//     not located.
func DecideUnlabelled(clusters []*v1alpha1.EtcdCluster, r Request) Verdict {
	for _, c := range filterClusters(clusters, func(c *v1alpha1.EtcdCluster) bool { return hasAssignedMember(c, r) }) {
		members, doubtful := assignedMembers(c, r)
		isAnnounced := r.announcesMemberOf(observation.ClusterIDOf(c))
		switch {
		case r.AgentSilent && !isAnnounced && len(members) > 0 && len(doubtful) == len(members):
			return refuseRegisteredAgain(c, members, r)
		case isAnnounced, len(members) > 0:
			return refuseClusterUnlabelled(observation.ClusterIDOf(c), members, doubtful, r)
		}
	}
	if len(r.Announced) > 0 {
		a := r.Announced[0]
		return refuseClusterUnlabelled(a.Cluster, []v1alpha1.MemberID{a.Member}, nil, r)
	}
	hasUnlocated := func(c *v1alpha1.EtcdCluster) bool { return len(unlocatedMembersAt(c, r, 2)) > 0 }
	if found := filterClusters(clusters, hasUnlocated); len(found) > 0 {
		members := unlocatedMembersAt(found[0], r, 2)
		return refuseClusterUnlabelled(observation.ClusterIDOf(found[0]), members, members, r)
	}
	if len(r.Unverified) > 0 {
		return refuseUnlabelled(fmt.Sprintf("an etcd server that has never identified itself "+
			"(%s)", joinPlaces(r.Unverified)), nil, r)
	}
	unreported := filterClusters(clusters, func(c *v1alpha1.EtcdCluster) bool { return isUnreported(c, r) })
	if len(unreported) > 0 {
		return refuseUnreported(unreported[0], r)
	}
	return Verdict{
		Allowed: true, Reason: NothingToProtect, Final: true,
		Message: fmt.Sprintf("no etcd member is known on node %s", r.Node),
	}
}

// assignedMembers returns the members of the cluster that are assigned to the node. The doubtful
// ones among them are assigned only by the Node's name. A member of an earlier Node of the same
// name is not included once a grant covers it: it counts as lost in any case, and the Node that has
// the name now may be another machine without etcd. Until the agent has reported, it may be the
// same machine, and a listed member may still run there.
func assignedMembers(c *v1alpha1.EtcdCluster, r Request) (members, doubtful []v1alpha1.MemberID) {
	t := newTarget(NewSnapshot(View{Cluster: c}), r)
	for _, id := range t.possibleMembers() {
		b := t.Bindings[id]
		isOfEarlierNode := b.Node == r.Node && b.NodeUID != r.UID
		switch {
		case observation.HasLeftLists(c, currentLists(c), id) && !t.isReported(id):
			// Only a grant still names it, for example that of a drain before the member was removed. The
			// older list of an observer that has become silent does not count.
		case !isOfEarlierNode || t.isAssignedToUID(id):
			members = append(members, id)
		case !HasGrant(c, b), r.AgentSilent && observation.IsListedByAny(placingLists(c), id):
			members, doubtful = append(members, id), append(doubtful, id)
		}
	}
	return members, doubtful
}

// isReported reports whether the node itself names the member.
func (t requestTarget) isReported(id v1alpha1.MemberID) bool {
	own := ownObservations(t.Cluster, t.Request)
	return slices.Contains(t.Announced, evidence.MemberRef{Cluster: observation.ClusterIDOf(t.Cluster), Member: id}) ||
		slices.ContainsFunc(own, func(o v1alpha1.Observation) bool { return o.LocalMember == id && !o.NoMember })
}

// isAssignedToUID reports whether the node itself, or a grant for this Node's UID, names the
// member.
func (t requestTarget) isAssignedToUID(id v1alpha1.MemberID) bool {
	return t.isReported(id) ||
		slices.ContainsFunc(t.Cluster.Spec.Grants, func(g v1alpha1.Grant) bool {
			return g.NodeUID == t.UID && slices.Contains(g.Members, id)
		})
}

// unlocatedMembersAt returns the members that observers on at least this many Nodes list at the
// node's addresses, and that are not located.
func unlocatedMembersAt(c *v1alpha1.EtcdCluster, r Request, observers int) []v1alpha1.MemberID {
	return slices.DeleteFunc(membersListedAt(c, r.Addresses, observers), func(id v1alpha1.MemberID) bool {
		return observation.IsLocated(c, id)
	})
}

// isUnreported reports whether a member of the cluster may be on the node, of which its own agent
// has not reported yet whether it found one.
//
// One list is enough here: the agent of another node notices a member first, and the next deletion
// may come before a second one does. A false list delays the deletion of such nodes, and of no
// others, until their agents have reported. Only an etcd host can publish one: a worker can found a
// cluster of its own, but is then its only observer, and the lists of such a cluster do not count.
func isUnreported(c *v1alpha1.EtcdCluster, r Request) bool {
	hosts := map[types.UID]bool{}
	for _, b := range c.Spec.Members {
		hosts[b.NodeUID] = true
	}
	return r.AgentSilent && len(hosts) > 1 && len(unlocatedMembersAt(c, r, 1)) > 0
}

// refuseUnreported refuses because one observer lists members at the node's address.
func refuseUnreported(c *v1alpha1.EtcdCluster, r Request) Verdict {
	members := unlocatedMembersAt(c, r, 1)
	var with, without []string
	for _, o := range placingLists(c) {
		if slices.ContainsFunc(members, func(id v1alpha1.MemberID) bool {
			m, found := observation.FindMember(o, id)
			return found && observation.IsAtAddress(m, r.Addresses)
		}) {
			with = append(with, o.Node)
		} else {
			without = append(without, o.Node)
		}
	}
	fact := fmt.Sprintf("node %s may have %s of etcd cluster %s: node %s lists it at an address of this node, "+
		"and the agent of this node has not reported whether etcd runs here",
		r.Node, joinIDs(members), observation.ClusterIDOf(c), strings.Join(with, ", "))
	if len(without) > 0 {
		fact += fmt.Sprintf("; the list of node %s does not have it there", strings.Join(without, ", "))
	}
	return Verdict{
		Reason: UnknownMember, Cluster: observation.ClusterIDOf(c), Members: members, Final: true,
		Message: refusalText(r, []string{fact},
			awaitAgentStep(r),
			fmt.Sprintf("if no agent can run on this node, find out on another etcd node than %s whether the member "+
				"is on this machine: etcdctl member list", strings.Join(with, ", "))),
	}
}

// refuseRegisteredAgain refuses because the machine of an earlier Node with these members may have
// registered this Node. The leader does not label it, because it may be another machine.
func refuseRegisteredAgain(c *v1alpha1.EtcdCluster, members []v1alpha1.MemberID, r Request) Verdict {
	fact := fmt.Sprintf("node %s may have %s of etcd cluster %s: an earlier Node of this name had %s, "+
		"and the agent of this node has not reported whether etcd runs here",
		r.Node, joinIDs(members), observation.ClusterIDOf(c), agree(len(members), "it", "them"))
	steps := []string{
		awaitAgentStep(r),
		fmt.Sprintf("if no agent can run on this node, set the label, and delete the node again: Holdfast then reviews "+
			"the deletion: kubectl label node %s %s=%s", r.Node, observation.EtcdMemberLabel, observation.EtcdMemberLabelValue),
	}
	return Verdict{
		Reason: UnknownMember, Cluster: observation.ClusterIDOf(c), Members: members, Final: true,
		Message: refusalText(r, []string{fact}, append(steps, removeGoneSteps(members)...)...),
	}
}

func awaitAgentStep(r Request) string {
	return fmt.Sprintf("wait until the agent of this node has reported, within seconds of its start, and delete the node "+
		"again: kubectl describe node %s (condition %s)", r.Node, observation.EtcdMemberCondition)
}

// removeGoneSteps returns the steps for members that are assigned to the node only by its name or
// address.
func removeGoneSteps(doubtful []v1alpha1.MemberID) (steps []string) {
	for _, m := range doubtful {
		steps = append(steps, fmt.Sprintf("if holdfast-agent inspect finds neither a server nor data of member %[1]s on "+
			"this machine, and the machine that had its name or address before is permanently gone: "+
			"etcdctl member remove %[1]s", m))
	}
	return steps
}

func refuseClusterUnlabelled(id v1alpha1.ClusterID, members, doubtful []v1alpha1.MemberID, r Request) Verdict {
	verdict := refuseUnlabelled(fmt.Sprintf("a member of etcd cluster %s", id), doubtful, r)
	verdict.Cluster, verdict.Members = id, members
	return verdict
}

// refuseUnlabelled refuses because the label is missing. Doubtful members are assigned only by
// the node's name or address.
func refuseUnlabelled(content string, doubtful []v1alpha1.MemberID, r Request) Verdict {
	fact := fmt.Sprintf("node %s has %s, but its label %s is missing; Holdfast reviews the deletion only with the label",
		r.Node, content, observation.EtcdMemberLabel)
	steps := []string{
		"wait a few seconds and delete the node again: Holdfast restores the label",
		fmt.Sprintf("or restore it yourself: kubectl label node %s %s=%s",
			r.Node, observation.EtcdMemberLabel, observation.EtcdMemberLabelValue),
	}
	steps = append(steps, removeGoneSteps(doubtful)...)
	return Verdict{Reason: UnknownMember, Final: true, Message: refusalText(r, []string{fact}, steps...)}
}
