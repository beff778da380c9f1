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
	verdict := decideTogether(snapshotFor(v, requests...), v, requests)
	verdict.Cluster, verdict.Facts.Together = observation.ClusterIDOf(v.Cluster), true
	switch {
	case verdict.Allowed:
		return verdict, Yes
	case verdict.Final:
		return verdict, No
	}
	return verdict, Unknown
}

func decideTogether(s Snapshot, v View, requests []Request) Verdict {
	if len(s.Lists) == 0 {
		return Verdict{Reason: CannotSee, Facts: Facts{Finding: FoundNoList, Silence: s.silence()}}
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
	members := observation.SortedIDs(gone)
	worst := s.worstTally(lists, members)
	switch {
	case unknown != nil:
		return Verdict{Reason: UnknownMember, Facts: unknown.Facts}
	case worst == nil || len(members) == 0:
		return Verdict{Allowed: true, Reason: NothingToProtect, Final: true, Facts: Facts{Finding: FoundNothing}}
	}
	verdict := s.verdictOf(*worst)
	verdict.Members = members
	verdict.Facts = Facts{Finding: FoundTally, Tally: worst.comparedWith(lists), Nodes: nodes}
	return verdict
}
