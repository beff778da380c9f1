package readiness

import (
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
