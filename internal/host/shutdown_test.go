package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/host"
)

// watched runs Watch until the test ends, and returns a channel with a word for each call of notify.
func watched(t *testing.T, h *host.Host) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	told := make(chan struct{}, 1024)
	var watching errgroup.Group
	watching.Go(func() error { return h.Watch(ctx, func() { told <- struct{}{} }) })
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, watching.Wait(), context.Canceled)
	})
	return told
}

// down waits until the facts say whether the host goes down, looking only when told to.
func down(t *testing.T, h *host.Host, told <-chan struct{}, want bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for h.Network(t.Context()).GoingDown != want {
		select {
		case <-told:
		case <-deadline.C:
			require.Fail(t, "the facts did not become as wanted", "going down: %v", want)
		}
	}
}

func next(t *testing.T, words <-chan string) string {
	t.Helper()
	select {
	case word := <-words:
		return word
	case <-time.After(10 * time.Second):
		require.Fail(t, "nothing came")
		return ""
	}
}

func TestAShutdownWaitsUntilItIsLetGo(t *testing.T) {
	root := layOut(t, nil)
	l := startLogind(t, root, false)
	h := at(t, root)
	told := watched(t, h)

	require.Equal(t, "shutdown holdfast-agent delay", next(t, l.inhibited))
	down(t, h, told, false)
	require.NoError(t, h.LetGo())
	require.Empty(t, l.released, "nothing is let go of while the host stays up")

	l.say(t, true)
	down(t, h, told, true)
	require.Empty(t, l.released)
	require.NoError(t, h.LetGo())
	require.Equal(t, "holdfast-agent", next(t, l.released))
	require.NoError(t, h.LetGo(), "twice is once")

	l.say(t, false)
	down(t, h, told, false)
	require.Equal(t, "shutdown holdfast-agent delay", next(t, l.inhibited), "the next shutdown is delayed too")
}

func TestAnAgentThatStartsWhileTheHostGoesDown(t *testing.T) {
	root := layOut(t, nil)
	l := startLogind(t, root, true)
	h := at(t, root)
	require.True(t, h.Network(t.Context()).AwaitsWord, "until logind was heard nothing is known")
	told := watched(t, h)
	down(t, h, told, true)
	require.Empty(t, l.inhibited, "what has begun is not delayed any more")
	require.NoError(t, h.LetGo())

	l.say(t, false)
	down(t, h, told, false)
	require.True(t, h.Network(t.Context()).StaysUp)
	require.Equal(t, "shutdown holdfast-agent delay", next(t, l.inhibited))
}

func TestAShutdownThatIsHeardOfNoMore(t *testing.T) {
	root := layOut(t, nil)
	l := startLogind(t, root, false)
	h := at(t, root)
	told := watched(t, h)
	require.NotEmpty(t, next(t, l.inhibited))
	l.say(t, true)
	down(t, h, told, true)

	l.hangUp()
	require.Equal(t, "holdfast-agent", next(t, l.released), "a delay that nobody ends only costs time")
	require.True(t, h.Network(t.Context()).GoingDown, "the bus goes with the host")

	l.mu.Lock()
	l.going = false
	l.mu.Unlock()
	require.NotEmpty(t, next(t, l.inhibited), "the watch connects again")
	down(t, h, told, false)
}
