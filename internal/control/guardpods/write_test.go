package guardpods

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// TestPace: the delays between the guard pods of a node grow, and begin again after a while.
// Nothing is kept of a node by then, which may be gone.
func TestPace(t *testing.T) {
	now := time.Now()
	c := &controller{
		Options: Options{Now: func() time.Time { return now }}, wake: loop.NewSignal(), pace: map[string]creationPace{},
	}
	delay := func(node string) time.Duration {
		before := now
		c.paceCreation(node)
		now = c.pace[node].notBefore
		return now.Sub(before)
	}
	first, second := delay("n1"), delay("n1")
	require.Less(t, first, second)
	now = now.Add(steady + time.Second)
	require.Less(t, delay("n2"), second)
	require.Len(t, c.pace, 1)
}
