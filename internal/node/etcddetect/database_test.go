package etcddetect

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// databaseVariable makes the test program hold a lock on this file, with the file of logVariable
// open, as an etcd that is part of another program does.
const databaseVariable, logVariable = "TEST_DATABASE", "TEST_LOG"

func TestMain(m *testing.M) {
	if file := os.Getenv(databaseVariable); file != "" {
		holdDatabase(file, os.Getenv(logVariable))
		return
	}
	os.Exit(m.Run())
}

// holdDatabase holds the lock until its input ends.
func holdDatabase(name, log string) {
	database, err := os.Open(name)
	if err == nil {
		err = unix.Flock(int(database.Fd()), unix.LOCK_EX)
	}
	if err == nil && log != "" {
		_, err = os.Open(log)
	}
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("ready\n") // the test waits in vain then
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = database.Close() // the end of the process releases the lock
}

// TestOpenDatabase runs programs that have a database open, none of which has the name of etcd.
func TestOpenDatabase(t *testing.T) {
	const segment = "0000000000000000-0000000000000000.wal"
	head := walHead(t)
	ref := *parseWALHead(head)
	for name, c := range map[string]struct {
		database, log string
		namespaces    uintptr
		isServer      bool
	}{
		"embedded":       {"member/snap/db", "member/wal/" + segment, 0, true},
		"user namespace": {"member/snap/db", "member/wal/" + segment, unix.CLONE_NEWUSER | unix.CLONE_NEWPID, true},
		"container": {
			"member/snap/db", "member/wal/" + segment, unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS |
				unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP, true,
		},
		"log elsewhere":     {"member/snap/db", "log/" + segment, 0, true},
		"containerd":        {"io.containerd.metadata.v1.bolt/meta.db", "", 0, false},
		"consul":            {"raft/raft.db", "", 0, false},
		"tool for etcd":     {"member/snap/db", "", 0, false},
		"copy of a log":     {"x.db", "member/wal/" + segment, 0, false},
		"another log":       {"member/snap/db", "member/wal/1.wal", 0, false},
		"database of other": {"snap/db", "wal/" + segment, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			add := func(file string, content []byte) string {
				at := filepath.Join(dir, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
				require.NoError(t, os.WriteFile(at, content, 0o644))
				return at
			}
			env := append(os.Environ(), databaseVariable+"="+add(c.database, []byte("x")), "ETCD_NAME=other")
			if c.log != "" {
				env = append(env, logVariable+"="+add(c.log, head))
			}
			pid := start(t, env, c.namespaces)
			found, isFound := serverOf(t, pid)
			require.Equal(t, c.isServer, isFound, "%+v", found)
			if !c.isServer {
				return
			}
			require.Equal(t, dir, found.Config.DataDir)
			require.Equal(t, ref, *found.Stored)
			require.True(t, found.IsLocked)
			require.Contains(t, found.Where, filepath.Base(os.Args[0]))
			require.Empty(t, found.Config.Name, "the variables are those of the other program")
		})
	}
}

// TestRenamedEtcd runs etcd under another name.
func TestRenamedEtcd(t *testing.T) {
	etcd, err := process.Binary("etcd")
	require.NoError(t, err)
	dir := t.TempDir()
	renamed := filepath.Join(dir, "cluster-store")
	program, err := os.ReadFile(etcd)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(renamed, program, 0o755))
	data := filepath.Join(dir, "data")
	command := exec.Command(renamed, "--name=m1", "--data-dir="+data, "--listen-client-urls=http://127.0.0.1:0",
		"--advertise-client-urls=http://127.0.0.1:0", "--listen-peer-urls=http://127.0.0.1:0")
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	var found evidence.Server
	require.Eventually(t, func() bool {
		var isFound bool
		found, isFound = serverOf(t, command.Process.Pid)
		return isFound && found.Stored != nil
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, data, found.Config.DataDir)
	require.Equal(t, "m1", found.Config.Name)
	require.Contains(t, found.Where, "cluster-store process")
}

// TestUnreadableDatabase: what the kernel does not show of a process that holds a lock is unknown.
func TestUnreadableDatabase(t *testing.T) {
	for name, c := range map[string]struct {
		files   hosttest.Files
		unknown []string
	}{
		"open files": {
			hosttest.Files{"/proc/locks": hosttest.Locks, "/proc/812/fd/3": "no link"},
			[]string{"process 812, store, may contain etcd: its open files: invalid argument"},
		},
		"table of open files": {
			hosttest.Files{"/proc/locks": hosttest.Locks, "/proc/812/fd": "no directory"}, nil, // ended
		},
		"locks": {
			hosttest.Files{"/proc/locks/x": "no file"}, []string{"the locks of processes in ROOT/proc: is a directory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.files)
			hosttest.AddProcess(t, root, 812, hosttest.Process{Comm: "store", Exe: "/usr/bin/store", Line: []string{"store"}})
			findings := New(hostfs.Root(root), nil).Detect()
			require.Empty(t, findings.Found)
			for i := range findings.Unknown {
				findings.Unknown[i] = strings.ReplaceAll(findings.Unknown[i], root, "ROOT")
			}
			require.Equal(t, c.unknown, findings.Unknown)
		})
	}
}

// start starts this program with an environment, and returns its process when it is ready. The
// process has these namespaces of its own.
func start(t *testing.T, env []string, namespaces uintptr) int {
	t.Helper()
	permitted := exec.Command("/proc/self/exe", "-test.run=none")
	permitted.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := permitted.Run(); err != nil {
		t.Skipf("SKIPPED: that etcd is found in a user namespace is not tested: %v", err)
	}
	command := exec.Command("/proc/self/exe")
	command.Env, command.SysProcAttr = env, &syscall.SysProcAttr{Cloneflags: namespaces}
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = os.Stderr
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = in.Close(); _ = command.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return command.Process.Pid
}

// serverOf scans this machine, and returns the server of a process.
func serverOf(t *testing.T, pid int) (evidence.Server, bool) {
	t.Helper()
	for _, found := range New("/", nil).Detect().Found {
		if found.PID == pid {
			return found.Server, true
		}
	}
	return evidence.Server{}, false
}
