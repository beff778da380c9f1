package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// RefuseOpenNode refuses a drain of a node that nothing has closed for pods. Each program that
// drains a node closes it first. Otherwise something else evicts the guard pod, for example a
// descheduler, and the machine stays. A Node that could not be read is not refused here.
func RefuseOpenNode(n observation.NodeState, r Request) (v Verdict, isRefused bool) {
	if r.Door != DoorDrain || !n.Known || n.UID != r.UID || n.Closed() != "" {
		return Verdict{}, false
	}
	return Verdict{Reason: NotDraining, Final: true, Facts: Facts{Finding: FoundOpenNode, Request: r}}, true
}

// isOnlyMember reports whether the request is a drain of the node with the only member of the
// cluster. There is no quorum that the drain could break and waiting could keep, and a cluster of
// one node must be able to restart. With a learner or another binding, the arithmetic decides.
func (t requestTarget) isOnlyMember(list v1alpha1.Observation) bool {
	isOther := func(b v1alpha1.Binding) bool { return b.MemberID != list.Members[0].ID }
	return t.Door == DoorDrain && len(list.Members) == 1 && !slices.ContainsFunc(t.Cluster.Spec.Members, isOther)
}

// allowOnlyMember allows the drain of the node with the only member.
func (t requestTarget) allowOnlyMember() Verdict {
	return Verdict{
		Allowed: true, Reason: OnlyMember, Final: true,
		Facts: Facts{Finding: FoundOnlyMember, Request: t.Request},
	}
}

// isDrained reports whether the member is lost by the grant of a drain whose Node still exists.
func (s Snapshot) isDrained(m MemberState) bool {
	return slices.ContainsFunc(s.Cluster.Spec.Grants, func(g v1alpha1.Grant) bool {
		n := s.Nodes[g.Node]
		return g.Drain != nil && n.Known && n.UID == g.NodeUID && s.giveUpOf(m.ID, g) != NoProblem
	})
}
