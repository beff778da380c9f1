//go:build !race

package simulation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReplay tests that a seed repeats a history exactly on one processor. Two reviews that go on
// at the same time, or that the scheduler interrupts after 10 ms, may change their order. So some
// attempts differ, and two of them must be equal. With the race detector the order is random;
// `make histories` runs this test without it.
func TestReplay(t *testing.T) {
	useOneProcessor(t)
	for _, seed := range []uint64{17, 55, 333} {
		for _, k := range []historyKind{randomProfile, drainProfile, machineProfile} {
			isRepeated := false
			attempts := map[string]bool{}
			for attempt := 0; attempt < 10 && !isRepeated; attempt++ {
				trace := strings.Join(k.play(t, fromSeed(seed), 250, false).trace, "\n")
				isRepeated = attempts[trace]
				attempts[trace] = true
			}
			require.True(t, isRepeated, "seed %d: ten attempts, and no two are equal", seed)
		}
	}
}
