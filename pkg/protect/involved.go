package protect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Involved returns the clusters that may have a member on the node, sorted by cluster ID: by binding, announcement or
// earlier grant; if none of them says anything and the node is labelled, by the addresses in the lists of bound
// observers. What other Nodes say is never a reason, so that nobody can involve a node but itself and the leader.
func Involved(clusters []*v1alpha1.EtcdCluster, r Request) []*v1alpha1.EtcdCluster {
	found := choose(clusters, func(c *v1alpha1.EtcdCluster) bool { return puts(c, r) })
	if len(found) == 0 && r.Labelled {
		found = choose(clusters, func(c *v1alpha1.EtcdCluster) bool { return addresses(c, r) })
	}
	return found
}

func choose(clusters []*v1alpha1.EtcdCluster, involved func(*v1alpha1.EtcdCluster) bool) []*v1alpha1.EtcdCluster {
	var found []*v1alpha1.EtcdCluster
	for _, c := range clusters {
		if c != nil && involved(c) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b *v1alpha1.EtcdCluster) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// puts says that a binding, the announcement or an earlier grant puts a member of the cluster on the node.
func puts(c *v1alpha1.EtcdCluster, r Request) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return boundTo(b, r) }) ||
		slices.ContainsFunc(r.Announced, func(a MemberRef) bool { return a.Cluster == clusterID(c) }) ||
		slices.ContainsFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return r.UID != "" && g.NodeUID == r.UID })
}

// addresses says that a member of the cluster has an address of the node.
func addresses(c *v1alpha1.EtcdCluster, r Request) bool {
	return slices.ContainsFunc(observers(c), func(o v1alpha1.Observation) bool {
		return slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return livesAt(m, r.Addresses) })
	})
}

// Missing refuses for every cluster that the node announces and that has no EtcdCluster, sorted by cluster ID: there is
// nothing to decide from, and nowhere to keep a grant.
func Missing(clusters []*v1alpha1.EtcdCluster, r Request) []Verdict {
	absent := map[v1alpha1.ClusterID][]v1alpha1.MemberID{}
	for _, a := range r.Announced {
		if !slices.ContainsFunc(clusters, func(c *v1alpha1.EtcdCluster) bool { return clusterID(c) == a.Cluster }) {
			absent[a.Cluster] = append(absent[a.Cluster], a.Member)
		}
	}
	var verdicts []Verdict
	for id, members := range absent {
		slices.Sort(members)
		verdicts = append(verdicts, Verdict{Reason: CannotSee, Cluster: id, Members: members, Final: true, Message: missing(id, members, r)})
	}
	slices.SortFunc(verdicts, func(a, b Verdict) int { return strings.Compare(string(a.Cluster), string(b.Cluster)) })
	return verdicts
}

func missing(id v1alpha1.ClusterID, members []v1alpha1.MemberID, r Request) string {
	return strings.Join([]string{
		fmt.Sprintf("cannot see etcd cluster %s, of which node %s announces %s: it has no EtcdCluster; whether quorum would be lost is not known", id, r.Node, join(members)),
		nextSteps,
		"  - wait: the webhook's leader makes the object within seconds of the announcement; see that one webhook is up and leads, then delete the node again",
		fmt.Sprintf("  - only if this etcd cluster exists no more anywhere: kubectl annotate node %s %s-", r.Node, AnnouncementAnnotation),
		breakGlassStep(r),
	}, "\n")
}

// Unattributed refuses for a node that is marked as holding a member while nothing says which: to be used if the node is
// labelled and neither Involved nor Missing returns anything.
func Unattributed(r Request) Verdict {
	return Verdict{Reason: UnknownMember, Final: true, Message: strings.Join([]string{
		fmt.Sprintf("node %s is labelled as holding an etcd member (%s), and nothing says which: no EtcdCluster has a member there and the node announces none", r.Node, EtcdMemberLabel),
		nextSteps,
		fmt.Sprintf("  - see what its agent says: kubectl describe node %s (condition %s); an agent that runs and finds no etcd takes the label off by itself", r.Node, EtcdMemberCondition),
		fmt.Sprintf("  - only if you know that no etcd with data is on it, and no agent runs there: kubectl label node %s %s-", r.Node, EtcdMemberLabel),
		breakGlassStep(r),
	}, "\n")}
}

// UnlabelledVerdict answers for a node without the label, at once and from what is known already: nobody is asked. A
// node that holds a member is refused because its label is missing; only with the label is it judged.
func UnlabelledVerdict(clusters []*v1alpha1.EtcdCluster, r Request) Verdict {
	for _, c := range choose(clusters, func(c *v1alpha1.EtcdCluster) bool { return puts(c, r) }) {
		return unlabelled(clusterID(c), look(View{Cluster: c}).target(r).known(), r)
	}
	for _, a := range r.Announced {
		return unlabelled(a.Cluster, []v1alpha1.MemberID{a.Member}, r)
	}
	return Verdict{Allowed: true, Reason: NothingToProtect, Final: true, Message: fmt.Sprintf("no etcd member is known on node %s", r.Node)}
}

func unlabelled(id v1alpha1.ClusterID, members []v1alpha1.MemberID, r Request) Verdict {
	return Verdict{Reason: UnknownMember, Cluster: id, Members: members, Final: true, Message: strings.Join([]string{
		fmt.Sprintf("node %s holds a member of etcd cluster %s, but its label %s is missing, without which its deletion is not judged", r.Node, id, EtcdMemberLabel),
		nextSteps,
		"  - wait some seconds and delete the node again: the webhook's leader puts the label back",
		fmt.Sprintf("  - or put it back yourself: kubectl label node %s %s=%s", r.Node, EtcdMemberLabel, EtcdMemberLabelValue),
		breakGlassStep(r),
	}, "\n")}
}
