package process_test

import (
	"bufio"
	"errors"
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
	p, err := process.Start(process.Options{Path: "/bin/sleep", Args: []string{"600"}, LogFile: log})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, p.PID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func startScript(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Options{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"WORD=hello"},
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
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
	starter.Go(func() error {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		p = startScript(t, "exec sleep 600")
		return nil
	})
	require.NoError(t, starter.Wait())
	require.Never(t, func() bool { return !p.Running() }, 300*time.Millisecond, 20*time.Millisecond)
}

func TestPauseAndStop(t *testing.T) {
	p := startScript(t, `trap 'echo bye; exit 3' TERM; echo $WORD; while :; do sleep 0.05; done`)
	require.Eventually(t, func() bool { return p.LogTail(5) == "hello" }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, p.Exited())
	require.NoError(t, p.Pause())
	require.Equal(t, "T", processState(p.PID()))
	require.True(t, p.Running())
	require.NoError(t, p.Resume())
	require.Eventually(t, func() bool { return processState(p.PID()) != "T" }, 10*time.Second, 10*time.Millisecond)

	require.NoError(t, p.Pause())
	require.NoError(t, p.Stop(t.Context()), "Stop must stop a paused process")
	require.False(t, p.Running())
	require.EqualError(t, p.Exited(), "script ended (exit status 3); end of its log:\nhello\nbye")
	require.Equal(t, "bye", p.LogTail(1))
	require.NoError(t, p.Stop(t.Context()), "Stop must accept a process that has ended")
	require.NoError(t, p.Kill())
}

func TestStopTimeout(t *testing.T) {
	p := startScript(t, `trap '' TERM; echo deaf; while :; do sleep 0.05; done`)
	require.Eventually(t, func() bool { return p.LogTail(5) == "deaf" }, 10*time.Second, 10*time.Millisecond)
	began := time.Now()
	require.NoError(t, p.Stop(t.Context()))
	require.Greater(t, time.Since(began), 4*time.Second)
	require.ErrorContains(t, p.Exited(), "signal: killed")
}

func TestStartError(t *testing.T) {
	_, err := process.Start(process.Options{Path: "/nowhere/etcd", LogFile: filepath.Join(t.TempDir(), "log")})
	require.ErrorContains(t, err, "starting etcd: ")
	require.ErrorIs(t, err, os.ErrNotExist)

	var pid int
	rejected := errors.New("rejected")
	_, err = process.Start(process.Options{
		Path: "/bin/sleep", Args: []string{"600"}, LogFile: filepath.Join(t.TempDir(), "log"),
		OnStart: func(started int) error {
			pid = started
			return rejected
		},
	})
	require.ErrorIs(t, err, rejected)
	require.False(t, isAlive(pid))
}

func TestBinary(t *testing.T) {
	path, err := process.Binary("etcd")
	require.NoError(t, err)
	require.FileExists(t, path)
	_, err = process.Binary("no-such-server")
	require.EqualError(t, err, `finding no-such-server: there is no bin/no-such-server; run "make tools"`)

	servers := t.TempDir()
	require.NoError(t, os.Symlink(path, filepath.Join(servers, "other-etcd")))
	t.Setenv(process.ServersVariable, servers)
	other, err := process.Binary("other-etcd")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(servers, "other-etcd"), other)
	fallback, err := process.Binary("etcd")
	require.NoError(t, err)
	require.Equal(t, path, fallback)

	t.Chdir(t.TempDir())
	_, err = process.Binary("etcd")
	require.ErrorContains(t, err, "no go.mod of github.com/holdfast-dev/holdfast")
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
