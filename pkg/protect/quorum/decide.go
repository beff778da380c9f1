package quorum

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Decide decides for one etcd cluster whether the Node may be deleted. The cluster is one that
// Select returns. The deletion of a Node removes no member from the member list. So the question is
// how many voters would be lost, not how many would remain in a smaller cluster:
//
//	allow ⇔ healthy voters ≥ ⌊voters/2⌋+1 (+ MinRemainingTolerance)
//
// where a healthy voter is proven healthy, is not on the node, and does not count as lost.
//
// The condition must hold for every member list that answers the probe request and that a quorum
// confirmed: the lists of observers and of the node's own agent. Only observers whose Nodes exist
// can prove health.
//
// A drain is decided like a deletion, but only for a node that is closed. The removal of a member
// has an arithmetic of its own (tallyRequest).
//
// Before the arithmetic, it refuses an open node and an answer without a list. Without a member on
// the node, it refuses a possible rejoin, and otherwise allows. A drain of the only member is
// allowed. It allows nothing if the node announces a member that is bound to another Node.
func Decide(v View, r Request) Verdict {
	if verdict, isRefused := RefuseOpenNode(v.Nodes[r.Node], r); isRefused {
		verdict.Cluster = observation.ClusterIDOf(v.Cluster)
		return verdict
	}
	return decideQuorum(v, r)
}

// decideQuorum is Decide without the question whether the node is closed. Under several lists, the
// worst tally decides.
func decideQuorum(v View, r Request) Verdict {
	t := newTarget(snapshotFor(v, r), r)
	if len(t.Lists) == 0 {
		return t.refuseWithoutList()
	}
	var worst *Tally
	isOnlyMember, members := false, map[v1alpha1.MemberID]bool{}
	lists := t.decisiveLists()
	for _, list := range lists {
		onNode := t.membersOnNode(list)
		for _, id := range onNode {
			members[id] = true
		}
		switch {
		case len(onNode) == 0:
		case t.isOnlyMember(list):
			isOnlyMember = true
		default:
			if tally := t.tallyRequest(list, onNode); tally.isWorseThan(worst) {
				worst = &tally
			}
		}
	}
	var verdict Verdict
	rejoins := t.possibleRejoins(t.Lists)
	switch {
	case worst != nil:
		verdict = t.verdictOf(*worst)
		verdict.Facts = t.factsOf(worst.comparedWith(lists))
	case isOnlyMember:
		verdict = t.allowOnlyMember()
	case len(rejoins) > 0:
		verdict = t.refusePossibleRejoin(rejoins)
	default:
		verdict = t.allowNothingToProtect()
	}
	contested := slices.DeleteFunc(observation.SortedIDs(t.contested), func(id v1alpha1.MemberID) bool {
		return !observation.IsListedByAny(lists, id)
	})
	if verdict.Allowed && len(contested) > 0 {
		verdict = t.refuseContested(contested)
	}
	for _, id := range contested {
		members[id] = true
	}
	verdict.Cluster, verdict.Members = observation.ClusterIDOf(v.Cluster), observation.SortedIDs(members)
	return verdict
}

// Force allows a deletion whatever Decide returns. The verdict names every member that may be on
// the node according to any source, because the lists and the knowledge of the node may differ in
// age.
func Force(v View, r Request) Verdict {
	verdict, t := decideQuorum(v, r), newTarget(snapshotFor(v, r), r)
	lists := observation.Confirmed(observation.Accepted(t.Cluster)) // Without etcd, none is fresh.
	members := slices.Concat(verdict.Members, t.possibleMembers(), t.possibleRejoins(lists))
	slices.Sort(members)
	verdict.Members = slices.Compact(members)
	verdict.Allowed, verdict.Reason, verdict.Final = true, BreakGlassUsed, true
	return verdict
}

// allowNothingToProtect allows because no list contains a member on the node.
func (t requestTarget) allowNothingToProtect() Verdict {
	return Verdict{
		Allowed: true, Reason: NothingToProtect, Final: len(t.Lists) > 1 || len(t.Pending()) == 0,
		Facts: Facts{Finding: FoundNothing, Request: t.Request},
	}
}

// verdictOf returns the verdict that the worst tally decides, without facts.
func (s Snapshot) verdictOf(worst Tally) Verdict {
	verdict := Verdict{
		Allowed: worst.IsSafe(), Reason: QuorumKept,
		Final: worst.IsSafe() || !worst.canBecomeSafe() || len(s.Pending()) == 0,
	}
	if !verdict.Allowed {
		verdict.Reason = QuorumWouldBeLost
	}
	return verdict
}

// refuseWithoutList refuses because no agent answered with a confirmed list. The verdict makes no
// statement about quorum. No source may name a member on the node: the list that made Select return
// the cluster may be the one that is missing now (docs/verdict.md,
// F64).
func (t requestTarget) refuseWithoutList() Verdict {
	members := t.possibleMembers()
	return Verdict{
		Reason: CannotSee, Cluster: observation.ClusterIDOf(t.Cluster), Members: members,
		Final: len(t.Pending()) == 0,
		Facts: Facts{Finding: FoundNoList, Request: t.Request, Members: members, Silence: t.silence()},
	}
}

// refuseContested refuses because the node announces members that are bound to another Node.
func (t requestTarget) refuseContested(members []v1alpha1.MemberID) Verdict {
	facts := Facts{Finding: FoundContested, Request: t.Request, Members: members}
	for _, id := range members {
		b := t.Bindings[id]
		facts.Holders = append(facts.Holders, Holder{Member: id, Node: b.Node, HasAnswered: t.hasAnswered(b)})
	}
	return Verdict{Reason: UnknownMember, Final: true, Facts: facts}
}

// Combine returns the Decision over all clusters, without texts. One refusal refuses.
func Combine(verdicts []Verdict) Decision {
	d := Decision{Allowed: len(verdicts) > 0, Verdicts: slices.Clone(verdicts)}
	for _, v := range verdicts {
		d.Allowed = d.Allowed && v.Allowed
	}
	if deciding := d.Deciding(); len(deciding) > 0 {
		d.Reason = deciding[0].Reason
	}
	return d
}

// Deciding returns the verdicts that agree with the decision: the refusals, if it is one.
func (d Decision) Deciding() []Verdict {
	return slices.DeleteFunc(slices.Clone(d.Verdicts), func(v Verdict) bool { return v.Allowed != d.Allowed })
}
