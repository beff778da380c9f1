package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatWasHeardOfAShutdownCountsForAWhile(t *testing.T) {
	now := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	var s shutdown
	require.False(t, s.is(now))
	require.True(t, s.set(true))
	require.False(t, s.set(true), "no news")
	require.True(t, s.is(now.Add(time.Hour)), "as long as somebody listens")
	s.lose(now)
	require.True(t, s.is(now.Add(hearsay-time.Second)))
	require.False(t, s.is(now.Add(hearsay)), "a shutdown that was called off unheard must not hold the node")
	require.False(t, s.set(true), "no news")
	require.True(t, s.is(now.Add(time.Hour)))
}
