package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A MemberCount is how a member counts in the arithmetic.
type MemberCount string

// How members count. All of them are voters except learners.
const (
	CountsHealthy  MemberCount = "Healthy"
	CountsUnproven MemberCount = "NotConfirmed"
	CountsLost     MemberCount = "Lost"
	CountsAway     MemberCount = "Away"
	CountsLearner  MemberCount = "Learner"
	// CountsOnNode: the member is on the node of the request.
	CountsOnNode MemberCount = "OnNode"
)

// A MemberState is one member of a list, how it counts, and why.
type MemberState struct {
	v1alpha1.MemberStatus
	Count MemberCount
	// Node is the Node of the member, or empty if it has no binding.
	Node string
	// Cause is why the member does not count as healthy. It is the zero value for a member on the
	// node that is proven healthy, and for a learner that does not vote.
	Cause Cause
	// IsPromotable marks a learner that counts as a voter: it is about to be lost or away, and may
	// be promoted before.
	IsPromotable bool
	// IsMissingElsewhere marks a member that another list does not contain.
	IsMissingElsewhere bool
	// StillAnswers marks a lost or away member that answers. Its machine still runs, or it runs on
	// another.
	StillAnswers bool
	// FoundOn is the Node whose agent finds the member's server or its data there, or empty.
	// Distribution manages the member, and Notice is that of its Node, for a healthy member. Only the
	// facts of a verdict have these.
	FoundOn      string
	Distribution v1alpha1.Distribution
	Notice       departure.Mark
}

// A Tally is the arithmetic for one member list.
type Tally struct {
	List    v1alpha1.Observation
	Members []MemberState
	// Voters is the number of current voters. Healthy is the number of voters that are proven healthy,
	// are not on the node and are not lost. Quorum is ⌊Voters/2⌋+1, after the request. possible is the
	// value of Healthy if every pending observer proved all members that it could.
	Voters, Healthy, Quorum, possible int
	// Required is how many voters on other nodes must be healthy.
	Required int
	// Leaving is how many voters the list will lose: 1 for the removal of a member that takes part
	// until then.
	Leaving int
	// Differing are the other lists with other members.
	Differing []v1alpha1.Observation
}

// tallyList computes the loss arithmetic for one list. The deletion of a Node removes no member
// from the list. So all current voters count, and the members that are on the node or lost count
// as dead.
func (s Snapshot) tallyList(list v1alpha1.Observation, onNode []v1alpha1.MemberID, tolerance int) Tally {
	t := Tally{List: list}
	for _, m := range list.Members {
		member := s.stateOf(m, slices.Contains(onNode, m.ID))
		t.Members = append(t.Members, member)
		if member.Count == CountsLearner {
			continue
		}
		t.Voters++
		switch {
		case member.Count == CountsHealthy:
			t.Healthy++
			t.possible++
		case member.Count == CountsUnproven && m.Name != "" && !s.Corrupt[m.ID]:
			t.possible++
		}
	}
	t.Quorum = t.Voters/2 + 1
	t.Required = t.Quorum + max(0, tolerance)
	return t
}

// tallyRequest computes the arithmetic of the request for one list.
//
// Of n voters, h are healthy on other nodes and not lost. A deletion or a drain removes no voter:
//
//	h ≥ ⌊n/2⌋+1
//
// The removal of a member makes the list shorter, but etcd removes it only with a quorum of the old
// list, in which the member itself votes while it takes part:
//
//	after the removal   h   ≥ ⌊(n−1)/2⌋+1
//	until then          h+1 ≥ ⌊n/2⌋+1    if the member takes part, otherwise h ≥ ⌊n/2⌋+1
//
// If the member takes part, the first line implies the second. If not, the second implies the
// first. So the list is one voter shorter in the former case only. That differs for an even n: one
// of two voters may be removed if both are healthy.
//
// A member that may stop before it is removed does not take part (RKE2). Nor does one that is not
// proven healthy, or that an earlier grant or a mark makes lost or away.
func (t requestTarget) tallyRequest(list v1alpha1.Observation, onNode []v1alpha1.MemberID) Tally {
	tally := t.tallyList(list, onNode, t.MinRemainingTolerance)
	if t.Door == DoorRemove && !t.StopsFirst && tally.Voters > 1 && slices.ContainsFunc(onNode, t.takesPart(list)) {
		reserve := tally.Required - tally.Quorum
		tally.Leaving = 1
		tally.Quorum = (tally.Voters-tally.Leaving)/2 + 1
		tally.Required = tally.Quorum + reserve
	}
	return tally
}

