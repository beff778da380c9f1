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
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
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
	lifetime = 24 * time.Hour
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
		release := func() error { return netlink.AddrDel(lo, address) }
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

// checkLocal checks that servers can listen on the addresses.
func checkLocal(prefix string) error {
	probe, err := net.ListenPacket("udp4", net.JoinHostPort(prefix+"1", "0"))
	if err != nil {
		return fmt.Errorf("listening on an added address: %w", err)
	}
	return probe.Close()
}

const (
	// isolatedVariable is set in the environment of the program that Isolate runs.
	isolatedVariable = "HOLDFAST_ISOLATED"
	// notIsolated is the exit status of a program that cannot use its network namespace.
	notIsolated = 125
)

// Isolate runs this program again in a network namespace of its own, in which every user may add
// addresses and no other program sees them. The namespace ends with the program. If done is true,
// the caller exits with the status. Otherwise it continues: it runs in the namespace, or without
// one because the kernel permits none.
//
// The caller must not have started any goroutine or read its flags in a way that matters. Programs
// in the namespace reach no other machine, and programs outside do not reach them.
func Isolate() (status int, done bool) {
	if os.Getenv(isolatedVariable) != "" {
		if setUpLoopback() != nil {
			return notIsolated, true
		}
		return 0, false
	}
	for _, attributes := range namespaces() {
		status, err := runAgain(attributes)
		if err == nil && status != notIsolated {
			return status, true
		}
	}
	return 0, false
}

// namespaces returns the ways to create a network namespace: as root, and as any user in a user
// namespace that has the same user and group.
func namespaces() []*syscall.SysProcAttr {
	self := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	return []*syscall.SysProcAttr{
		{Cloneflags: unix.CLONE_NEWNET},
		{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			UidMappings: self(os.Getuid()), GidMappings: self(os.Getgid()), AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
		},
	}
}

// runAgain runs this program with the same arguments and returns its exit status. The program dies
// with this one, and receives the signals that end this one.
func runAgain(attributes *syscall.SysProcAttr) (status int, err error) {
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // The kernel sends Pdeathsig when the thread that forked ends.
	defer runtime.UnlockOSThread()
	attributes.Pdeathsig = syscall.SIGKILL
	cmd := &exec.Cmd{
		Path: path, Args: os.Args, Env: append(os.Environ(), isolatedVariable+"=1"),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attributes,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // The program may have ended.
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, err
			}
			return statusOf(cmd.ProcessState), nil
		}
	}
}

// statusOf returns the exit status as shells do: that of a program which a signal ended is above
// 128.
func statusOf(state *os.ProcessState) int {
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return 128 + int(wait.Signal())
	}
	return state.ExitCode()
}

func setUpLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
