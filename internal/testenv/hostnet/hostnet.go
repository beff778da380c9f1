// Package hostnet provides addresses that stand for hosts, for tests with real servers.
//
// Every machine has the addresses 127.a.b.c, so Holdfast finds no Node by them. The rules that
// find the Node of a member by its address have an effect only with other addresses. A Network is
// such a network on the loopback interface, where the kernel permits it.
package hostnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
)

const (
	// network is one half of the network for benchmarks of network devices (RFC 2544). Some
	// proxies use the other half.
	network = "198.19."
	// ownHost is the address that the interface has. It is the source of all connections, so it
	// stands for no host.
	ownHost = 254
	// lifetime is the time after which the kernel removes the address of a process that was killed.
	// The process renews it three times as often.
	lifetime = time.Minute
	// maxAttempts limits the number of random candidates.
	maxAttempts = 50
)

// A Network is a reserved network of addresses, one for each host.
type Network struct {
	// IdentifiesHosts reports whether Holdfast regards the addresses as those of hosts. Without
	// permission to add an address, they are loopback addresses.
	IdentifiesHosts bool

	prefix, about string
	release       func() error
}

// Hold reserves a network until Close.
func Hold() (*Network, error) {
	n, err := add()
	if err == nil {
		return n, nil
	}
	held, failed := loopback.Hold()
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	prefix := strings.TrimSuffix(held.IP(0), "0")
	about := fmt.Sprintf("%s0/24, which identifies no hosts (%v)", prefix, err)
	return &Network{prefix: prefix, about: about, release: held.Close}, nil
}

// IP returns the i-th address of the network, for i from 1 to 253.
func (n *Network) IP(i int) string { return n.prefix + strconv.Itoa(i) }

// String describes the network, and why it identifies no hosts.
func (n *Network) String() string { return n.about }

// Close releases the network.
func (n *Network) Close() error { return n.release() }

// add adds a random free network to the loopback interface. As with 127.0.0.0/8, one address makes
// all addresses of its network local.
func add() (*Network, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding the loopback interface: %w", err)
	}
	for range maxAttempts {
		prefix := network + strconv.Itoa(rand.IntN(256)) + "." //nolint:gosec // not used for secrets
		address := addressOf(prefix)
		if err = netlink.AddrAdd(lo, address); errors.Is(err, unix.EEXIST) {
			continue // another process uses the network
		}
		if err != nil {
			break
		}
		release := keep(lo, address)
		if err = checkLocal(prefix); err != nil {
			return nil, errors.Join(err, release())
		}
		return &Network{
			IdentifiesHosts: true, prefix: prefix, about: prefix + "0/24 on lo, which identifies hosts", release: release,
		}, nil
	}
	return nil, fmt.Errorf("adding an address to lo: %w", err)
}

func addressOf(prefix string) *netlink.Addr {
	ip := net.ParseIP(prefix + strconv.Itoa(ownHost))
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}, Scope: unix.RT_SCOPE_HOST,
		ValidLft: int(lifetime.Seconds()), PreferedLft: int(lifetime.Seconds()),
	}
}

// keep renews the address until the returned function is called, which removes it.
func keep(lo netlink.Link, address *netlink.Addr) (release func() error) {
	stop := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		tick := time.NewTicker(lifetime / 3)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return nil
			case <-tick.C:
			}
			if err := netlink.AddrReplace(lo, address); err != nil {
				return fmt.Errorf("renewing the address %s on lo: %w", address.IP, err)
			}
		}
	})
	return func() error {
		close(stop)
		err := group.Wait()
		if failed := netlink.AddrDel(lo, address); failed != nil {
			err = errors.Join(err, fmt.Errorf("removing the address %s from lo: %w", address.IP, failed))
		}
		return err
	}
}

// checkLocal checks that servers can listen on the addresses.
func checkLocal(prefix string) error {
	probe, err := net.ListenPacket("udp4", net.JoinHostPort(prefix+"1", "0"))
	if err != nil {
		return fmt.Errorf("listening on an added address: %w", err)
	}
	return probe.Close()
}
