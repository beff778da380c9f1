package protect

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Decide judges the deletion of a Node for one etcd cluster. Deleting a Node removes no member from the list, so that
// the question is how many voters would be lost, not how many would remain in a smaller cluster:
//
//	allow ⇔ voters proven healthy that are neither on the node nor lost already ≥ ⌊voters/2⌋+1 (+ MinRemainingTolerance)
//
// under every member list that a bound observer, or the node's own agent, gave in answer to this question and that a quorum
// confirmed. Health is proven by bound observers alone.
func Decide(v View, r Request) Verdict {
	if v.Cluster == nil {
		return Verdict{Reason: CannotSee, Final: true, Message: "no EtcdCluster was given to decide from"}
	}
	t := newSight(v).target(r)
	if len(t.lists) == 0 {
		return t.blind()
	}
	var worst *tally
	members, contested := map[v1alpha1.MemberID]bool{}, map[v1alpha1.MemberID]bool{}
	for _, list := range slices.Concat(t.lists, t.own) {
		on := t.on(list)
		for _, m := range list.Members {
			contested[m.ID] = contested[m.ID] || t.contested[m.ID]
		}
		if len(on) == 0 {
			continue
		}
		for _, id := range on {
			members[id] = true
		}
		count := t.count(list, on, v.MinRemainingTolerance)
		if worst == nil || count.healthy-count.need < worst.healthy-worst.need {
			worst = &count
		}
	}
	verdict := t.judge(worst)
	if again := t.rejoined(); worst == nil && len(again) > 0 {
		verdict = t.unclear(again)
	}
	if verdict.Allowed && len(sorted(contested)) > 0 {
		verdict = t.dispute(sorted(contested))
	}
	for id := range contested {
		members[id] = members[id] || contested[id]
	}
	verdict.Cluster, verdict.Members = clusterID(v.Cluster), sorted(members)
	return verdict
}

// Force is the verdict for a deletion that is wanted whatever Decide says: allowed, with every member that may be on the
// node by all that was ever said, since the lists may be older than the member, or newer than what is known of the node.
func Force(v View, r Request) Verdict {
	verdict := Decide(v, r)
	t := newSight(v).target(r)
	t.lists = confirmedOf(observers(t.cluster)) // etcd may be away
	members := map[v1alpha1.MemberID]bool{}
	for _, id := range slices.Concat(verdict.Members, t.known(), t.rejoined()) {
		members[id] = true
	}
	verdict.Members = sorted(members)
	verdict.Allowed, verdict.Reason, verdict.Final = true, BreakGlassUsed, true
	return verdict
}

// judge turns the worst count into a verdict. Nil says that no list has a member that is on the node.
func (t target) judge(worst *tally) Verdict {
	if worst == nil {
		return Verdict{Allowed: true, Reason: NothingToProtect, Final: t.conclusive(), Message: t.nothing(), Warning: t.alone()}
	}
	verdict := Verdict{Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum}
	if worst.safe() {
		verdict.Allowed, verdict.Final, verdict.Reason = true, true, QuorumKept
		verdict.Message, verdict.Warning = t.kept(*worst), t.warning(*worst)
		return verdict
	}
	verdict.Reason, verdict.Message = QuorumWouldBeLost, t.refusal(*worst)
	verdict.Final = worst.hopeless() || len(t.pending()) == 0
	return verdict
}

// blind is the verdict without any list: never a statement about quorum.
func (t target) blind() Verdict {
	members := t.known()
	if len(members) == 0 {
		return Verdict{Allowed: true, Reason: NothingToProtect, Cluster: clusterID(t.cluster), Final: true, Message: t.nothing()}
	}
	return Verdict{
		Reason: CannotSee, Cluster: clusterID(t.cluster), Members: members,
		Final: len(t.pending()) == 0, Message: t.cannotSee(members),
	}
}

// dispute refuses because the node announces what another Node has.
func (t target) dispute(members []v1alpha1.MemberID) Verdict {
	return Verdict{Reason: UnknownMember, Final: true, Message: t.disputed(members)}
}
