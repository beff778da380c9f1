package protect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// UnlabelledVerdict answers for a node without the label, at once and from what is known already: nobody is asked. A
// node that holds a member is refused because its label is missing; only with the label is it judged. So is a node of
// which the bound observers on two others list an unbound member at one of its addresses: its own agent has not said so
// yet. And so is one whose agent sees a server there that has never said who it is.
func UnlabelledVerdict(clusters []*v1alpha1.EtcdCluster, r Request) Verdict {
	for _, c := range choose(clusters, func(c *v1alpha1.EtcdCluster) bool { return puts(c, r) }) {
		members, namesakes := heldBy(c, r)
		if len(members) > 0 || !slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return boundTo(b, r) }) {
			return unlabelled(memberOf(clusterID(c)), clusterID(c), members, namesakes, r)
		}
	}
	for _, a := range r.Announced {
		return unlabelled(memberOf(a.Cluster), a.Cluster, []v1alpha1.MemberID{a.Member}, nil, r)
	}
	for _, c := range choose(clusters, func(c *v1alpha1.EtcdCluster) bool { return len(unseenAt(c, r)) > 0 }) {
		return unlabelled(memberOf(clusterID(c)), clusterID(c), unseenAt(c, r), unseenAt(c, r), r)
	}
	if len(r.Unverified) > 0 {
		return unlabelled(fmt.Sprintf("an etcd server that has never said who it is (%s)", places(r.Unverified)), "", nil, nil, r)
	}
	return Verdict{Allowed: true, Reason: NothingToProtect, Final: true, Message: fmt.Sprintf("no etcd member is known on node %s", r.Node)}
}

// heldBy returns the members that the cluster has on the node, and those of them for which the Node's name alone says so.
// A member that is bound to an earlier Node of the same name and given up with it is not among them: it counts as lost
// whatever becomes of the namesake, which may be another machine without etcd.
func heldBy(c *v1alpha1.EtcdCluster, r Request) (members, namesakes []v1alpha1.MemberID) {
	t := newSight(View{Cluster: c}).target(r)
	for _, id := range t.known() {
		b := t.bindings[id]
		switch {
		case !byName(b, r) || t.says(id):
			members = append(members, id)
		case !granted(c, b):
			members, namesakes = append(members, id), append(namesakes, id)
		}
	}
	return members, namesakes
}

// byName says that the binding is to an earlier Node of the same name.
func byName(b v1alpha1.Binding, r Request) bool { return b.Node == r.Node && b.NodeUID != r.UID }

// says says that the node itself, or a grant for this very Node, names the member.
func (t target) says(id v1alpha1.MemberID) bool {
	return slices.Contains(t.Announced, MemberRef{Cluster: clusterID(t.cluster), Member: id}) ||
		slices.ContainsFunc(ownOf(t.cluster, t.Request), func(o v1alpha1.Observation) bool { return o.LocalMember == id }) ||
		slices.ContainsFunc(t.cluster.Spec.Grants, func(g v1alpha1.Grant) bool {
			return g.NodeUID == t.UID && slices.Contains(g.Members, id)
		})
}

// unseenAt returns the members without a binding that are listed at the node's addresses.
func unseenAt(c *v1alpha1.EtcdCluster, r Request) []v1alpha1.MemberID {
	return slices.DeleteFunc(listedAt(c, r.Addresses), func(id v1alpha1.MemberID) bool {
		return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == id })
	})
}

func memberOf(id v1alpha1.ClusterID) string { return fmt.Sprintf("a member of etcd cluster %s", id) }

// unlabelled refuses for want of the label. Of the doubtful members, the node's name or address alone says that they are
// there.
func unlabelled(what string, id v1alpha1.ClusterID, members, doubtful []v1alpha1.MemberID, r Request) Verdict {
	steps := []string{
		fmt.Sprintf("node %s holds %s, but its label %s is missing, without which its deletion is not judged", r.Node, what, EtcdMemberLabel),
		nextSteps,
		"  - wait some seconds and delete the node again: Holdfast puts the label back",
		fmt.Sprintf("  - or put it back yourself: kubectl label node %s %s=%s", r.Node, EtcdMemberLabel, EtcdMemberLabelValue),
	}
	for _, m := range doubtful {
		steps = append(steps, fmt.Sprintf("  - if member %[1]s is not on this machine, but on one that had its name or address before and is gone for good: etcdctl member remove %[1]s", m))
	}
	return Verdict{
		Reason: UnknownMember, Cluster: id, Members: members, Final: true,
		Message: strings.Join(append(steps, breakGlassStep(r)), "\n"),
	}
}
