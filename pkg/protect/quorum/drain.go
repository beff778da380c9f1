package quorum

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// RefuseOpenNode refuses a drain of a node that nothing has closed for pods. Each program that
// drains a node closes it first. Otherwise something else evicts the guard pod, for example a
// descheduler, and the machine stays. A Node that could not be read is not refused here.
func RefuseOpenNode(n observation.NodeState, r Request) (v Verdict, isRefused bool) {
	if !r.Drain || !n.Known || n.UID != r.UID || n.Closed() != "" {
		return Verdict{}, false
	}
	fact := fmt.Sprintf("node %s is not being drained: it is neither cordoned nor marked by a program that removes or "+
		"restarts nodes, so the eviction of its guard pod is refused", r.Node)
	return Verdict{Reason: NotDraining, Final: true, Message: refusalText(r, []string{fact},
		fmt.Sprintf("to drain the node: kubectl drain %s --ignore-daemonsets (it cordons the node first)", r.Node),
		"if a program evicts pods from nodes that stay (descheduler), exclude the namespace holdfast-system from it",
	)}, true
}

// isOnlyMember reports whether the request is a drain of the node with the only member of the
// cluster. There is no quorum that the drain could break and waiting could keep, and a cluster of
// one node must be able to restart. With a learner or another binding, the arithmetic decides.
func (t requestTarget) isOnlyMember(list v1alpha1.Observation) bool {
	isOther := func(b v1alpha1.Binding) bool { return b.MemberID != list.Members[0].ID }
	return t.Drain && len(list.Members) == 1 && !slices.ContainsFunc(t.Cluster.Spec.Members, isOther)
}

// allowOnlyMember allows the drain of the node with the only member.
func (t requestTarget) allowOnlyMember() Verdict {
	id := observation.ClusterIDOf(t.Cluster)
	return Verdict{
		Allowed: true, Reason: OnlyMember, Voters: 1, Quorum: 1, Final: true,
		Message: fmt.Sprintf("node %s has the only member of etcd cluster %s, so no quorum can be kept", t.Node, id),
		Warning: fmt.Sprintf("etcd cluster %s is down until node %s is back, and its data are on that node only", id, t.Node),
	}
}

// isDrained reports whether the member is lost by the grant of a drain whose Node still exists.
func (s Snapshot) isDrained(m memberState) bool {
	return slices.ContainsFunc(s.Cluster.Spec.Grants, func(g v1alpha1.Grant) bool {
		n := s.Nodes[g.Node]
		return g.Drain != nil && n.Known && n.UID == g.NodeUID && s.giveUpOf(m.ID, g) != notGivenUp
	})
}

// drainedStep explains how a drained node comes back. n is the state of its Node, which exists.
func (t requestTarget) drainedStep(g v1alpha1.Grant, n observation.NodeState, tally memberTally) string {
	members := t.lostBy(g, tally)
	since := "node " + g.Node + " was drained at " + g.Drain.Time.UTC().Format(time.RFC3339)
	again := fmt.Sprintf("%s %s again when the agent there has proven it healthy twice, %s apart",
		joinTitles(members), agree(len(members), "counts", "count"), ResolveReturnedAfter)
	switch {
	case n.Deleting:
		return fmt.Sprintf("%s and is being deleted: wait until its machine is gone, then %s node %s again to see the "+
			"remaining steps", since, t.Verb().Base, t.Node)
	case n.Departure.Class != departure.None:
		return fmt.Sprintf("%s and %s (%s): wait until it is back, uncordoned and without that mark, and etcd runs there; %s",
			since, n.Departure.Says, n.Departure, again)
	case n.Cordoned:
		return fmt.Sprintf("%s and is still cordoned: wait until it is back; the program that drained it uncordons it, "+
			"or you do when etcd runs there: kubectl uncordon %s; %s", since, g.Node, again)
	}
	return fmt.Sprintf("%s and is open again: wait until etcd runs there; %s", since, again)
}
