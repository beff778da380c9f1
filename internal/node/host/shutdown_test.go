package host_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

const inhibitCall = "shutdown holdfast-agent delay"

// requireGoingDown waits until the facts report whether the host goes down. It reads them
// only after notifications.
func requireGoingDown(t *testing.T, h *host.Host, notified <-chan struct{}, want bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for h.Network(t.Context()).GoingDown != want {
		select {
		case <-notified:
		case <-deadline.C:
			require.Fail(t, "wrong facts", "want going down: %v", want)
		}
	}
}

func receive(t *testing.T, values <-chan string) string {
	t.Helper()
	select {
	case value := <-values:
		return value
	case <-time.After(10 * time.Second):
		require.Fail(t, "nothing received")
		return ""
	}
}

func TestShutdownDelay(t *testing.T) {
	root := hosttest.New(t, nil)
	l := hosttest.StartLogind(t, root, false)
	h := newHost(t, root)
	notified := notifications(t, h)

	require.Equal(t, inhibitCall, receive(t, l.Inhibited))
	requireGoingDown(t, h, notified, false)
	require.NoError(t, h.EndShutdownDelay())
	require.Empty(t, l.Released, "the inhibitor stays while the host stays up")

	l.EmitGoingDown(true)
	requireGoingDown(t, h, notified, true)
	require.Empty(t, l.Released)
	require.NoError(t, h.EndShutdownDelay())
	require.Equal(t, "holdfast-agent", receive(t, l.Released))
	require.NoError(t, h.EndShutdownDelay(), "a second call does nothing")

	l.EmitGoingDown(false)
	requireGoingDown(t, h, notified, false)
	require.Equal(t, inhibitCall, receive(t, l.Inhibited), "the next shutdown is delayed too")
}

func TestStartDuringShutdown(t *testing.T) {
	root := hosttest.New(t, nil)
	l := hosttest.StartLogind(t, root, true)
	h := newHost(t, root)
	require.True(t, h.Network(t.Context()).AwaitsLogind, "unknown until logind reports")
	notified := notifications(t, h)
	requireGoingDown(t, h, notified, true)
	require.Empty(t, l.Inhibited, "a shutdown that has begun is not delayed")
	require.NoError(t, h.EndShutdownDelay())

	l.EmitGoingDown(false)
	requireGoingDown(t, h, notified, false)
	require.True(t, h.Network(t.Context()).StaysUp)
	require.Equal(t, inhibitCall, receive(t, l.Inhibited))
}

func TestLostConnectionToLogind(t *testing.T) {
	root := hosttest.New(t, nil)
	l := hosttest.StartLogind(t, root, false)
	h := newHost(t, root)
	notified := notifications(t, h)
	require.NotEmpty(t, receive(t, l.Inhibited))
	l.EmitGoingDown(true)
	requireGoingDown(t, h, notified, true)

	l.Disconnect()
	require.Equal(t, "holdfast-agent", receive(t, l.Released), "without a connection the delay ends")
	require.True(t, h.Network(t.Context()).GoingDown, "the bus ends before the host")

	l.SetGoingDown(false)
	require.NotEmpty(t, receive(t, l.Inhibited), "the watch connects again")
	requireGoingDown(t, h, notified, false)
}
