//go:build !race

package simulation

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReplay tests that a seed repeats a history exactly on one processor. The scheduler interrupts
// a goroutine after 10 ms, which may change the order of two reviews, so some attempts may differ.
// With the race detector the order is random; `make histories` runs this test without it.
func TestReplay(t *testing.T) {
	useOneProcessor(t)
	for _, seed := range []uint64{17, 55, 106} {
		for _, k := range []historyKind{randomProfile, drainProfile} {
			first := k.play(t, fromSeed(seed), 250, false).trace
			var again []string
			for range 5 {
				if again = k.play(t, fromSeed(seed), 250, false).trace; slices.Equal(first, again) {
					break
				}
			}
			require.Equal(t, first, again, "seed %d", seed)
		}
	}
}
