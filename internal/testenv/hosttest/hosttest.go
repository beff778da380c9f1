// Package hosttest makes hosts for tests: directories with the files, processes and system
// bus of a host.
package hosttest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// BootIDFile is the path of the boot ID on a host.
	BootIDFile = "/proc/sys/kernel/random/boot_id"
	// BootID is the boot ID of every host.
	BootID = "8a5cd4d8-2c49-4f5e-9d4e-6a1b35a3b9f1"
	// Loop is the content of a link to itself. Unlike other unreadable files, it is
	// unreadable for root too.
	Loop = "-> itself"
	// PodUID is the UID of a pod of the API server, as in systemd's names of groups.
	PodUID = "12345678_1234_1234_1234_123456789abc"
	// ContainerID is the ID of a container.
	ContainerID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// Files are contents by path. A content that begins with "-> " is the target of a symbolic
// link.
type Files map[string]string

// New makes a host with the files and an empty process table, and returns its root.
func New(t testing.TB, content Files) string {
	t.Helper()
	root := t.TempDir()
	Add(t, root, Files{BootIDFile: BootID + "\n"})
	Add(t, root, content)
	return root
}

// Add adds files to a host. Files in a directory bin are executable.
func Add(t testing.TB, root string, content Files) {
	t.Helper()
	for path, text := range content {
		at := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			if text == Loop {
				target = filepath.Base(path)
			}
			require.NoError(t, os.Symlink(target, at))
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.Contains(path, "/bin/") {
			mode = 0o755
		}
		require.NoError(t, os.WriteFile(at, []byte(text), mode))
	}
}

// Remove removes a file or directory of a host.
func Remove(t testing.TB, root, path string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(root, path)))
}

// Rename renames a file or directory of a host.
func Rename(t testing.TB, root, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(filepath.Join(root, from), filepath.Join(root, to)))
}

// A Process is a process as a process table shows it. A test cannot run containers, pods and
// foreign hosts; these files are all that is read of them.
type Process struct {
	// Comm, Exe and Cgroup have defaults: etcd, /usr/local/bin/etcd and /.
	Comm, Exe, Cgroup string
	Line              []string
	Env               map[string]string
	// Root is the process's root directory on the host.
	Root string
	// WorkDir is its working directory as the kernel shows it. The default is /var/lib.
	WorkDir string
}

// Locks is a table of locks in which process 812 has one.
const Locks = "1: FLOCK  ADVISORY  WRITE 812 fd:01:1 0 EOF\n"

// AddProcess adds a process to the host's process table.
func AddProcess(t testing.TB, root string, pid int, p Process) {
	t.Helper()
	var env []string
	for name, value := range p.Env {
		env = append(env, name+"="+value+"\x00")
	}
	if p.Comm == "" {
		p.Comm = "etcd"
	}
	if p.Exe == "" {
		p.Exe = "/usr/local/bin/etcd"
	}
	if p.Cgroup == "" {
		p.Cgroup = "/"
	}
	if p.WorkDir == "" {
		p.WorkDir = "/var/lib"
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	Add(t, root, Files{
		dir + "comm":    p.Comm + "\n",
		dir + "cmdline": strings.Join(p.Line, "\x00") + "\x00",
		dir + "exe":     "-> " + p.Exe,
		dir + "cwd":     "-> " + p.WorkDir,
		dir + "root":    "-> " + filepath.Join(root, p.Root),
		dir + "cgroup":  "0::" + p.Cgroup + "\n",
		dir + "environ": strings.Join(env, ""),
	})
}
