package readiness

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMassHold(t *testing.T) {
	at := func(minutes ...int) (times []time.Time) {
		for _, m := range minutes {
			times = append(times, noon().Add(time.Duration(m)*time.Minute))
		}
		return times
	}
	// The parameter was created at noon, at minute 0.
	hold := func(nodes int, stuck []time.Time, now time.Time) MassHold {
		return MassHold{Nodes: nodes, StuckCreated: stuck, ParameterCreated: noon(), Now: now}
	}
	removed := func(m MassHold, ago time.Duration) MassHold {
		m.SinceRemoved = ago
		return m
	}
	now, unknown := noon().Add(30*time.Minute), time.Time{}
	for _, c := range []struct {
		name string
		hold MassHold
		ok   bool
		why  string
	}{
		{"no nodes", MassHold{}, false, ""},
		{"two of three", hold(3, at(1, 2), now), false, ""},
		{"three of three", hold(3, at(1, 2, 3), now), true, "3 of 3 nodes"},
		{"exactly a tenth", hold(30, at(1, 2, 3), now), false, ""},
		{"more than a tenth", hold(29, at(1, 2, 3), now), true, "3 of 29 nodes"},
		{"created in the same second", hold(3, at(0, 2, 3), now), true, ""},
		{"restored while nodes were stuck", hold(9, at(-1, 2, 3), now), false, "restored less than 1h0m0s ago"},
		{"restored an hour ago", hold(9, at(-1, 2, 3), noon().Add(time.Hour)), true, "even though the parameter was"},
		{"restored less than an hour ago", hold(9, at(-1, 2, 3), noon().Add(time.Hour-time.Second)), false, "was restored"},
		{"restored, unknown time", hold(9, at(-1, 2, 3), unknown), false, "was restored"},
		{"removed half an hour ago", removed(hold(9, at(1, 2, 3), now), 30*time.Minute), false, "has been restored"},
		{"removed an hour ago", removed(hold(9, at(1, 2, 3), now), time.Hour), true, ""},
		{"not restored, unknown time", hold(9, at(1, 2, 3), unknown), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok, why := c.hold.CanRemoveParameter()
			require.Equal(t, c.ok, ok, why)
			require.Contains(t, why, c.why)
			require.Equal(t, c.ok || why != "", c.hold.IsWidespread())
		})
	}
}

// massHoldHistory is a cluster with a parameter. The test knows everything about its history.
type massHoldHistory struct {
	now time.Time
	// nodes is the number of nodes, stuck the creation times of those that are held without an
	// agent.
	nodes int
	stuck []time.Time
	// parameter is the creation time of the parameter, zero if there is none. restored is
	// whether a person restored it while nodes were stuck.
	parameter time.Time
	restored  bool
	// removed is when the process of this leader last deleted the parameter, zero if it never
	// did.
	removed time.Time
}

// check makes the leader's decision, and returns whether the leader deletes the parameter.
func (h *massHoldHistory) check(t *testing.T) bool {
	t.Helper()
	if h.parameter.IsZero() {
		return false
	}
	const stuckAge = 6 * time.Minute
	m := MassHold{Nodes: h.nodes, ParameterCreated: h.parameter, Now: h.now}
	for _, created := range h.stuck {
		if h.now.Sub(created) >= stuckAge {
			m.StuckCreated = append(m.StuckCreated, created)
		}
	}
	if !h.removed.IsZero() {
		m.SinceRemoved = h.now.Sub(h.removed)
	}
	isOlder := func(created time.Time) bool { return created.Before(h.parameter) }
	widespread := len(m.StuckCreated) >= 3 && len(m.StuckCreated) > h.nodes/10
	recently := !h.removed.IsZero() && h.now.Sub(h.removed) < time.Hour
	contested := h.restored && slices.ContainsFunc(m.StuckCreated, isOlder) && h.now.Sub(h.parameter) < time.Hour
	ok, why := m.CanRemoveParameter()
	require.Equal(t, widespread && !recently && !contested, ok, "%+v: %s", m, why)
	require.Equal(t, widespread, why != "", "a mass hold is reported")
	return ok
}

// TestEveryMassHold creates nodes, starts agents, restores the parameter and restarts leaders
// in random orders. The parameter must be deleted as soon as holds without an agent are
// widespread, by any leader, but not shortly after a person has restored it while nodes were
// stuck.
func TestEveryMassHold(t *testing.T) {
	checks, removed, kept := 0, 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := &massHoldHistory{now: noon(), nodes: 4 + r.IntN(40), parameter: noon()}
		for range 60 {
			h.now = h.now.Add(time.Second + time.Duration(r.IntN(900))*time.Second)
			switch r.IntN(8) {
			case 0, 1, 2:
				h.nodes++
				if !h.parameter.IsZero() {
					h.stuck = append(h.stuck, h.now)
				}
			case 3:
				h.stuck = h.stuck[min(len(h.stuck), r.IntN(4)):]
			case 4:
				h.removed = time.Time{} // another leader
			case 5:
				if h.parameter.IsZero() {
					h.parameter, h.restored = h.now, len(h.stuck) > 0
				}
			default:
				checks++
				switch ok := h.check(t); {
				case ok:
					h.removed, h.parameter, h.restored = h.now, time.Time{}, false
					removed++
				case len(h.stuck) > 2:
					kept++
				}
			}
		}
	}
	t.Logf("%d checks: %d deleted the parameter, %d kept it although three nodes were stuck", checks, removed, kept)
	require.Greater(t, min(removed, kept), 1000)
}
