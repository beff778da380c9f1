package stress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stopDelay extends each lifetime: a process that has received a signal may still send a
// response.
const stopDelay = 5 * time.Millisecond

// A memberID identifies a member of any cluster.
type memberID struct {
	cluster string
	number  uint64
}

func (m memberID) String() string { return fmt.Sprintf("%s/%x", m.cluster, m.number) }

// A timeSpan is a period. If its end is zero, it has not ended.
type timeSpan struct{ from, to time.Time }

func (s timeSpan) overlaps(o timeSpan) bool {
	return (s.to.IsZero() || !s.to.Before(o.from)) && (o.to.IsZero() || !s.from.After(o.to))
}

// A voterSet contains the voters of a cluster, and the period in which they may have been its
// voters.
type voterSet struct {
	timeSpan
	ids []memberID
}

// An allowedDeletion has the time of the request and the response, and the members on the
// machine.
type allowedDeletion struct {
	timeSpan
	node    string
	members []memberID
}

// A deletionHistory records what happened, as the test caused it. Where a time is not known
// exactly, the record favours Holdfast: a member may have lived from before its start until
// after its stop, and voters may have changed at any time during the call.
type deletionHistory struct {
	mu        sync.Mutex // guards the fields below
	lifetimes map[memberID][]timeSpan
	voters    map[string][]voterSet
	deletions []allowedDeletion
}

func newDeletionHistory() *deletionHistory {
	return &deletionHistory{lifetimes: map[memberID][]timeSpan{}, voters: map[string][]voterSet{}}
}

// recordStart records that a member is about to start.
func (h *deletionHistory) recordStart(m memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lifetimes[m] = append(h.lifetimes[m], timeSpan{from: time.Now()})
}

// recordStop records that a member has been stopped.
func (h *deletionHistory) recordStop(m memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lifetimes := h.lifetimes[m]; len(lifetimes) > 0 && lifetimes[len(lifetimes)-1].to.IsZero() {
		lifetimes[len(lifetimes)-1].to = time.Now().Add(stopDelay)
	}
}

// changeVoters records the new voters of a cluster after a call that began at the given time.
func (h *deletionHistory) changeVoters(cluster string, began time.Time, ids []memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.voters[cluster]; len(all) > 0 {
		all[len(all)-1].to = time.Now()
	}
	h.voters[cluster] = append(h.voters[cluster], voterSet{timeSpan{from: began}, ids})
}

// recordAllowed records an allowed deletion.
func (h *deletionHistory) recordAllowed(d allowedDeletion) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deletions = append(h.deletions, d)
}

// verify returns an error unless the deletions can be put in an order in which each of them
// leaves every cluster its quorum. In that order, no deletion comes before another one whose
// response preceded its request. A voter counts for quorum if it is not lost by this or an
// earlier deletion, and if it lived at some time between the request and the response. Holdfast
// cannot guarantee more: it may decide overlapping deletions in any order, and a member may die
// directly after its response to a probe.
func (h *deletionHistory) verify() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	byRequest := func(a, b allowedDeletion) int { return a.from.Compare(b.from) }
	all := slices.SortedFunc(slices.Values(h.deletions), byRequest)
	pendingLoss := map[memberID]bool{}
	for len(all) > 0 {
		// Deletions that overlap, directly or through others, may be in any order.
		end, group := all[0].to, 1
		for group < len(all) && !all[group].from.After(end) {
			if all[group].to.After(end) {
				end = all[group].to
			}
			group++
		}
		if why := h.findOrder(all[:group], pendingLoss); why != "" {
			lines := strings.Split(strings.TrimSpace(why), "\n")
			slices.Sort(lines)
			lines = slices.Compact(lines)
			return fmt.Errorf("these deletions break quorum in every order:\n%s", strings.Join(lines, "\n"))
		}
		for _, d := range all[:group] {
			for _, m := range d.members {
				pendingLoss[m] = true
			}
		}
		all = all[group:]
	}
	return nil
}

// findOrder searches for an order of the open deletions. It returns "" if it finds one, and
// otherwise the reasons.
func (h *deletionHistory) findOrder(open []allowedDeletion, pendingLoss map[memberID]bool) string {
	why := ""
	for i, d := range open {
		if slices.ContainsFunc(open, func(o allowedDeletion) bool { return o.to.Before(d.from) }) {
			continue // that deletion came first
		}
		if short := h.missingQuorum(d, pendingLoss); short != "" {
			why += "\n" + short
			continue
		}
		after := maps.Clone(pendingLoss)
		for _, m := range d.members {
			after[m] = true
		}
		rest := h.findOrder(slices.Delete(slices.Clone(open), i, i+1), after)
		if rest == "" {
			return ""
		}
		why += rest
	}
	if len(open) == 0 {
		return ""
	}
	return why
}

// missingQuorum returns "" if all clusters keep their quorum after this deletion, and otherwise
// the reasons.
func (h *deletionHistory) missingQuorum(d allowedDeletion, pendingLoss map[memberID]bool) string {
	var text []string
	for cluster, versions := range h.voters {
		why, enough := "", true
		for _, v := range versions {
			if !v.overlaps(d.timeSpan) {
				continue
			}
			why, enough = h.checkQuorum(d, cluster, v.ids, pendingLoss)
			if enough {
				break // Holdfast may have used this version
			}
		}
		if !enough {
			text = append(text, why)
		}
	}
	return strings.Join(text, "\n")
}

