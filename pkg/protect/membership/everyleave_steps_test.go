package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// leaveSteps collects the states after each possible step of a state, and what went wrong.
type leaveSteps struct {
	from   leaveState
	states []leaveState
	wrong  string
}

// next returns the states after each possible step, and the steps that broke a rule, or "".
func (s leaveState) next() (states []leaveState, wrong string) {
	steps := leaveSteps{from: s}
	steps.add("round of the leader", func(n *leaveState) bool { n.leaderRound(); return true })
	for _, d := range []time.Duration{35 * time.Second, 5 * time.Minute, 21 * time.Minute} {
		steps.add("time passes: "+d.String(), func(n *leaveState) bool { n.pass(d); return true })
	}
	for m := range s.machines {
		steps.addRequests(m)
		steps.addNodeSteps(m)
		steps.addMachineSteps(m)
		steps.addMemberSteps(m)
	}
	return steps.states, steps.wrong
}

// pass advances the time. A request is over after a minute, the longest timeout of the API server.
func (s *leaveState) pass(d time.Duration) {
	s.now = s.now.Add(d)
	for m := range s.machines {
		if h := &s.machines[m]; h.deleteUID != "" && s.now.Sub(h.deleteAt) >= time.Minute {
			h.endDelete()
		}
		if h := &s.machines[m]; s.now.Sub(h.markAt) >= time.Minute {
			h.markAt = time.Time{}
		}
	}
}

func (h *leaveMachine) endDelete() { h.deleteUID, h.deleteVersion, h.deleteAt = "", 0, time.Time{} }

// add adds the state after a step, unless do returns false.
func (s *leaveSteps) add(name string, do func(n *leaveState) bool) {
	n := s.from.clone()
	if do(&n) {
		n.trace = append(n.trace, name)
		s.states = append(s.states, n)
	}
}

// addOn adds a step of one machine.
func (s *leaveSteps) addOn(m int, name string, do func(n *leaveState, h *leaveMachine) bool) {
	s.add(name+" "+leaveNode(m), func(n *leaveState) bool { return do(n, &n.machines[m]) })
}

// addRequests adds what the webhook decides: the deletion of the Node, the end of its machine, a
// drain.
func (s *leaveSteps) addRequests(m int) {
	h := s.from.machines[m]
	isBound := func(b v1alpha1.Binding) bool { return string(b.NodeUID) == h.uid }
	if h.uid == "" || s.from.announced(m) == nil && !slices.ContainsFunc(s.from.spec.Members, isBound) {
		return
	}
	isQuiet, isAnyAllowed := s.from.isQuiet(), false
	request := func(n *leaveState, door quorum.DoorKind) bool {
		v, r := n.view(), n.request(m, door)
		verdict := quorum.Decide(v, r)
		isAnyAllowed = isAnyAllowed || verdict.Allowed
		if !verdict.Allowed || len(verdict.Members) == 0 {
			return false // what leaves a node without a member is not judged
		}
		isVoter := slices.Contains(s.from.voters, [2]int{m, h.member})
		left, all := s.from.countLeft(m), len(s.from.voters)
		needed := all/2 + 1
		if door == quorum.DoorRemove && s.from.serves([2]int{m, h.member}) && !s.from.mayLeave(m) {
			needed = (all-1)/2 + 1
		}
		isOnly := verdict.Reason == quorum.OnlyMember && all == 1 // there is no quorum to keep
		if isVoter && left < needed && !isOnly {
			s.fail(fmt.Sprintf("the request about %s was allowed (%s), and %d of %d voters are left",
				leaveNode(m), verdict.Reason, left, all))
		}
		at := slices.IndexFunc(n.spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == r.UID })
		var old v1alpha1.Grant
		if at >= 0 {
			old = n.spec.Grants[at]
		}
		n.put(quorum.With(v, old, r, verdict.Members))
		return true
	}
	s.addOn(m, "DELETE", func(n *leaveState, x *leaveMachine) bool {
		x.deleteUID, x.deleteVersion, x.deleteAt = h.uid, h.version, n.now
		return request(n, quorum.DoorDelete)
	})
	s.addOn(m, "delete the Machine of", func(n *leaveState, x *leaveMachine) bool {
		x.isEnding = true
		return !h.isEnding && !h.ended && request(n, quorum.DoorMachine)
	})
	s.addOn(m, "drain", func(n *leaveState, x *leaveMachine) bool {
		x.cordoned, x.stage = true, drainAllowed
		return h.stage == notDrained && !h.ended && request(n, quorum.DoorDrain)
	})
	s.addOn(m, "mark for the removal", func(n *leaveState, x *leaveMachine) bool {
		x.markAt = n.now
		return !h.isMarked && h.markAt.IsZero() && !h.ended && request(n, quorum.DoorRemove)
	})
	if isQuiet && !isAnyAllowed {
		s.fail(fmt.Sprintf("nothing is in progress, and every request about %s is refused", leaveNode(m)))
	}
}

