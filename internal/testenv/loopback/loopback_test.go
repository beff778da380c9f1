package loopback_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
)

func TestHold(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		held, err := loopback.Hold()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, held.Close()) })
		require.False(t, seen[held.IP(1)])
		seen[held.IP(1)] = true
	}
}

func TestReservePort(t *testing.T) {
	ports := map[int]bool{}
	for range 100 {
		port := loopback.FreePort(t)
		require.False(t, ports[port])
		ports[port] = true
	}
	for port := range ports {
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		require.NoError(t, err)
		require.NoError(t, listener.Close())
	}

	reserved, err := loopback.ReservePort()
	require.NoError(t, err)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(reserved.Number))
	_, err = net.ListenPacket("udp4", address)
	require.Error(t, err, "a reserved port must be locked")
	require.NoError(t, reserved.Release())
	lock, err := net.ListenPacket("udp4", address)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
}
