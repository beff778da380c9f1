package protect

import (
	"slices"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// standing is what a member counts for.
type standing int

// The standings. All but learner are voters, or count as voters.
const (
	learner standing = iota
	onNode
	lost
	unproven
	healthy
)

// cause is what a member that does not count as healthy suffers from, which decides what is to be done about it.
type cause int

// The causes. The first ones go with unproven, the last ones with lost.
const (
	noProof cause = iota
	corruptData
	neverStarted
	alarmsUnread
	nodeUnread
	doomed
)

// seat is one member of a list and what it counts for.
type seat struct {
	v1alpha1.MemberStatus
	standing standing
	// node is where it is bound, empty if it is bound nowhere.
	node string
	// why explains lost and unproven, and also why one that is on the node is not healthy; cause sorts it.
	why   string
	cause cause
	// promoted says that it is a learner which counts as a voter, since it may be promoted while it is doomed.
	promoted bool
	// lives says of a lost one that it answers all the same: the machine has not gone yet, or it runs on another.
	lives bool
}

// tally is the arithmetic under one list.
type tally struct {
	seats []seat
	// voters, healthy and quorum are those of Verdict; hopeful is healthy if every silent observer proved all that it could.
	voters, healthy, hopeful, quorum int
	// need is how many must be healthy elsewhere.
	need int
}

// count does the loss arithmetic under one list: the Node's deletion removes nobody from the list, so that the voters are
// the current ones, and whoever is on the node or given up counts among them as dead.
func (s sight) count(o v1alpha1.Observation, on []v1alpha1.MemberID, tolerance int) tally {
	var t tally
	for _, m := range o.Members {
		taken := s.seat(m, slices.Contains(on, m.ID))
		t.seats = append(t.seats, taken)
		if taken.standing == learner {
			continue
		}
		t.voters++
		switch {
		case taken.standing == healthy:
			t.healthy++
			t.hopeful++
		case taken.standing == unproven && m.Name != "" && !s.corrupt[m.ID]:
			t.hopeful++
		}
	}
	t.quorum = t.voters/2 + 1
	t.need = t.quorum + max(0, tolerance)
	return t
}

func (s sight) seat(m v1alpha1.MemberStatus, here bool) seat {
	taken := seat{MemberStatus: m, standing: unproven, node: s.bindings[m.ID].Node}
	given, node, why := s.givenUp(m.ID)
	switch {
	case !here && why != "":
		taken.standing, taken.cause, taken.node, taken.why, taken.promoted = lost, given, node, why, m.Learner
		taken.lives = slices.ContainsFunc(s.answers, func(o v1alpha1.Observation) bool {
			seen, found := listed(o, m.ID)
			return found && seen.Healthy
		})
		return taken
	case !here && m.Learner:
		taken.standing = learner
		return taken
	case s.corrupt[m.ID]:
		taken.cause, taken.why = corruptData, "it has raised the alarm CORRUPT: its data differ from the others'"
	case m.Name == "":
		taken.cause, taken.why = neverStarted, "it was added and has never started"
	case s.proven[m.ID] && !s.alarmsRead:
		taken.cause, taken.why = alarmsUnread, "nobody who answered could read etcd's alarms, so that its data may be corrupt"
	case s.proven[m.ID], here && m.Learner:
		taken.standing = healthy
	default:
		taken.why = s.doubt(m.ID)
	}
	if here {
		taken.standing, taken.promoted = onNode, m.Learner
		if taken.cause == alarmsUnread {
			taken.why = ""
		}
	}
	return taken
}

// safe says that quorum is kept without the node.
func (t tally) safe() bool { return t.healthy >= t.need }

// hopeless says that no further proof can make it safe.
func (t tally) hopeless() bool { return t.hopeful < t.need }

// with returns the seats of one standing.
func (t tally) with(s standing) []seat {
	var found []seat
	for _, taken := range t.seats {
		if taken.standing == s {
			found = append(found, taken)
		}
	}
	return found
}