// takesPart returns a function that reports whether a member of the list is a healthy voter that
// stays until it is removed.
func (t requestTarget) takesPart(list v1alpha1.Observation) func(v1alpha1.MemberID) bool {
	return func(id v1alpha1.MemberID) bool {
		m, _ := observation.FindMember(list, id)
		return t.healthOf(m).Problem == NoProblem && t.absenceOf(m).Problem == NoProblem
	}
}

// stateOf returns how one member counts. onNode means that the member is on the node of the
// request.
func (s Snapshot) stateOf(m v1alpha1.MemberStatus, onNode bool) MemberState {
	member := MemberState{MemberStatus: m, Node: s.Bindings[m.ID].Node}
	if absence := s.absenceOf(m); !onNode && absence.Problem != NoProblem {
		member.Count, member.Node, member.Cause = CountsLost, absence.Node, absence
		if absence.Problem == NodeAway {
			member.Count = CountsAway
		}
		member.IsPromotable, member.StillAnswers = m.Learner, s.isAnswering(m.ID)
		return member
	}
	cause := s.healthOf(m)
	switch {
	case onNode:
		member.Count, member.IsPromotable = CountsOnNode, m.Learner
		// Unread alarms are no statement about this member, and a learner needs no proof.
		if !cause.Problem.isAboutAlarms() && (cause.Problem != NotProven || !m.Learner) {
			member.Cause = cause
		}
	case m.Learner:
		member.Count = CountsLearner
	case cause.Problem == NoProblem:
		member.Count = CountsHealthy
	default:
		member.Count, member.Cause = CountsUnproven, cause
	}
	return member
}

// healthOf returns why a member is not proven healthy, the zero value if it is.
func (s Snapshot) healthOf(m v1alpha1.MemberStatus) Cause {
	switch {
	case s.Corrupt[m.ID]:
		return Cause{Problem: Corrupt}
	case m.Name == "":
		return Cause{Problem: NeverStarted}
	case !s.proven[m.ID]:
		return Cause{Problem: NotProven, Proof: s.proofOf(m.ID)}
	case !s.AlarmsRead:
		return Cause{Problem: AlarmsUnread}
	case !s.IsClean(m.ID):
		return Cause{Problem: AlarmDisputed}
	}
	return Cause{}
}

// isAnswering reports whether an answer to the probe request contains the member as healthy.
func (s Snapshot) isAnswering(id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(s.Answers, func(o v1alpha1.Observation) bool {
		answered, _ := observation.FindMember(o, id)
		return answered.Healthy
	})
}

// IsSafe reports whether enough voters remain healthy.
func (t Tally) IsSafe() bool { return t.Healthy >= t.Required }

// canBecomeSafe reports whether further proofs can make the tally safe.
func (t Tally) canBecomeSafe() bool { return t.possible >= t.Required }

// isWorseThan reports whether the tally is further from safe than the other one. A nil tally is
// better than any.
func (t Tally) isWorseThan(other *Tally) bool {
	return other == nil || t.Healthy-t.Required < other.Healthy-other.Required
}

// isSafeWithVoters reports whether the tally would be safe if the list had this many voters, and
// this many of them healthy.
func (t Tally) isSafeWithVoters(voters, healthy int) bool {
	return healthy >= (voters-t.Leaving)/2+1+t.Required-t.Quorum
}

// With returns the members that count so.
func (t Tally) With(c MemberCount) []MemberState {
	return slices.DeleteFunc(slices.Clone(t.Members), func(m MemberState) bool { return m.Count != c })
}

// comparedWith returns the tally with what distinguishes its list from the other ones.
func (t Tally) comparedWith(lists []v1alpha1.Observation) Tally {
	for _, other := range lists {
		if ListKey(other) == ListKey(t.List) {
			continue
		}
		t.Differing = append(t.Differing, other)
		for i := range t.Members {
			_, isListed := observation.FindMember(other, t.Members[i].ID)
			t.Members[i].IsMissingElsewhere = t.Members[i].IsMissingElsewhere || !isListed
		}
	}
	return t
}

// missingElsewhere returns the members that another list does not contain.
func (t Tally) missingElsewhere() []MemberState {
	return slices.DeleteFunc(slices.Clone(t.Members), func(m MemberState) bool { return !m.IsMissingElsewhere })
}

// NewVotersAfter returns how many new voters the cluster needs to be able to lose a voter, once
// this many voters have left the list.
func (t Tally) NewVotersAfter(left int) int {
	more := 0
	for voters := t.Voters - left; t.Healthy+more <= (voters+more)/2+1; {
		more++
	}
	return more
}
