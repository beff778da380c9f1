package etcddetect

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
)

// TestProgramWithLongPath: any pod can run a program whose path is longer than the kernel shows.
// That must not make the scan incomplete.
func TestProgramWithLongPath(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program, err := os.ReadFile(sleep)
	require.NoError(t, err)
	dir, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	for range 20 {
		name := strings.Repeat("d", 250)
		require.NoError(t, dir.Mkdir(name, 0o755))
		deeper, err := dir.OpenRoot(name)
		require.NoError(t, err)
		require.NoError(t, dir.Close())
		dir = deeper
	}
	require.NoError(t, dir.WriteFile("sleep", program, 0o755))
	opened, err := dir.Open(".")
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	path := fmt.Sprintf("/proc/%d/fd/%d/sleep", os.Getpid(), opened.Fd())
	command := exec.CommandContext(t.Context(), path, "600")
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Wait() }) // ended by the context
	require.NoError(t, opened.Close())
	pid := command.Process.Pid
	_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	require.ErrorIs(t, err, syscall.ENAMETOOLONG)

	table, err := os.Open("/proc")
	require.NoError(t, err)
	defer func() { require.NoError(t, table.Close()) }()
	filter := procFilter{table: table}
	exe, comm, called, err := filter.names(pid)
	require.NoError(t, err)
	require.Equal(t, []string{"", "sleep", path}, []string{exe, comm, called})
	proc, err := procfs.NewProc(pid)
	require.NoError(t, err)
	_, isServer, err := new(Detector).readProcess(proc, exe, comm, true)
	require.NoError(t, err)
	require.False(t, isServer)
}
