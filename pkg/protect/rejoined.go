package protect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// rejoined returns, sorted, the members that may be on the node although nothing puts them there, by lists that everything
// which was there has left: a host whose member was removed may have joined again under another ID, at an address that is
// no Node's, and until its own agent says so nobody is bound to that ID. Every member that is bound to no Node may be it,
// but one that is placed at another Node which exists, and one that ran beside what was on the node.
func (t target) rejoined() []v1alpha1.MemberID {
	if len(t.named) == 0 {
		return nil
	}
	found := map[v1alpha1.MemberID]bool{}
	for _, o := range t.lists {
		if slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return t.named[m.ID] }) {
			continue
		}
		for _, m := range o.Members {
			found[m.ID] = !binds(t.cluster, m.ID) && !t.placedElsewhere(m.ID) && !t.ranBeside(m.ID)
		}
	}
	return sorted(found)
}

// placedElsewhere says that a list has the member at the address of another Node, which exists.
func (t target) placedElsewhere(id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(t.homes(id), func(h v1alpha1.Binding) bool {
		n := t.nodes[h.Node]
		return h.Node != t.Node && n.Known && n.UID == h.NodeUID
	})
}

// ranBeside says that one list, however old, has the member as started while one that was on the node was proven healthy: it
// has been another server all along. Beside a dead one it may be what the same machine was made into.
func (t target) ranBeside(id v1alpha1.MemberID) bool {
	lists := slices.Concat(observers(t.cluster), ownOf(t.cluster, t.Request))
	return slices.ContainsFunc(confirmedOf(lists), func(o v1alpha1.Observation) bool {
		m, found := listed(o, id)
		return found && m.Name != "" && slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return t.named[m.ID] && m.Healthy })
	})
}

// unclear refuses because one of these members may be on the node.
func (t target) unclear(members []v1alpha1.MemberID) Verdict {
	is := "is in that list and bound"
	if len(members) > 1 {
		is = "are in that list and bound"
	}
	lines := []string{
		fmt.Sprintf("node %s may hold a member of etcd cluster %s that nobody knows of: %s, which it held, has left the member list, and %s %s to no Node; etcd may have joined again here under that ID, and the agent of node %s has not said so or otherwise",
			t.Node, clusterID(t.cluster), join(sorted(t.named)), join(members), is, t.Node),
		nextSteps,
		fmt.Sprintf("  - see that the agent of this node runs, and what it says: kubectl describe node %s (condition %s); then delete the node again", t.Node, EtcdMemberCondition),
		fmt.Sprintf("  - if %s runs on another machine: see that an agent runs there; within seconds of its announcement this node is judged without it", join(members)),
	}
	if slices.ContainsFunc(t.Announced, func(a MemberRef) bool { return a.Cluster == clusterID(t.cluster) }) {
		lines = append(lines, fmt.Sprintf("  - only if you know that no etcd with data is on this machine any more%s: kubectl annotate node %s %s-, and delete the node again in a minute", asBreaker, t.Node, AnnouncementAnnotation))
	}
	return Verdict{Reason: UnknownMember, Final: len(t.pending()) == 0, Message: strings.Join(append(lines, breakGlassStep(t.Request)), "\n")}
}
