package storm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// slack is added to the end of a life: a process that has been told to stop may send an answer that it had ready.
const slack = 5 * time.Millisecond

// memberID tells members of all clusters apart.
type memberID struct {
	cluster string
	number  uint64
}

func (m memberID) String() string { return fmt.Sprintf("%s/%x", m.cluster, m.number) }

// span is a stretch of time; a zero end means that it has not ended.
type span struct{ from, to time.Time }

func (s span) meets(o span) bool {
	return (s.to.IsZero() || !s.to.Before(o.from)) && (o.to.IsZero() || !s.from.After(o.to))
}

// voters is who had a vote in a cluster, and when that may have been so.
type voters struct {
	span
	ids []memberID
}

// deletion is one that was allowed: when it was asked for and answered, and who was on the machine.
type deletion struct {
	span
	node    string
	members []memberID
}

// history is what happened, as the one saw it who made it happen. A moment that is not known exactly is noted so that the
// guarantee is never asked for more than it says: a member may have lived from before it was told to live, and until after
// it was told to stop; a change of voters may have come at any time during the call that made it.
type history struct {
	mu        sync.Mutex // guards what follows
	lives     map[memberID][]span
	voters    map[string][]voters
	deletions []deletion
}

func newHistory() *history {
	return &history{lives: map[memberID][]span{}, voters: map[string][]voters{}}
}

// up notes that a member is about to be told to live.
func (h *history) up(m memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lives[m] = append(h.lives[m], span{from: time.Now()})
}

// down notes that a member has been stopped.
func (h *history) down(m memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lives := h.lives[m]; len(lives) > 0 && lives[len(lives)-1].to.IsZero() {
		lives[len(lives)-1].to = time.Now().Add(slack)
	}
}

// changeVoters notes that the voters of a cluster became these by a call that began at the given time and has ended.
func (h *history) changeVoters(cluster string, began time.Time, ids []memberID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.voters[cluster]; len(all) > 0 {
		all[len(all)-1].to = time.Now()
	}
	h.voters[cluster] = append(h.voters[cluster], voters{span{from: began}, ids})
}

// allowed notes an allowed deletion.
func (h *history) allowed(d deletion) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deletions = append(h.deletions, d)
}

// judge says whether the deletions were allowed rightly: whether there is an order of them, one in which none comes before
// another that had been answered before it was asked for, so that each leaves every cluster its quorum of voters that
// neither went with it nor with those before it, and that lived at some moment between its request and its answer. A
// deletion cannot be asked to know more than that: of two that are under way at once either may be judged first, and a
// member that has answered a probe may die the moment after.
func (h *history) judge() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.SortedFunc(slices.Values(h.deletions), func(a, b deletion) int { return a.from.Compare(b.from) })
	doomed := map[memberID]bool{}
	for len(all) > 0 {
		// Those that overlap, directly or by way of others, may have been judged in any order.
		end, group := all[0].to, 1
		for group < len(all) && !all[group].from.After(end) {
			if all[group].to.After(end) {
				end = all[group].to
			}
			group++
		}
		if why := h.order(all[:group], doomed); why != "" {
			lines := strings.Split(strings.TrimSpace(why), "\n")
			slices.Sort(lines)
			return fmt.Errorf("no order of these deletions leaves quorum after each of them:\n%s", strings.Join(slices.Compact(lines), "\n"))
		}
		for _, d := range all[:group] {
			for _, m := range d.members {
				doomed[m] = true
			}
		}
		all = all[group:]
	}
	return nil
}

// order looks for an order of the open deletions, and returns why there is none.
func (h *history) order(open []deletion, doomed map[memberID]bool) string {
	why := ""
	for i, d := range open {
		if slices.ContainsFunc(open, func(o deletion) bool { return o.to.Before(d.from) }) {
			continue // that one came first
		}
		if short := h.short(d, doomed); short != "" {
			why += "\n" + short
			continue
		}
		after := maps.Clone(doomed)
		for _, m := range d.members {
			after[m] = true
		}
		rest := h.order(slices.Delete(slices.Clone(open), i, i+1), after)
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

// short says what a cluster lacks if this deletion is the next, nothing if that leaves all of them their quorum.
func (h *history) short(d deletion, doomed map[memberID]bool) string {
	var text []string
	for cluster, versions := range h.voters {
		why, enough := "", true
		for _, v := range versions {
			if !v.meets(d.span) {
				continue
			}
			why, enough = h.lacks(d, cluster, v.ids, doomed)
			if enough {
				break // it may have been judged by this version
			}
		}
		if !enough {
			text = append(text, why)
		}
	}
	return strings.Join(text, "\n")
}

// lacks says what these voters of a cluster lack without the deletion's members and the doomed.
func (h *history) lacks(d deletion, cluster string, ids []memberID, doomed map[memberID]bool) (why string, enough bool) {
	var left []memberID
	taken := false
	for _, m := range ids {
		here := slices.Contains(d.members, m)
		taken = taken || here
		if !here && !doomed[m] && slices.ContainsFunc(h.lives[m], d.meets) {
			left = append(left, m)
		}
	}
	quorum := len(ids)/2 + 1
	if !taken || len(left) >= quorum {
		return "", true
	}
	return fmt.Sprintf("%s (%s to %s) takes %v: of the voters %v of %s only %v are left, quorum is %d",
		d.node, d.from.Format(clock), d.to.Format(clock), d.members, ids, cluster, left, quorum), false
}

const clock = "15:04:05.000"
