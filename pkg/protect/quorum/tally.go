package quorum

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A memberStatus is how a member counts in the arithmetic.
type memberStatus int

// The statuses. All members except statusLearner count as voters.
const (
	statusLearner memberStatus = iota
	statusOnNode
	statusLost
	statusAway
	statusUnproven
	statusHealthy
)

// A healthProblem is why a member does not count as healthy. It selects the steps of a refusal.
type healthProblem int

// The problems. The first four go with statusUnproven, the last three with statusLost.
const (
	problemNoProof healthProblem = iota
	problemCorrupt
	problemNeverStarted
	problemAlarmsUnread
	problemNodeUnread
	problemNodeLost
	problemMachineGivenUp
)

// A memberState is one member of a list and how it counts.
type memberState struct {
	v1alpha1.MemberStatus
	status memberStatus
	// node is the Node of the member, or empty if it has no binding.
	node string
	// reason explains statusLost, statusAway and statusUnproven. It is also set for an unhealthy
	// member on the node. problem classifies it, except for statusAway.
	reason  string
	problem healthProblem
	// awayMark is the mark on the node of a member with statusAway.
	awayMark departure.Mark
	// isPromotable marks a learner that counts as a voter: it is about to be lost or away, and may
	// be promoted before.
	isPromotable bool
	// isMissingElsewhere marks a member that another list does not contain.
	isMissingElsewhere bool
	// stillAnswers marks a lost or away member that answers. Its machine still runs, or it runs on
	// another.
	stillAnswers bool
}

// A memberTally is the arithmetic for one member list.
type memberTally struct {
	list    v1alpha1.Observation
	members []memberState
	// voters, healthy and quorum are those of Verdict. possible is the value of healthy if every
	// pending observer proved all members that it could.
	voters, healthy, possible, quorum int
	// required is how many voters on other nodes must be healthy.
	required int
	// leaving is how many voters the list will lose: 1 for the removal of a member that takes part
	// until then.
	leaving int
	// sources names the Nodes whose lists differ, empty if all lists agree.
	sources string
}

// tallyList computes the loss arithmetic for one list. The deletion of a Node removes no member
// from the list. So all current voters count, and the members that are on the node or lost count
// as dead.
func (s Snapshot) tallyList(list v1alpha1.Observation, onNode []v1alpha1.MemberID, tolerance int) memberTally {
	t := memberTally{list: list}
	for _, m := range list.Members {
		member := s.stateOf(m, slices.Contains(onNode, m.ID))
		t.members = append(t.members, member)
		if member.status == statusLearner {
			continue
		}
		t.voters++
		switch {
		case member.status == statusHealthy:
			t.healthy++
			t.possible++
		case member.status == statusUnproven && m.Name != "" && !s.Corrupt[m.ID]:
			t.possible++
		}
	}
	t.quorum = t.voters/2 + 1
	t.required = t.quorum + max(0, tolerance)
	return t
}

// stateOf returns how one member counts. onNode means that the member is on the node of the
// request.
func (s Snapshot) stateOf(m v1alpha1.MemberStatus, onNode bool) memberState {
	member := memberState{MemberStatus: m, node: s.Bindings[m.ID].Node}
	if loss := s.lossOf(m.ID); !onNode && loss.reason != "" {
		member.status, member.problem, member.node, member.reason = statusLost, loss.problem, loss.node, loss.reason
		member.isPromotable = m.Learner
		member.stillAnswers = s.isAnswering(m.ID)
		return member
	}
	node, mark := s.awayNode(m.ID)
	isBroken := !m.Learner && (m.Name == "" || s.Corrupt[m.ID]) // no wait helps
	if !onNode && node != "" && !isBroken {
		member.status, member.node, member.awayMark = statusAway, node, mark
		member.reason = fmt.Sprintf("its node %s %s (%s)", node, mark.Says, mark)
		member.isPromotable, member.stillAnswers = m.Learner, s.isAnswering(m.ID)
		return member
	}
	healthy, problem, reason := s.healthOf(m)
	switch {
	case onNode:
		member.status, member.problem, member.isPromotable = statusOnNode, problem, m.Learner
		// Unread alarms are no statement about this member, and a learner needs no proof.
		if problem != problemAlarmsUnread && (problem != problemNoProof || !m.Learner) {
			member.reason = reason
		}
	case m.Learner:
		member.status = statusLearner
	case healthy:
		member.status = statusHealthy
	default:
		member.status, member.problem, member.reason = statusUnproven, problem, reason
	}
	return member
}

// healthOf reports whether a member is proven healthy, and otherwise why not.
func (s Snapshot) healthOf(m v1alpha1.MemberStatus) (healthy bool, problem healthProblem, reason string) {
	switch {
	case s.Corrupt[m.ID]:
		return false, problemCorrupt, "it has the alarm CORRUPT: its data differ from the data of the other members"
	case m.Name == "":
		return false, problemNeverStarted, "it was added, but has never started"
	case !s.proven[m.ID]:
		return false, problemNoProof, s.unhealthyReason(m.ID)
	case !s.AlarmsRead:
		return false, problemAlarmsUnread, "no agent that answered could read the etcd alarms, so its data may be corrupt"
	case !s.IsClean(m.ID):
		return false, problemAlarmsUnread, "an agent reports the alarm CORRUPT for it, and too few others deny that"
	}
	return true, problemNoProof, ""
}

// isAnswering reports whether an answer to the probe request contains the member as healthy.
func (s Snapshot) isAnswering(id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(s.Answers, func(o v1alpha1.Observation) bool {
		answered, found := observation.FindMember(o, id)
		return found && answered.Healthy
	})
}

// isSafe reports whether enough voters remain healthy.
func (t memberTally) isSafe() bool { return t.healthy >= t.required }

// canBecomeSafe reports whether further proofs can make the tally safe.
func (t memberTally) canBecomeSafe() bool { return t.possible >= t.required }

// isWorseThan reports whether the tally is further from safe than the other one. A nil tally is
// better than any.
func (t memberTally) isWorseThan(other *memberTally) bool {
	return other == nil || t.healthy-t.required < other.healthy-other.required
}

// isSafeWithVoters reports whether the tally would be safe if the list had this many voters, and
// this many of them healthy.
func (t memberTally) isSafeWithVoters(voters, healthy int) bool {
	return healthy >= (voters-t.leaving)/2+1+t.required-t.quorum
}

// withStatus returns the members with one status.
func (t memberTally) withStatus(s memberStatus) []memberState {
	return slices.DeleteFunc(slices.Clone(t.members), func(m memberState) bool { return m.status != s })
}

// comparedWith returns the tally with what distinguishes its list from the other ones.
func (t memberTally) comparedWith(lists []v1alpha1.Observation) memberTally {
	t.members = slices.Clone(t.members)
	for _, other := range lists {
		if describeList(other) == describeList(t.list) {
			continue
		}
		if t.sources == "" {
			t.sources = fmt.Sprintf("the member lists differ; this is by the list of node %s", t.list.Node)
		}
		t.sources += fmt.Sprintf("; node %s lists %s", other.Node, describeList(other))
		for i := range t.members {
			_, isListed := observation.FindMember(other, t.members[i].ID)
			t.members[i].isMissingElsewhere = t.members[i].isMissingElsewhere || !isListed
		}
	}
	return t
}

// missingElsewhere returns the members that another list does not contain.
func (t memberTally) missingElsewhere() []memberState {
	return slices.DeleteFunc(slices.Clone(t.members), func(m memberState) bool { return !m.isMissingElsewhere })
}
