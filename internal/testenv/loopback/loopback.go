// Package loopback reserves addresses and ports on loopback, so that test binaries can run
// servers at the same time.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// maxAttempts limits the number of random candidates.
	maxAttempts = 50
	// lockHost and lockPort are the address of the UDP socket that locks a network.
	lockHost, lockPort = 254, 10230
)

// A Network is a reserved network of loopback addresses, 127.a.b.1 to 127.a.b.253. Servers on
// it can listen on their well-known ports, and test binaries that run at the same time do not
// conflict.
type Network struct {
	prefix string
	lock   net.PacketConn
}

// Hold reserves a random free network until Close, or until the process ends.
func Hold() (*Network, error) {
	var last error
	for range maxAttempts {
		prefix := fmt.Sprintf("127.%d.%d.", 2+rand.IntN(250), 1+rand.IntN(250)) //nolint:gosec // not used for secrets
		lock, err := net.ListenPacket("udp4", net.JoinHostPort(prefix+strconv.Itoa(lockHost), strconv.Itoa(lockPort)))
		if err == nil {
			return &Network{prefix: prefix, lock: lock}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("finding a free loopback network: %w", last)
}

// IP returns the i-th address of the network, for i from 1 to 253.
func (l *Network) IP(i int) string { return l.prefix + strconv.Itoa(i) }

// Close releases the network.
func (l *Network) Close() error { return l.lock.Close() }

// A Port is a reserved free TCP port of 127.0.0.1.
type Port struct {
	Number int
	lock   net.PacketConn
}

// ReservePort reserves a free TCP port until Release, or until the process ends. The lock is
// the UDP port with the same number: it excludes other reservations, also in other processes,
// and keeps the TCP port free for the server. The port is below the range that the kernel uses
// for outgoing connections.
func ReservePort() (*Port, error) {
	var last error
	for range maxAttempts {
		number := 10000 + rand.IntN(20000) //nolint:gosec // not used for secrets
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(number))
		lock, err := net.ListenPacket("udp4", address)
		if err != nil {
			last = err
			continue
		}
		probe, err := net.Listen("tcp4", address)
		if err == nil {
			err = probe.Close()
		}
		if err == nil {
			return &Port{Number: number, lock: lock}, nil
		}
		last = errors.Join(err, lock.Close())
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("finding a free port: %w", last)
}

// Release releases the port.
func (p *Port) Release() error { return p.lock.Close() }

// FreePort returns a TCP port of 127.0.0.1 that is reserved until the test ends.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := ReservePort()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Release()) })
	return port.Number
}
