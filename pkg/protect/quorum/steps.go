package quorum

import (
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// removableMembers returns the members that an operator may remove from the list once they are
// permanently gone. A member is not removable if its state could not be read, if it still answers
// although it counts as lost, or if another list does not contain it.
func (t Tally) removableMembers() []MemberState {
	return slices.DeleteFunc(append(t.With(CountsUnproven), t.With(CountsLost)...), func(m MemberState) bool {
		return m.Cause.Problem.isAboutAlarms() || m.Cause.Problem == NodeUnread || m.StillAnswers || m.IsMissingElsewhere
	})
}

// isSafeWithout reports whether the deletion would be allowed if these members left the list.
func (t Tally) isSafeWithout(removed []MemberState) bool {
	return t.isSafeWithVoters(t.Voters-len(removed), t.Healthy)
}

// waitSteps lists what may resolve itself.
func (t requestTarget) waitSteps(tally Tally) []Step {
	var steps []Step
	for _, m := range tally.With(CountsAway) {
		steps = append(steps, Step{Kind: StepAwaitReturn, Members: []MemberState{m}})
	}
	return slices.Concat(readSteps(tally), t.grantSteps(tally), t.lossSteps(tally), steps)
}

// readSteps are the steps about what could not be read, or differs between the lists.
func readSteps(tally Tally) (steps []Step) {
	var unread []string
	for _, m := range tally.With(CountsLost) {
		if m.Cause.Problem == NodeUnread {
			unread = append(unread, m.Node)
		}
	}
	if len(unread) > 0 {
		steps = append(steps, Step{Kind: StepReadNodes, Nodes: unread})
	}
	alarmsUnread := func(m MemberState) bool { return m.Cause.Problem.isAboutAlarms() }
	if slices.ContainsFunc(tally.With(CountsUnproven), alarmsUnread) {
		steps = append(steps, Step{Kind: StepReadAlarms})
	}
	if missing := tally.missingElsewhere(); len(missing) > 0 {
		steps = append(steps, Step{Kind: StepCompareLists, Members: missing})
	}
	return steps
}

// grantSteps are the steps about the grants of nodes that still exist.
func (t requestTarget) grantSteps(tally Tally) (steps []Step) {
	for _, g := range t.effectiveGrants(tally) {
		n := t.Nodes[g.Node]
		step := Step{Kind: StepAwaitNode, Nodes: []string{g.Node}, At: t.ifLater(g, ResolvePresentAfter)}
		switch {
		case !n.Known || n.UID != g.NodeUID:
			continue
		case g.Drain != nil:
			step = Step{Kind: StepAwaitDrained, Grant: g, State: n, Members: t.lostBy(g, tally)}
		case n.Deleting || n.Departure.Class == departure.ForGood:
			continue
		case IsByEtcdMember(g):
			step = Step{Kind: StepAwaitRemoval, Members: t.lostBy(g, tally)}
		}
		steps = append(steps, step)
	}
	return steps
}

// ifLater returns when this time has passed since the last grant, zero if that is not later.
func (t requestTarget) ifLater(g v1alpha1.Grant, after time.Duration) time.Time {
	if at := LastOpened(g).Add(after); t.Now.Before(at) {
		return at
	}
	return time.Time{}
}

// lossSteps are the steps about lost members that still answer, or whose machine stays.
func (t requestTarget) lossSteps(tally Tally) (steps []Step) {
	for _, m := range tally.With(CountsLost) {
		step := Step{Members: []MemberState{m}, Mark: t.Nodes[m.Node].Departure}
		if m.Cause.Problem == Rejoined || m.Cause.Problem == PerhapsRejoined {
			step.Kind = StepAwaitMachine
			steps = append(steps, step)
		}
		if !m.StillAnswers || m.Cause.Problem == NodeUnread || t.isDrained(m) {
			continue
		}
		step.Kind = StepAwaitEnd
		if step.Mark.IsRemoval() {
			step.Kind = StepAwaitRemoval
		}
		steps = append(steps, step)
	}
	return steps
}

// repairSteps lists the steps that repair or remove unhealthy members.
func repairSteps(tally Tally) []Step {
	var steps []Step
	for _, m := range tally.removableMembers() {
		steps = append(steps, Step{Kind: StepRepair, Members: []MemberState{m}})
	}
	return steps
}

// replaceSteps lists the steps after which the cluster does not need the members on the node.
func (t requestTarget) replaceSteps(tally Tally) []Step {
	var steps []Step
	onNode, missing := tally.With(CountsOnNode), tally.missingElsewhere()
	others := slices.Concat(tally.With(CountsUnproven), tally.With(CountsLost), tally.With(CountsAway))
	if len(others)+len(missing) == 0 {
		more := 1
		for !tally.isSafeWithVoters(tally.Voters+more, tally.Healthy+more) {
			more++
		}
		steps = append(steps, Step{Kind: StepAddVoters, Voters: more})
	}
	if t.Door != DoorRemove && len(missing) == 0 && tally.isSafeWithVoters(tally.Voters-len(onNode), tally.Healthy) {
		// This step always follows another one.
		steps = append(steps, Step{Kind: StepRemoveFirst, Members: onNode})
	}
	return steps
}

// resolveSteps lists the grants to resolve by hand, for deletions that will not happen and for
// members that run on another machine.
func (t requestTarget) resolveSteps(tally Tally) []Step {
	var steps []Step
	for _, g := range t.effectiveGrants(tally) {
		steps = append(steps, Step{
			Kind: StepResolve, Grant: g, Members: t.lostBy(g, tally), At: t.ifLater(g, ResolveByHandAfter),
		})
	}
	for _, m := range tally.With(CountsLost) {
		if m.Cause.Problem == GrantedElsewhere {
			steps = append(steps, Step{
				Kind: StepResolve, Grant: *m.Cause.Grant, Members: []MemberState{m},
				At: t.ifLater(*m.Cause.Grant, ResolveByHandAfter),
			})
		}
	}
	return steps
}

// effectiveGrants returns the grants by which members of the tally count as lost.
func (t requestTarget) effectiveGrants(tally Tally) []v1alpha1.Grant {
	return slices.DeleteFunc(slices.Clone(t.Cluster.Spec.Grants), func(g v1alpha1.Grant) bool {
		return len(t.lostBy(g, tally)) == 0
	})
}

// lostBy returns the members of the tally that count as lost by a grant.
func (t requestTarget) lostBy(g v1alpha1.Grant, tally Tally) []MemberState {
	return slices.DeleteFunc(tally.With(CountsLost), func(m MemberState) bool {
		return t.giveUpOf(m.ID, g) == NoProblem
	})
}
