package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatWasHeardOfAShutdownCountsForAWhile(t *testing.T) {
	now := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	said := func(s *shutdown, after time.Duration) string {
		going, stays, awaited := s.say(now.Add(after))
		return map[[3]bool]string{
			{true, false, false}: "going", {false, true, false}: "stays", {false, false, true}: "awaited", {}: "nobody says",
		}[[3]bool{going, stays, awaited}]
	}
	var s shutdown
	s.lose(now) // as it begins
	require.Equal(t, "awaited", said(&s, 0))
	s.lose(now.Add(time.Second)) // nobody listens still
	require.Equal(t, "nobody says", said(&s, hearsay), "nothing waits for logind for ever")
	require.False(t, s.set(false))
	require.Equal(t, "stays", said(&s, 0))
	require.True(t, s.set(true))
	require.False(t, s.set(true), "no news")
	require.Equal(t, "going", said(&s, time.Hour), "as long as somebody listens")
	s.lose(now)
	require.Equal(t, "going", said(&s, hearsay-time.Second), "the bus goes with the host")
	require.Equal(t, "nobody says", said(&s, hearsay), "a shutdown that was called off unheard must not hold the node")
	s.set(false)
	s.lose(now)
	require.Equal(t, "awaited", said(&s, hearsay-time.Second))
}
