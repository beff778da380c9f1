package readiness

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOutbreak(t *testing.T) {
	at := func(minutes ...int) (times []time.Time) {
		for _, m := range minutes {
			times = append(times, noon().Add(time.Duration(m)*time.Minute))
		}
		return times
	}
	now := noon().Add(30 * time.Minute)
	for name, c := range map[string]struct {
		o    Outbreak
		off  bool
		says string
	}{
		"nothing is stuck":                       {Outbreak{Nodes: 5, Parameter: noon(), Now: now}, false, ""},
		"no nodes at all":                        {Outbreak{}, false, ""},
		"two of three: a small cluster":          {Outbreak{Nodes: 3, Stuck: at(1, 2), Parameter: noon(), Now: now}, false, ""},
		"three of three":                         {Outbreak{Nodes: 3, Stuck: at(1, 2, 3), Parameter: noon(), Now: now}, true, "3 of 3 nodes"},
		"a tenth is not more than a tenth":       {Outbreak{Nodes: 30, Stuck: at(1, 2, 3), Parameter: noon(), Now: now}, false, ""},
		"more than a tenth":                      {Outbreak{Nodes: 29, Stuck: at(1, 2, 3), Parameter: noon(), Now: now}, true, "3 of 29 nodes"},
		"created in the same second":             {Outbreak{Nodes: 3, Stuck: at(0, 2, 3), Parameter: noon(), Now: now}, true, ""},
		"put back while some were stuck":         {Outbreak{Nodes: 9, Stuck: at(-1, 2, 3), Parameter: noon(), Now: now}, false, "put back less than 1h0m0s ago"},
		"put back an hour ago":                   {Outbreak{Nodes: 9, Stuck: at(-1, 2, 3), Parameter: noon(), Now: noon().Add(time.Hour)}, true, "still after the parameter was put back"},
		"put back, a second short of an hour":    {Outbreak{Nodes: 9, Stuck: at(-1, 2, 3), Parameter: noon(), Now: noon().Add(time.Hour - time.Second)}, false, "put back"},
		"put back, and nobody knows when":        {Outbreak{Nodes: 9, Stuck: at(-1, 2, 3), Parameter: noon()}, false, "put back"},
		"taken away by us half an hour ago":      {Outbreak{Nodes: 9, Stuck: at(1, 2, 3), Parameter: noon(), Now: now, Taken: 30 * time.Minute}, false, "somebody has put it back"},
		"taken away by us more than an hour":     {Outbreak{Nodes: 9, Stuck: at(1, 2, 3), Parameter: noon(), Now: now, Taken: time.Hour}, true, ""},
		"the clock is unknown, none put it back": {Outbreak{Nodes: 9, Stuck: at(1, 2, 3), Parameter: noon()}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			off, why := c.o.SwitchOff()
			require.Equal(t, c.off, off, why)
			require.Contains(t, why, c.says)
			require.Equal(t, c.off || why != "", c.o.Widespread())
		})
	}
}

// fleet is a cluster with a parameter, in a history of which the test knows everything.
type fleet struct {
	now time.Time
	// nodes is how many there are, stuck when those were born that are held without an agent.
	nodes int
	stuck []time.Time
	// parameter is when it was made, zero if it is away; put says that a person has put it back while nodes were stuck.
	parameter time.Time
	put       bool
	// taken is when this leader's process took it away last; zero if it has not.
	taken time.Time
}

// look is the leader's, and says whether it takes the parameter away.
func (f *fleet) look(t *testing.T) bool {
	t.Helper()
	if f.parameter.IsZero() {
		return false
	}
	const counts = 6 * time.Minute
	o := Outbreak{Nodes: f.nodes, Parameter: f.parameter, Now: f.now}
	for _, born := range f.stuck {
		if f.now.Sub(born) >= counts {
			o.Stuck = append(o.Stuck, born)
		}
	}
	if !f.taken.IsZero() {
		o.Taken = f.now.Sub(f.taken)
	}
	wide := len(o.Stuck) >= 3 && len(o.Stuck) > f.nodes/10
	lately := !f.taken.IsZero() && f.now.Sub(f.taken) < time.Hour
	older := slices.ContainsFunc(o.Stuck, func(born time.Time) bool { return born.Before(f.parameter) })
	fought := f.put && older && f.now.Sub(f.parameter) < time.Hour
	off, why := o.SwitchOff()
	require.Equal(t, wide && !lately && !fought, off, "%+v: %s", o, why)
	require.Equal(t, wide, why != "", "what is widespread is said")
	return off
}

// TestEveryOutbreak lets nodes be born, agents come, people put the parameter back and leaders restart in any order: it is
// taken away as soon as holds without an agent are widespread, whoever leads, and never against somebody who has just put it
// back over them.
func TestEveryOutbreak(t *testing.T) {
	looks, taken, left := 0, 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := &fleet{now: noon(), nodes: 4 + r.IntN(40), parameter: noon()}
		for range 60 {
			f.now = f.now.Add(time.Second + time.Duration(r.IntN(900))*time.Second)
			switch r.IntN(8) {
			case 0, 1, 2:
				f.nodes++
				if !f.parameter.IsZero() {
					f.stuck = append(f.stuck, f.now)
				}
			case 3:
				f.stuck = f.stuck[min(len(f.stuck), r.IntN(4)):]
			case 4:
				f.taken = time.Time{} // another leader
			case 5:
				if f.parameter.IsZero() {
					f.parameter, f.put = f.now, len(f.stuck) > 0
				}
			default:
				looks++
				switch off := f.look(t); {
				case off:
					f.taken, f.parameter, f.put = f.now, time.Time{}, false
					taken++
				case len(f.stuck) > 2:
					left++
				}
			}
		}
	}
	t.Logf("%d looks, of which %d took the parameter away and %d left it on although three nodes were stuck", looks, taken, left)
	require.Greater(t, min(taken, left), 1000)
}
