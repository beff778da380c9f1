package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// DecideTogether decides for one etcd cluster whether it keeps quorum if the nodes of all requests
// are gone at once. The members that Decide has on one of the nodes are gone, and the tally under
// every list is that of Decide. MinRemainingTolerance is no part of the question.
//
// The answer is Unknown if it is not known which members the nodes have, and if the proofs of an
// observer that is silent could change it.
func DecideTogether(v View, requests []Request) (Verdict, Answer) {
	s := NewSnapshot(v)
	if len(s.Lists) == 0 {
		return finishTogether(s, Verdict{Reason: CannotSee, Message: Summarize(v).Message})
	}
	gone, lists := map[v1alpha1.MemberID]bool{}, slices.Clone(s.Lists)
	var nodes []string
	unknown := ""
	for _, r := range requests {
		alone := Decide(v, r)
		if alone.Reason == UnknownMember {
			unknown, _, _ = strings.Cut(alone.Message, "\n")
		}
		if len(alone.Members) > 0 {
			nodes = append(nodes, r.Node)
		}
		for _, id := range alone.Members {
			gone[id] = true
		}
		lists = append(lists, newTarget(s, r).ownLists...)
	}
	if unknown != "" {
		return finishTogether(s, Verdict{Reason: UnknownMember, Message: unknown})
	}
	members := observation.SortedIDs(gone)
	worst := s.worstWithout(lists, members)
	if worst == nil {
		return finishTogether(s, Verdict{
			Allowed: true, Reason: NothingToProtect, Final: true,
			Message: fmt.Sprintf("no member of etcd cluster %s is on these nodes", observation.ClusterIDOf(v.Cluster)),
		})
	}
	verdict := Verdict{
		Allowed: worst.isSafe(), Reason: QuorumKept, Members: members,
		Voters: worst.voters, Healthy: worst.healthy, Quorum: worst.quorum,
		Final: worst.isSafe() || !worst.canBecomeSafe() || len(s.Pending()) == 0,
	}
	if !verdict.Allowed {
		verdict.Reason = QuorumWouldBeLost
	}
	verdict.Message = s.togetherMessage(verdict, worst.comparedWith(lists), nodes)
	return finishTogether(s, verdict)
}

// worstWithout returns the tally with the smallest margin, of the lists that have one of the
// members, which count as gone. It returns nil if no list has one.
func (s Snapshot) worstWithout(lists []v1alpha1.Observation, gone []v1alpha1.MemberID) *memberTally {
	var worst *memberTally
	for _, list := range lists {
		tally := s.tallyList(list, gone, 0)
		if len(tally.withStatus(statusOnNode)) > 0 && tally.isWorseThan(worst) {
			worst = &tally
		}
	}
	return worst
}

// finishTogether completes a verdict, and returns it with its answer.
func finishTogether(s Snapshot, v Verdict) (Verdict, Answer) {
	v.Cluster, v.Message = observation.ClusterIDOf(s.Cluster), printable.Text(v.Message)
	switch {
	case v.Allowed:
		return v, Yes
	case v.Reason == QuorumWouldBeLost && v.Final:
		return v, No
	}
	return v, Unknown
}

// togetherMessage explains a verdict with a tally: the arithmetic, and every member if the cluster
// may not keep quorum.
func (s Snapshot) togetherMessage(v Verdict, tally memberTally, nodes []string) string {
	fact := fmt.Sprintf("etcd cluster %s %s without %s %s: %d of %s must be healthy, and %d would remain",
		observation.ClusterIDOf(s.Cluster), togetherVerb(v), agree(len(nodes), "node", "nodes"), strings.Join(nodes, ", "),
		tally.quorum, observation.Plural(tally.voters, "voter"), tally.healthy)
	if v.Allowed {
		return fact
	}
	lines := []string{fact}
	if tally.sources != "" {
		lines = append(lines, "  "+tally.sources)
	}
	for _, m := range tally.members {
		description := m.description()
		if m.status == statusOnNode {
			description = "would be gone"
			if m.node != "" {
				description += " with node " + m.node
			}
		}
		lines = append(lines, "  "+m.title()+m.location()+": "+description)
	}
	return strings.Join(lines, "\n")
}

// togetherVerb returns what the message of a verdict says about quorum.
func togetherVerb(v Verdict) string {
	switch {
	case v.Allowed:
		return "keeps quorum"
	case v.Final:
		return "would lose quorum"
	}
	return "may lose quorum"
}
