package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// DecideUnlabelled decides for a node without the etcd label from cached data, without a probe.
// It refuses because of the missing label; with the label, Decide applies. It refuses for a node
// that may have a member (place.Unlabelled), and for one whose agent found a server that has never
// identified itself. Until the agent of the node has reported, weaker sources suffice.
func DecideUnlabelled(clusters []*v1alpha1.EtcdCluster, r Request) Verdict {
	having := func(by place.Source) []*v1alpha1.EtcdCluster {
		return filterClusters(clusters, func(c *v1alpha1.EtcdCluster) bool { return len(place.Members(r.places(c), by)) > 0 })
	}
	certain, possible := having(place.Unlabelled), having(r.unlabelled())
	switch {
	case len(certain) > 0:
		return refuseClusterUnlabelled(certain[0], r)
	case len(r.Announced) > 0:
		a := r.Announced[0]
		verdict := refuseUnlabelled(fmt.Sprintf("a member of etcd cluster %s", a.Cluster), nil, r)
		verdict.Cluster, verdict.Members = a.Cluster, []v1alpha1.MemberID{a.Member}
		return verdict
	case len(r.Unverified) > 0:
		return refuseUnlabelled(fmt.Sprintf("an etcd server that has never identified itself "+
			"(%s)", joinPlaces(r.Unverified)), nil, r)
	case len(possible) > 0:
		return refuseUnreported(possible[0], r)
	}
	return Verdict{
		Allowed: true, Reason: NothingToProtect, Final: true,
		Message: fmt.Sprintf("no etcd member is known on node %s", r.Node),
	}
}

// unlabelled returns the sources because of which the Node is not deleted without the label.
func (r Request) unlabelled() place.Source {
	if r.AgentSilent {
		return place.UnlabelledSilent
	}
	return place.Unlabelled
}

// refuseUnreported refuses because members may be on the node whose agent has not reported: the
// machine of an earlier Node may have registered this one, or one list has them at its address. The
// leader does not label it, because it may be another machine.
//
// One list is enough here: the agent of another node notices a member first, and the next deletion
// may come before a second one does. A false list delays the deletion of such nodes, and of no
// others, until their agents have reported. Only an etcd host can publish one: a worker can found a
// cluster of its own, but is then its only observer, and the lists of such a cluster do not count.
func refuseUnreported(c *v1alpha1.EtcdCluster, r Request) Verdict {
	members := place.Members(r.places(c), r.unlabelled())
	steps, why, rest := []string{awaitAgentStep(r)}, "", ""
	if slices.ContainsFunc(r.places(c), func(p place.Place) bool { return p.By&place.NameGivenUp != 0 }) {
		why = "an earlier Node of this name had " + agree(len(members), "it", "them")
		steps = append(steps, fmt.Sprintf("if no agent can run on this node, set the label, and delete the node again: "+
			"Holdfast then reviews the deletion: %s", labelCommand(r)))
		steps = append(steps, removeGoneSteps(members)...)
	} else {
		with, without := listersOf(c, members, r)
		why = fmt.Sprintf("node %s lists it at an address of this node", with)
		if without != "" {
			rest = fmt.Sprintf("; the list of node %s does not have it there", without)
		}
		steps = append(steps, fmt.Sprintf("if no agent can run on this node, find out on another etcd node than %s whether "+
			"the member is on this machine: etcdctl member list", with))
	}
	fact := fmt.Sprintf("node %s may have %s of etcd cluster %s: %s, and the agent of this node has not reported whether "+
		"etcd runs here%s", r.Node, joinIDs(members), observation.ClusterIDOf(c), why, rest)
	return Verdict{
		Reason: UnknownMember, Cluster: observation.ClusterIDOf(c), Members: members, Final: true,
		Message: refusalText(r, []string{fact}, steps...),
	}
}

// listersOf names the Nodes whose lists have one of the members at an address of the node, and
// those whose lists do not.
func listersOf(c *v1alpha1.EtcdCluster, members []v1alpha1.MemberID, r Request) (with, without string) {
	var has, lacks []string
	for _, o := range place.Lists(c) {
		if slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool {
			return slices.Contains(members, m.ID) && observation.IsAtAddress(m, r.Addresses)
		}) {
			has = append(has, o.Node)
		} else {
			lacks = append(lacks, o.Node)
		}
	}
	return strings.Join(has, ", "), strings.Join(lacks, ", ")
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

// refuseClusterUnlabelled refuses because the node has members of the cluster.
func refuseClusterUnlabelled(c *v1alpha1.EtcdCluster, r Request) Verdict {
	members := place.Members(r.places(c), r.unlabelled())
	doubtful := slices.DeleteFunc(slices.Clone(members), func(id v1alpha1.MemberID) bool {
		return slices.Contains(place.Members(r.places(c), place.Bound|place.Announced|place.Own|place.Granted), id)
	})
	verdict := refuseUnlabelled(fmt.Sprintf("a member of etcd cluster %s", observation.ClusterIDOf(c)), doubtful, r)
	verdict.Cluster, verdict.Members = observation.ClusterIDOf(c), members
	return verdict
}

// refuseUnlabelled refuses because the label is missing. Doubtful members are assigned only by
// the node's name or address.
func refuseUnlabelled(content string, doubtful []v1alpha1.MemberID, r Request) Verdict {
	fact := fmt.Sprintf("node %s has %s, but its label %s is missing; Holdfast reviews the deletion only with the label",
		r.Node, content, observation.EtcdMemberLabel)
	steps := append([]string{
		"wait a few seconds and delete the node again: Holdfast restores the label",
		"or restore it yourself: " + labelCommand(r),
	}, removeGoneSteps(doubtful)...)
	return Verdict{Reason: UnknownMember, Final: true, Message: refusalText(r, []string{fact}, steps...)}
}

func labelCommand(r Request) string {
	return "kubectl label node " + r.Node + " " + observation.EtcdMemberLabel + "=" + observation.EtcdMemberLabelValue
}
