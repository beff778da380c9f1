package hostnet_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostnet"
)

// roleVariable makes the test binary do one thing instead of running the tests.
const roleVariable = "HOSTNET_TEST_ROLE"

// The roles. Each prints its network namespace and its networks.
const (
	isolated   = "isolated"   // as programs that call Isolate
	notAllowed = "notAllowed" // the same, without permission to create namespaces
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case notAllowed:
		if err := forbidNamespaces(); err != nil {
			os.Exit(3)
		}
		fallthrough
	case isolated:
		if status, done := hostnet.Isolate(); done {
			os.Exit(status)
		}
		fallthrough
	default:
		os.Exit(printNetworks())
	}
}

// forbidNamespaces forbids this process to create namespaces. The process must be root of a user
// namespace.
func forbidNamespaces() error {
	for _, kind := range []string{"net", "user"} {
		if err := os.WriteFile("/proc/sys/user/max_"+kind+"_namespaces", []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// printNetworks holds two networks at the same time and prints them. The exit status tells whether
// a server can listen on their addresses.
func printNetworks() int {
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, namespace)
	for range 2 {
		held, err := hostnet.Hold()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = held.Close() }() // the test reads the output
		listener, err := net.Listen("tcp", net.JoinHostPort(held.IP(253), "2379"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = listener.Close() }()
		fmt.Fprintln(os.Stdout, held.IP(1), held.IdentifiesHosts, held)
	}
	return 0
}

// run runs this binary in a role, and returns the lines that it printed.
func run(t *testing.T, role string, attributes *syscall.SysProcAttr) ([]string, error) {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), roleVariable+"="+role), attributes, t.Output()
	out, err := cmd.Output()
	t.Logf("%s: %s", role, out)
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err
}

// TestHold tests that a network can be held in each environment, that two networks differ, and that
// the kernel has forgotten an added one after Close.
func TestHold(t *testing.T) {
	first, err := hostnet.Hold()
	require.NoError(t, err)
	second, err := hostnet.Hold()
	require.NoError(t, err)
	t.Logf("%s; %s", first, second)
	require.NotEqual(t, first.IP(1), second.IP(1))
	require.Equal(t, first.IdentifiesHosts, !net.ParseIP(first.IP(1)).IsLoopback())
	listener, err := net.Listen("tcp", net.JoinHostPort(first.IP(7), "2379"))
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		require.NotContains(t, a.String(), strings.TrimSuffix(first.IP(1), "1"))
	}
}

// TestIsolate tests that the addresses identify hosts if the kernel permits a namespace.
func TestIsolate(t *testing.T) {
	inside, err := run(t, isolated, nil)
	require.NoError(t, err)
	require.Len(t, inside, 3)
	here, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	if inside[0] != here {
		require.Contains(t, inside[1], "true")
	}
}

// TestNotPermitted tests that loopback addresses are used where the process may neither add
// addresses nor create namespaces. If the kernel permits no user namespace to test this in, every
// other test of this package tests it.
func TestNotPermitted(t *testing.T) {
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	group := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	lines, err := run(t, notAllowed, &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: group,
	})
	if lines[0] == "" {
		t.Logf("this kernel permits no user namespace: %v", err)
		return
	}
	require.NoError(t, err)
	require.Len(t, lines, 3)
	for _, line := range lines[1:] {
		require.True(t, strings.HasPrefix(line, "127."), line)
		require.Contains(t, line, "false")
	}
}
