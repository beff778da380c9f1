package simulation

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReplay tests that a seed repeats a history exactly, on one processor and on several. The flag
// -histories adds one random seed for each thousand histories.
func TestReplay(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	seeds := []uint64{14, 17, 25, 55, 333}
	for range flagValue[int]("histories") / 1000 {
		seeds = append(seeds, rand.Uint64())
	}
	for _, seed := range seeds {
		for name, kind := range map[string]historyKind{
			"random": randomProfile, "drains": drainProfile, "machines": machineProfile,
		} {
			var first []string
			for _, processors := range []int{1, 4} {
				runtime.GOMAXPROCS(processors)
				trace := kind.play(t, fromSeed(seed), 250, false).trace
				if first == nil {
					first = trace
				}
				require.Equal(t, strings.Join(first, "\n"), strings.Join(trace, "\n"),
					"%s, seed %d, %d processors", name, seed, processors)
			}
		}
	}
}
