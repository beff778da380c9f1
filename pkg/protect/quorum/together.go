package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// DecideTogether decides for one etcd cluster whether it keeps quorum if the nodes of all requests
// are gone at once. The members that Decide has on one of the nodes are gone, and the tally under
// every list is that of Decide. MinRemainingTolerance is no part of the question.
//
// The answer is Unknown if it is not known which members the nodes have, and if the proofs of an
// observer that is silent could change it.
func DecideTogether(v View, requests []Request) (Verdict, Answer) {
	s := snapshotFor(v, requests...)
	if len(s.Lists) == 0 {
		return finishTogether(s, Verdict{Reason: CannotSee, Facts: Facts{Finding: FoundNoList, Silence: s.silence()}})
	}
	gone, lists := map[v1alpha1.MemberID]bool{}, slices.Clone(s.Lists)
	var nodes []string
	var unknown *Verdict
	for _, r := range requests {
		alone := Decide(v, r)
		if alone.Reason == UnknownMember {
			unknown = &alone
		}
		if len(alone.Members) > 0 {
			nodes = append(nodes, r.Node)
		}
		for _, id := range alone.Members {
			gone[id] = true
		}
		lists = append(lists, newTarget(s, r).ownLists...)
	}
	if unknown != nil {
		return finishTogether(s, Verdict{Reason: UnknownMember, Facts: unknown.Facts})
	}
	members := observation.SortedIDs(gone)
	worst := s.worstWithout(lists, members)
	if worst == nil {
		return finishTogether(s, Verdict{
			Allowed: true, Reason: NothingToProtect, Final: true,
			Facts: Facts{Finding: FoundNothing},
		})
	}
	verdict := Verdict{
		Allowed: worst.IsSafe(), Reason: QuorumKept, Members: members,
		Voters: worst.Voters, Healthy: worst.Healthy, Quorum: worst.Quorum,
		Final: worst.IsSafe() || !worst.canBecomeSafe() || len(s.Pending()) == 0,
	}
	if !verdict.Allowed {
		verdict.Reason = QuorumWouldBeLost
	}
	verdict.Facts = Facts{Finding: FoundTally, Tally: worst.comparedWith(lists), Nodes: nodes}
	return finishTogether(s, verdict)
}

// worstWithout returns the tally with the smallest margin, of the lists that have one of the
// members, which count as gone. It returns nil if no list has one.
func (s Snapshot) worstWithout(lists []v1alpha1.Observation, gone []v1alpha1.MemberID) *Tally {
	var worst *Tally
	for _, list := range lists {
		tally := s.tallyList(list, gone, 0)
		if len(tally.With(CountsOnNode)) > 0 && tally.isWorseThan(worst) {
			worst = &tally
		}
	}
	return worst
}

// finishTogether completes a verdict, and returns it with its answer.
func finishTogether(s Snapshot, v Verdict) (Verdict, Answer) {
	v.Cluster, v.Facts.Together = observation.ClusterIDOf(s.Cluster), true
	switch {
	case v.Allowed:
		return v, Yes
	case v.Reason == QuorumWouldBeLost && v.Final:
		return v, No
	}
	return v, Unknown
}
