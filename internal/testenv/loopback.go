package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

const (
	// attempts is how many random candidates are tried before giving up.
	attempts = 50
	// lockHost and lockPort are where the holder of a loopback network keeps a UDP socket as its lock.
	lockHost, lockPort = 254, 10230
)

// Loopback is a network of loopback addresses, 127.a.b.1 to 127.a.b.253, that no other environment on this machine has
// while it is held. Servers on it can listen on their well-known ports, and test binaries that run side by side do not
// meet.
type Loopback struct {
	prefix string
	lock   net.PacketConn
}

// HoldLoopback takes a free loopback network at random and holds it until Close, or until the process ends.
func HoldLoopback() (*Loopback, error) {
	var last error
	for range attempts {
		prefix := fmt.Sprintf("127.%d.%d.", 2+rand.IntN(250), 1+rand.IntN(250)) //nolint:gosec // no secret depends on it
		lock, err := net.ListenPacket("udp4", net.JoinHostPort(prefix+strconv.Itoa(lockHost), strconv.Itoa(lockPort)))
		if err == nil {
			return &Loopback{prefix: prefix, lock: lock}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("finding a free loopback network: %w", last)
}

// IP returns the i-th address of the network; i is 1 to 253.
func (l *Loopback) IP(i int) string { return l.prefix + strconv.Itoa(i) }

// Close gives the network up.
func (l *Loopback) Close() error { return l.lock.Close() }

// Port is a free TCP port of 127.0.0.1 that nobody else is given while it is held.
type Port struct {
	// Number is the port.
	Number int
	lock   net.PacketConn
}

// ReservePort finds a TCP port on which nobody listens and holds it until Release, or until the process ends. The lock is
// the UDP port of the same number: it keeps out other holders, in this process and in others, and leaves the TCP port
// free for the server that is about to listen. Ports come from below the range that the kernel uses for outgoing
// connections.
func ReservePort() (*Port, error) {
	var last error
	for range attempts {
		number := 10000 + rand.IntN(20000) //nolint:gosec // no secret depends on it
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

// Release lets others have the port.
func (p *Port) Release() error { return p.lock.Close() }
