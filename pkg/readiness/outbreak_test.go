package readiness

import (
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
