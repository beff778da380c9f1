package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// IsCorroborated reports whether a statement counts that exactly these observations of observers
// contain. It counts if a founder makes it, or if observers on two Nodes make it. An observer that
// joined later may be a Node whose kubelet forged the address of a member, so it needs another
// one. It needs none if no other Node is bound.
func (s Snapshot) IsCorroborated(statements []v1alpha1.Observation) bool {
	for _, o := range statements {
		if o.Node != statements[0].Node || observation.IsFounder(s.Cluster, o) {
			return true
		}
	}
	return len(statements) > 0 && s.hasSingleNode()
}

// hasSingleNode reports whether all bindings are to one Node. Nodes that are gone do not count, and
// neither do Nodes without support for their claim: otherwise each of them could silence the only
// observer.
func (s Snapshot) hasSingleNode() bool {
	nodes := map[string]bool{}
	for _, b := range s.Cluster.Spec.Members {
		if b.Basis != v1alpha1.BasisClaimed && s.mayExist(b) {
			nodes[b.Node] = true
		}
	}
	return len(nodes) == 1
}

// Proves reports whether the answers prove what holds for an entry of the member. Besides
// IsCorroborated, the agent on the member's own Node is enough if another observer confirms that no
// other agent can reach the member.
func (s Snapshot) Proves(id v1alpha1.MemberID, holds func(v1alpha1.MemberStatus) bool) bool {
	statements := s.answersWith(id, holds)
	if s.IsCorroborated(statements) {
		return true
	}
	b, bound := s.Bindings[id]
	return bound && slices.ContainsFunc(statements, func(o v1alpha1.Observation) bool { return isFrom(o, b) }) &&
		slices.ContainsFunc(s.Lists, func(o v1alpha1.Observation) bool {
			m, isListed := observation.FindMember(o, id)
			return isListed && !isFrom(o, b) && observation.IsLocalOnly(m)
		})
}

// answersWith returns the answers that contain the member with an entry for which holds is true.
func (s Snapshot) answersWith(id v1alpha1.MemberID, holds func(v1alpha1.MemberStatus) bool) []v1alpha1.Observation {
	return slices.DeleteFunc(slices.Clone(s.Answers), func(o v1alpha1.Observation) bool {
		m, isListed := observation.FindMember(o, id)
		return !isListed || !holds(m)
	})
}

// selectLists returns the member lists that count by IsCorroborated. So an observer that joined
// later cannot veto deletions with a list of its own.
func (s Snapshot) selectLists() []v1alpha1.Observation {
	all := observation.Confirmed(s.Answers)
	descriptions := make([]string, len(all))
	same := map[string][]v1alpha1.Observation{}
	for i, o := range all {
		descriptions[i] = describeList(o)
		same[descriptions[i]] = append(same[descriptions[i]], o)
	}
	var lists []v1alpha1.Observation
	for i, o := range all {
		if s.IsCorroborated(same[descriptions[i]]) {
			lists = append(lists, o)
		}
	}
	return lists
}

// describeList returns the members of a list in the form in which lists are compared: two lists
// with the same description have the same arithmetic.
func describeList(o v1alpha1.Observation) string {
	members := make([]string, len(o.Members))
	for i, m := range o.Members {
		members[i] = string(m.ID)
		switch {
		case m.Learner:
			members[i] += " (learner)"
		case m.Name == "":
			members[i] += " (never started)"
		}
	}
	slices.Sort(members)
	return strings.Join(members, ", ")
}

// uncorroborated describes the proof of a member's health that does not count, because only one
// observer that joined later reports it.
func (s Snapshot) uncorroborated(id v1alpha1.MemberID) string {
	proofs := s.answersWith(id, func(m v1alpha1.MemberStatus) bool { return m.Healthy && !m.Learner })
	if len(proofs) == 0 || s.IsCorroborated(proofs) {
		return ""
	}
	return fmt.Sprintf("only node %s, whose member joined later, reports that it is healthy, and no second observer "+
		"confirms that", proofs[0].Node)
}

// describeUnheard tells why the observations of a binding's Node do not count.
func (s Snapshot) describeUnheard(b v1alpha1.Binding) string {
	if b.Basis != v1alpha1.BasisDisputed {
		return fmt.Sprintf("the agent of node %s does not count as an observer: only that node claims member %s",
			b.Node, b.MemberID)
	}
	others := ""
	for _, p := range s.nodesOf(b.MemberID) {
		if p.Node != b.Node {
			others += ", node " + p.Node + " has the same address"
		}
	}
	return fmt.Sprintf("the agent of node %s does not count as an observer: another node announces member %s too%s",
		b.Node, b.MemberID, others)
}

// missingLists tells why no member list counts.
func (s Snapshot) missingLists() string {
	if len(observation.Confirmed(s.Answers)) == 0 {
		return noConfirmedList
	}
	return "no two agents returned the same confirmed member list"
}

// comparedWith returns the tally with what distinguishes its list from the other ones.
func (t memberTally) comparedWith(lists []v1alpha1.Observation, list v1alpha1.Observation) *memberTally {
	t.members = slices.Clone(t.members)
	for _, other := range lists {
		if describeList(other) == describeList(list) {
			continue
		}
		if t.sources == "" {
			t.sources = fmt.Sprintf("the member lists differ; this is by the list of node %s", list.Node)
		}
		t.sources += fmt.Sprintf("; node %s lists %s", other.Node, describeList(other))
		for i := range t.members {
			_, isListed := observation.FindMember(other, t.members[i].ID)
			t.members[i].isDisputed = t.members[i].isDisputed || !isListed
		}
	}
	return &t
}

// disputed returns the members that another list does not contain.
func (t memberTally) disputed() []memberState {
	return slices.DeleteFunc(slices.Clone(t.members), func(m memberState) bool { return !m.isDisputed })
}
