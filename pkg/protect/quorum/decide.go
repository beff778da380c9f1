package quorum

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
// A drain is decided like a deletion, but only for a node that is closed.
func Decide(v View, r Request) Verdict {
	if verdict, isRefused := RefuseOpenNode(v.Nodes[r.Node], r); isRefused {
		verdict.Cluster = observation.ClusterIDOf(v.Cluster)
		return verdict
	}
	return decideQuorum(v, r)
}

// decideQuorum decides whether or not the node is closed.
func decideQuorum(v View, r Request) Verdict {
	t := newTarget(NewSnapshot(v), r)
	if len(t.Lists) == 0 {
		return t.refuseWithoutList()
	}
	var worst *memberTally
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
			if tally := t.tallyList(list, onNode, v.MinRemainingTolerance); tally.isWorseThan(worst) {
				worst = &tally
			}
		}
	}
	var verdict Verdict
	rejoins := t.possibleRejoins(t.Lists)
	switch {
	case worst != nil:
		verdict = t.decideTally(worst.comparedWith(lists))
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
	verdict := decideQuorum(v, r)
	members := map[v1alpha1.MemberID]bool{}
	// Without etcd, no list is fresh.
	for _, id := range slices.Concat(verdict.Members, newTarget(NewSnapshot(v), r).possibleLosses()) {
		members[id] = true
	}
	verdict.Members = observation.SortedIDs(members)
	verdict.Allowed, verdict.Reason, verdict.Final = true, BreakGlassUsed, true
	return verdict
}

// allowNothingToProtect allows because no list contains a member on the node.
func (t requestTarget) allowNothingToProtect() Verdict {
	return Verdict{
		Allowed: true, Reason: NothingToProtect, Final: t.IsConclusive(),
		Message: t.nothingMessage(), Warning: t.singleSourceWarning(),
	}
}

// decideTally turns the worst tally into a verdict.
func (t requestTarget) decideTally(worst memberTally) Verdict {
	verdict := Verdict{Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum}
	if worst.isSafe() {
		verdict.Allowed, verdict.Final, verdict.Reason = true, true, QuorumKept
		if worst.sources == "" {
			verdict.VoterIDs = worst.voterIDs()
		}
		verdict.Message, verdict.Warning = t.keptMessage(worst), t.keptWarning(worst)
		return verdict
	}
	verdict.Reason, verdict.Message = QuorumWouldBeLost, t.refusalMessage(worst)
	verdict.Final = !worst.canBecomeSafe() || len(t.Pending()) == 0
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
		Final: len(t.Pending()) == 0, Message: t.cannotSeeMessage(members),
	}
}

// refuseContested refuses because the node announces members that are bound to another Node.
func (t requestTarget) refuseContested(members []v1alpha1.MemberID) Verdict {
	return Verdict{Reason: UnknownMember, Final: true, Message: t.contestedMessage(members)}
}

// Combine returns the Decision over all clusters. One refusal refuses. The Decision then
// contains the refusals only.
func Combine(verdicts []Verdict) Decision {
	decision := Decision{Allowed: len(verdicts) > 0, Verdicts: verdicts}
	for _, v := range verdicts {
		decision.Allowed = decision.Allowed && v.Allowed
	}
	var messages []string
	for _, v := range verdicts {
		if v.Allowed != decision.Allowed {
			continue
		}
		if decision.Reason == "" {
			decision.Reason = v.Reason
		}
		if v.Message != "" {
			messages = append(messages, v.Message)
		}
		if v.Warning != "" {
			decision.Warnings = append(decision.Warnings, v.Warning)
		}
	}
	decision.Message = strings.Join(messages, "\n")
	return decision
}

// RepeatWithin is the time after a grant in which a review of the same deletion is answered by that
// grant: the request timeout of the API server (60 s by default), which limits one DELETE.
const RepeatWithin = time.Minute

// Repeat returns the verdict of a grant that an earlier review of the same deletion wrote, for a
// review that Decide refuses. The API server reviews one DELETE again if the Node was written
// meanwhile. The first review allowed the deletion, and since then its members count as lost for
// every other review. A refusal now would fail the DELETE and still leave its members lost.
//
// The grant answers only for another version of the Node, for its own user, within RepeatWithin,
// and if it names every member that the deletion may lose now by any source. The members that count
// as voters must be unchanged: an earlier DELETE by the same user may have failed. Since then a
// member may have been removed (docs/verdict.md, F46), or a learner may have joined on a machine
// that is lost (F77). So at least one agent must have answered with a confirmed list (F62).
//
// A review of the same version is about another DELETE: the API server does not review one version
// twice. A tombstone has no user, and a break-glass grant follows from no decision: neither
// answers. The caller writes nothing. A grant whose time was renewed here would answer again and
// again without a decision. The API server reviews an eviction only once, so drains are always
// decided, and the grant of a drain answers no deletion. Nor does a grant whose time is that of a
// drain after the deletion.
func Repeat(v View, r Request, now time.Time) (_ Verdict, isRepeated bool) {
	c := v.Cluster
	if r.UID == "" || r.User == "" || r.Drain || r.DryRun || r.BreakGlass != nil {
		return Verdict{}, false
	}
	at := slices.IndexFunc(c.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == r.UID })
	if at < 0 {
		return Verdict{}, false
	}
	g := c.Spec.Grants[at]
	age := now.Sub(g.Time.Time)
	isRewritten := g.NodeVersion != "" && r.Version != "" && g.NodeVersion != r.Version
	isForDeletion := g.Reason != v1alpha1.GrantDrain && !g.BreakGlass && (g.Drained == nil || g.Drained.Before(&g.Time))
	if !isRewritten || !isForDeletion || g.User != r.User || age < 0 || age >= RepeatWithin {
		return Verdict{}, false
	}
	t, voters := newTarget(NewSnapshot(v), r), slices.Sorted(slices.Values(g.Voters))
	isChanged := func(list v1alpha1.Observation) bool {
		return !slices.Equal(t.tallyList(list, t.membersOnNode(list), 0).voterIDs(), voters)
	}
	if len(t.Lists) == 0 || slices.ContainsFunc(t.decisiveLists(), isChanged) {
		return Verdict{}, false
	}
	// Without the states of Nodes and without fresh observations, more members are possible, and
	// never fewer.
	known := newTarget(NewSnapshot(View{Cluster: c}), r)
	isNew := func(id v1alpha1.MemberID) bool { return !slices.Contains(g.Members, id) }
	if slices.ContainsFunc(known.possibleLosses(), isNew) {
		return Verdict{}, false
	}
	id := observation.ClusterIDOf(c)
	return Verdict{
		Allowed: true, Reason: Repeated, Cluster: id, Members: slices.Clone(g.Members), Final: true,
		Message: fmt.Sprintf("etcd cluster %s: the deletion of node %s by %s was allowed at %s, "+
			"and this review repeats it", id, r.Node, g.User, g.Time.UTC().Format(time.RFC3339)),
	}, true
}
