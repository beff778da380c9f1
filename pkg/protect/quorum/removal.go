package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

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
func (t requestTarget) tallyRequest(list v1alpha1.Observation, onNode []v1alpha1.MemberID, tolerance int) Tally {
	tally := t.tallyList(list, onNode, tolerance)
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
