package review

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQuietTimer: each answer that arrives gives the others the whole time again, a version without
// a new one does not, and the first one has twice the time.
func TestQuietTimer(t *testing.T) {
	for _, test := range []struct {
		name string
		// answers are the numbers of answers, one second apart.
		answers []int
		end     time.Duration
	}{
		{"none", []int{0, 0, 0, 0, 0, 0, 0}, 6 * time.Second},
		{"one", []int{1, 1, 1, 1, 1}, 4 * time.Second},
		{"late", []int{0, 0, 0, 0, 1, 1, 1, 1}, 8 * time.Second},
		{"one after another", []int{1, 1, 2, 2, 3, 3, 3, 3, 3}, 8 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				q := newQuietTimer(3 * time.Second)
				for i := 0; ; i++ {
					select {
					case <-time.After(time.Until(q.until)):
						require.Equal(t, test.end, time.Since(begun))
						return
					case <-time.After(time.Second):
						require.Less(t, i, len(test.answers), "the time is not up")
						q.note(test.answers[i])
					}
				}
			})
		})
	}
}
