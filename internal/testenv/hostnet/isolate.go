package hostnet

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
