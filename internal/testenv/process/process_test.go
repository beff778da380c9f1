package process_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// parentVariable makes the test binary run as the parent that dies.
const parentVariable = "TESTENV_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentVariable); log != "" {
		if err := runParent(log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runParent starts a child, prints its PID, and runs until its standard input is closed.
func runParent(log string) error {
	p, err := startSleep(log)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, p.PID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func startSleep(log string) (*process.Process, error) {
	return process.Start(process.Options{Path: "/bin/sleep", Args: []string{"600"}, LogFile: log})
}

func TestParentDeath(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), parentVariable+"="+filepath.Join(t.TempDir(), "log"))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.True(t, isAlive(child))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return !isAlive(child) }, 10*time.Second, 10*time.Millisecond)
}

func TestStarterThreadEnds(t *testing.T) {
	var starter errgroup.Group
	var p *process.Process
	starter.Go(func() (err error) {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		p, err = startSleep(filepath.Join(t.TempDir(), "log"))
		return err
	})
	require.NoError(t, starter.Wait())
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	require.Never(t, func() bool { return !p.Running() }, 300*time.Millisecond, 20*time.Millisecond)
}

// processState returns the state letter of a process in /proc, or "" if there is no such
// process.
func processState(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}

func isAlive(pid int) bool { return processState(pid) != "" && processState(pid) != "Z" }