func (s *leaveSteps) fail(what string) {
	if s.wrong == "" {
		s.wrong = strings.Join(append(slices.Clone(s.from.trace), what), "\n")
	}
}

// addNodeSteps adds what happens to a Node without a review.
func (s *leaveSteps) addNodeSteps(m int) {
	s.addOn(m, "the API server deletes", func(n *leaveState, h *leaveMachine) bool {
		if h.deleteUID == "" || h.deleteUID != h.uid || h.deleteVersion != h.version {
			return false
		}
		h.endDelete()
		h.uid, h.cordoned, h.goneAt, h.stage = "", false, n.now, notDrained
		h.markAt, h.isMarked = time.Time{}, false
		return true
	})
	s.addOn(m, "the API server marks", func(_ *leaveState, h *leaveMachine) bool {
		wasAllowed := !h.markAt.IsZero() && h.uid != ""
		h.markAt, h.isMarked = time.Time{}, true
		h.version++
		return wasAllowed
	})
	s.addOn(m, "cancel the removal of", func(_ *leaveState, h *leaveMachine) bool {
		wasMarked := h.isMarked
		h.isMarked = false
		return wasMarked
	})
	s.addOn(m, "abandon the DELETE of", func(_ *leaveState, h *leaveMachine) bool {
		wasDeleted := h.deleteUID != ""
		h.endDelete()
		return wasDeleted
	})
	s.addOn(m, "write", func(_ *leaveState, h *leaveMachine) bool {
		h.version++
		return h.uid != "" && h.version <= 3
	})
	s.addOn(m, "uncordon", func(_ *leaveState, h *leaveMachine) bool {
		if !h.cordoned || h.stage < machineDown {
			return false
		}
		h.cordoned = false
		if h.stage == machineUp {
			h.stage = notDrained
		}
		return true
	})
	s.addOn(m, "register", func(_ *leaveState, h *leaveMachine) bool {
		if h.uid != "" || h.ended || h.generation > 1 {
			return false
		}
		h.generation++
		h.uid, h.version = fmt.Sprintf("u%d-%d", m, h.generation), 1
		return true
	})
}

// addMachineSteps adds the restart and the end of a machine.
func (s *leaveSteps) addMachineSteps(m int) {
	s.addOn(m, "restart", func(_ *leaveState, h *leaveMachine) bool {
		isDrained := h.stage == drainAllowed
		h.stage, h.running = machineDown, false
		return isDrained
	})
	s.addOn(m, "up again", func(_ *leaveState, h *leaveMachine) bool {
		wasDown := h.stage == machineDown
		h.stage, h.running = machineUp, true
		if !h.cordoned {
			h.stage = notDrained
		}
		return wasDown
	})
	s.addOn(m, "end", func(n *leaveState, h *leaveMachine) bool {
		isRemoved := !h.goneAt.IsZero() && n.now.Sub(h.goneAt) < quorum.ResolveMovedAfter
		if h.ended || !isRemoved && !h.isEnding {
			return false
		}
		h.ended, h.running, h.uid, h.isEnding = true, false, "", false
		h.markAt, h.isMarked = time.Time{}, false
		return true
	})
	s.addOn(m, "stop etcd on", func(_ *leaveState, h *leaveMachine) bool {
		wasRunning := h.running
		h.running = false
		return wasRunning && !s.from.mayLeave(m) && s.from.countServing() == len(s.from.voters)
	})
}

// addMemberSteps adds what a careful operator does with the members of a machine.
func (s *leaveSteps) addMemberSteps(m int) {
	before := s.from
	isOfMachine := func(v [2]int) bool { return v[0] == m }
	if at := slices.IndexFunc(before.voters, isOfMachine); at >= 0 {
		s.addOn(m, "k3s removes the member of", func(n *leaveState, h *leaveMachine) bool {
			n.voters = slices.Delete(n.voters, at, at+1)
			isDue := h.isMarked && before.hasQuorum()
			h.running, h.member, h.isMarked = false, 0, false
			return isDue
		})
		s.addOn(m, "remove the member of", func(n *leaveState, h *leaveMachine) bool {
			isNeeded := before.serves(before.voters[at]) && !before.mayLeave(m)
			if !before.hasQuorum() || before.countLeft(m) < (len(before.voters)-1)/2+1 || isNeeded {
				return false
			}
			n.voters = slices.Delete(n.voters, at, at+1)
			h.running, h.member = false, 0
			return true
		})
		return
	}
	s.addOn(m, "join on", func(n *leaveState, h *leaveMachine) bool {
		generation := 2
		isBound := func(b v1alpha1.Binding) bool { return b.MemberID == leaveMember(m, generation) }
		for slices.ContainsFunc(before.spec.Members, isBound) {
			generation++
		}
		if h.ended || h.stage == machineDown || !before.hasQuorum() || generation > 3 || h.generation > 2 ||
			before.countLeft(-1) < (len(before.voters)+1)/2+1 {
			return false
		}
		h.member, h.running = generation, true
		n.voters = append(n.voters, [2]int{m, generation})
		slices.SortFunc(n.voters, func(a, b [2]int) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
		return true
	})
}
