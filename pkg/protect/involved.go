package protect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Involved returns the clusters that may have a member on the node, sorted by cluster ID: by binding, announcement or
// earlier grant, and if the node is labelled also by its addresses in the lists of bound observers on two Nodes. What one
// other Node says is never a reason, so that no single one can involve a node but itself and the leader.
func Involved(clusters []*v1alpha1.EtcdCluster, r Request) []*v1alpha1.EtcdCluster {
	return choose(clusters, func(c *v1alpha1.EtcdCluster) bool {
		return puts(c, r) || (r.Labelled && len(listedAt(c, r.Addresses)) > 0)
	})
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

// listedAt returns, sorted, the members that bound observers on two Nodes at least list at one of these addresses. If two
// have answered the last question, the older lists of those that are silent tell nothing.
func listedAt(c *v1alpha1.EtcdCluster, addresses []string) []v1alpha1.MemberID {
	lists := confirmedOf(observers(c))
	if latest := confirmedOf(answersTo(c, []string{c.Spec.Nonce})); len(latest) > 1 {
		lists = latest
	}
	says := map[v1alpha1.MemberID]int{}
	for _, o := range lists {
		for _, m := range o.Members {
			if livesAt(m, addresses) {
				says[m.ID]++
			}
		}
	}
	found := map[v1alpha1.MemberID]bool{}
	for id, n := range says {
		found[id] = n > 1
	}
	return sorted(found)
}

// Missing refuses for what cannot be judged at all: every cluster that the node announces and that has no EtcdCluster,
// sorted by cluster ID, where there is nothing to decide from and nowhere to keep a grant; and, last, servers on the node
// that have never said who they are.
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
	if v := unidentified(clusters, r); v != nil {
		verdicts = append(verdicts, *v)
	}
	return verdicts
}

func missing(id v1alpha1.ClusterID, members []v1alpha1.MemberID, r Request) string {
	return strings.Join([]string{
		fmt.Sprintf("cannot see etcd cluster %s, of which node %s announces %s: it has no EtcdCluster; whether quorum would be lost is not known", id, r.Node, join(members)),
		nextSteps,
		"  - wait: the webhook's leader makes the object within seconds of the announcement; see that one webhook is up and leads, then delete the node again",
		"  - if it makes none because there are too many (its log says so): kubectl get etcdclusters, and kubectl delete etcdcluster those that exist no more; the others it makes at its next look",
		fmt.Sprintf("  - only if this etcd cluster exists no more anywhere%s: kubectl annotate node %s %s-", asBreaker, r.Node, AnnouncementAnnotation),
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
		fmt.Sprintf("  - only if you know that no etcd with data is on it, and no agent runs there%s: kubectl label node %s %s-", asBreaker, r.Node, EtcdMemberLabel),
		breakGlassStep(r),
	}, "\n")}
}

// Garbled refuses for a node whose agent's word about its members cannot be read: a member that is misread is a member that
// is not protected. The problem says what is wrong with it.
func Garbled(r Request, problem error) Verdict {
	return Verdict{Reason: CannotDecide, Final: true, Message: strings.Join([]string{
		fmt.Sprintf("what node %q says of its etcd members cannot be read: %v", r.Node, problem),
		nextSteps,
		"  - delete the node again in a minute: its holdfast agent writes it anew; see that agent's log if it does not",
		fmt.Sprintf("  - only if no agent runs there, and you know that no etcd with data is on it%s: kubectl annotate node %s %s- %s-", asBreaker, r.Node, AnnouncementAnnotation, UnverifiedAnnotation),
		breakGlassStep(r),
	}, "\n")}
}