// checkQuorum reports whether enough of these voters of a cluster are left after the deletion,
// without those in pendingLoss. If not, it returns why.
func (h *deletionHistory) checkQuorum(
	d allowedDeletion, cluster string, ids []memberID, pendingLoss map[memberID]bool,
) (why string, enough bool) {
	var left []memberID
	taken := false
	for _, m := range ids {
		here := slices.Contains(d.members, m)
		taken = taken || here
		if !here && !pendingLoss[m] && slices.ContainsFunc(h.lifetimes[m], d.overlaps) {
			left = append(left, m)
		}
	}
	quorum := len(ids)/2 + 1
	if !taken || len(left) >= quorum {
		return "", true
	}
	return fmt.Sprintf("%s (%s to %s) takes %v: of the voters %v of %s only %v are left, quorum is %d",
		d.node, d.from.Format(clockFormat), d.to.Format(clockFormat), d.members, ids, cluster, left, quorum), false
}

const clockFormat = "15:04:05.000"

// TestVerifyHistory tests that verify detects every deletion that breaks quorum, and no other.
func TestVerifyHistory(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	m := func(n uint64) memberID { return memberID{"a", n} }
	del := func(from, to int, ids ...uint64) allowedDeletion {
		d := allowedDeletion{timeSpan: timeSpan{at(from), at(to)}, node: "n"}
		for _, id := range ids {
			d.members = append(d.members, m(id))
		}
		return d
	}
	change := func(second int, numbers ...uint64) voterSet {
		v := voterSet{timeSpan: timeSpan{from: at(second)}}
		for _, n := range numbers {
			v.ids = append(v.ids, m(n))
		}
		return v
	}
	list := func(deletions ...allowedDeletion) []allowedDeletion { return deletions }
	never := []timeSpan{}
	lived := func(from, to int) []timeSpan { return []timeSpan{{at(from), at(to)}} }
	for name, test := range map[string]struct {
		voters    int
		third     []timeSpan // lifetimes of member 3, by default all the time
		changes   []voterSet
		deletions []allowedDeletion
		wrong     bool
	}{
		"one of three":           {voters: 3, deletions: list(del(1, 2, 1))},
		"two of three in turn":   {voters: 3, deletions: list(del(1, 2, 1), del(3, 4, 2)), wrong: true},
		"two of three at once":   {voters: 3, deletions: list(del(1, 4, 1), del(2, 3, 2)), wrong: true},
		"two of five at once":    {voters: 5, deletions: list(del(1, 4, 1), del(2, 3, 2))},
		"three of five":          {voters: 5, deletions: list(del(1, 4, 1), del(2, 3, 2), del(5, 6, 3)), wrong: true},
		"same node twice":        {voters: 3, deletions: list(del(1, 2, 1), del(3, 4, 1))},
		"other member dead":      {voters: 3, third: never, deletions: list(del(1, 2, 1)), wrong: true},
		"dead member itself":     {voters: 3, third: never, deletions: list(del(1, 2, 3))},
		"other died before":      {voters: 3, third: lived(0, 1), deletions: list(del(2, 4, 1)), wrong: true},
		"other died during":      {voters: 3, third: lived(0, 3), deletions: list(del(2, 4, 1))},
		"other recovered during": {voters: 3, third: []timeSpan{{from: at(3)}}, deletions: list(del(2, 4, 1))},
		"other recovered after": {
			voters: 3, third: []timeSpan{{from: at(5)}},
			deletions: list(del(2, 4, 1)), wrong: true,
		},
		"overlap, died between": {voters: 5, third: lived(0, 2), deletions: list(del(1, 6, 1), del(3, 5, 2))},
		"overlap, died before": {
			voters: 5, third: lived(0, 1),
			deletions: list(del(2, 6, 1), del(3, 5, 2)), wrong: true,
		},
		"lost member replaced": {
			voters: 3, changes: []voterSet{change(3, 2, 3), change(5, 2, 3, 4)},
			deletions: list(del(1, 2, 1), del(6, 7, 2)),
		},
		"lost member removed": {
			voters: 3, changes: []voterSet{change(3, 2, 3)},
			deletions: list(del(1, 2, 1), del(6, 7, 2)), wrong: true,
		},
		"removed during": {
			voters: 3, third: never, changes: []voterSet{change(3, 2, 3)},
			deletions: list(del(2, 4, 1)),
		},
		"learner":            {voters: 3, deletions: list(del(1, 2, 9), del(3, 4, 1))},
		"two on one machine": {voters: 3, deletions: list(del(1, 2, 1, 2)), wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newDeletionHistory()
			var first []memberID
			for n := range uint64(test.voters) {
				first = append(first, m(n+1))
				h.lifetimes[m(n+1)] = []timeSpan{{from: at(0)}}
			}
			if test.third != nil {
				h.lifetimes[m(3)] = test.third
			}
			h.lifetimes[m(4)] = []timeSpan{{from: at(0)}}
			h.voters["a"] = []voterSet{{timeSpan{from: at(0)}, first}}
			for _, change := range test.changes {
				h.voters["a"][len(h.voters["a"])-1].to = change.from
				h.voters["a"] = append(h.voters["a"], change)
			}
			h.deletions = test.deletions
			err := h.verify()
			if test.wrong {
				require.ErrorContains(t, err, "quorum is")
			} else {
				require.NoError(t, err)
			}
		})
	}
}
