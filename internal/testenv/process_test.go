package testenv_test

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

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// parentVariable makes the test binary play the parent that dies.
const parentVariable = "TESTENV_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentVariable); log != "" {
		if err := parent(log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// parent starts a child, tells its PID, and lives until its stdin is closed.
func parent(log string) error {
	p, err := testenv.StartProcess(testenv.ProcessOptions{Path: "/bin/sleep", Args: []string{"600"}, LogFile: log})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, p.PID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func start(t *testing.T, script string) *testenv.Process {
	t.Helper()
	p, err := testenv.StartProcess(testenv.ProcessOptions{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"WORD=hello"},
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
}

func TestChildDiesWithItsParent(t *testing.T) {
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
	require.True(t, alive(child))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return !alive(child) }, 10*time.Second, 10*time.Millisecond)
}

func TestChildOutlivesTheThreadThatAskedForIt(t *testing.T) {
	var asking errgroup.Group
	var p *testenv.Process
	asking.Go(func() error {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		p = start(t, "exec sleep 600")
		return nil
	})
	require.NoError(t, asking.Wait())
	require.Never(t, func() bool { return !p.Running() }, 300*time.Millisecond, 20*time.Millisecond)
}

func TestProcessStopsPausesAndTells(t *testing.T) {
	p := start(t, `trap 'echo bye; exit 3' TERM; echo $WORD; while :; do sleep 0.05; done`)
	require.Eventually(t, func() bool { return p.LogTail(5) == "hello" }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, p.Exited())
	require.NoError(t, p.Pause())
	require.Equal(t, "T", state(p.PID()))
	require.True(t, p.Running())
	require.NoError(t, p.Resume())
	require.Eventually(t, func() bool { return state(p.PID()) != "T" }, 10*time.Second, 10*time.Millisecond)

	require.NoError(t, p.Pause())
	require.NoError(t, p.Stop(t.Context()), "a paused process can be stopped")
	require.False(t, p.Running())
	require.EqualError(t, p.Exited(), "script ended (exit status 3); the end of its log:\nhello\nbye")
	require.Equal(t, "bye", p.LogTail(1))
	require.NoError(t, p.Stop(t.Context()), "to stop it again is no error")
	require.NoError(t, p.Kill())
}

func TestProcessThatIgnoresSIGTERMIsKilled(t *testing.T) {
	p := start(t, `trap '' TERM; echo deaf; while :; do sleep 0.05; done`)
	require.Eventually(t, func() bool { return p.LogTail(5) == "deaf" }, 10*time.Second, 10*time.Millisecond)
	began := time.Now()
	require.NoError(t, p.Stop(t.Context()))
	require.Greater(t, time.Since(began), 4*time.Second)
	require.ErrorContains(t, p.Exited(), "signal: killed")
}

func TestProcessThatCannotStartSaysWhy(t *testing.T) {
	_, err := testenv.StartProcess(testenv.ProcessOptions{Path: "/nowhere/etcd", LogFile: filepath.Join(t.TempDir(), "log")})
	require.ErrorContains(t, err, "starting etcd: ")
	require.ErrorIs(t, err, os.ErrNotExist)

	var pid int
	unwelcome := errors.New("unwelcome")
	_, err = testenv.StartProcess(testenv.ProcessOptions{
		Path: "/bin/sleep", Args: []string{"600"}, LogFile: filepath.Join(t.TempDir(), "log"),
		OnStart: func(started int) error {
			pid = started
			return unwelcome
		},
	})
	require.ErrorIs(t, err, unwelcome)
	require.False(t, alive(pid))
}

func TestBinarySaysHowToMakeIt(t *testing.T) {
	path, err := testenv.Binary("etcd")
	require.NoError(t, err)
	require.FileExists(t, path)
	_, err = testenv.Binary("no-such-server")
	require.EqualError(t, err, `finding no-such-server: there is no bin/no-such-server; run "make tools"`)
	t.Chdir(t.TempDir())
	_, err = testenv.Binary("etcd")
	require.ErrorContains(t, err, "no go.mod of github.com/holdfast-dev/holdfast")
}

// state is the letter of a process in /proc, empty if there is none.
func state(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}

func alive(pid int) bool { return state(pid) != "" && state(pid) != "Z" }
