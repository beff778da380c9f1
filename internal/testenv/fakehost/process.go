package fakehost

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

const (
	// commLength is the kernel's limit for the name of a process.
	commLength = 15
	hostMounts = "22 1 253:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n" +
		"23 22 0:21 / /proc rw shared:2 - proc proc rw\n"
)

// ShowProcesses writes the layout's processes and their locks, process 1 and a boot ID to the
// host's /proc. Process 1 has the host's own mounts.
func (l Layout) ShowProcesses(t testing.TB, root string, addresses *strings.Replacer) {
	t.Helper()
	showProcess(t, root, Process{PID: 1, Exe: "/usr/lib/systemd/systemd", Args: "/sbin/init", Cgroup: "/init.scope"},
		addresses)
	locks := ""
	for _, p := range l.Processes {
		locks += fmt.Sprintf("1: FLOCK  ADVISORY  WRITE %d fd:01:1 0 EOF\n", p.PID)
		showProcess(t, root, p, addresses)
	}
	hosttest.Add(t, root, hosttest.Files{"/proc/locks": locks, hosttest.BootIDFile: hosttest.BootID + "\n"})
}

// HideProcesses removes the layout's processes from the host's /proc.
func (l Layout) HideProcesses(t testing.TB, root string) {
	t.Helper()
	for _, p := range l.Processes {
		hosttest.Remove(t, root, fmt.Sprintf("/proc/%d", p.PID))
	}
}

func showProcess(t testing.TB, root string, p Process, addresses *strings.Replacer) {
	t.Helper()
	comm := cmp.Or(p.Comm, path.Base(p.Exe))
	hosttest.AddProcess(t, root, p.PID, hosttest.Process{
		Comm: comm[:min(len(comm), commLength)], Exe: p.Exe, Cgroup: p.Cgroup, Root: p.Root,
		Line: strings.Fields(addresses.Replace(p.Args)), Env: environment(t, root, p, addresses),
		WorkDir: path.Join("/", p.Cwd),
	})
	mounts := hostMounts
	if p.Root != "" {
		mounts = "900 800 0:52 / / rw,relatime - overlay overlay rw\n"
		for i, inside := range slices.Sorted(maps.Keys(p.Mounts)) {
			mounts += fmt.Sprintf("%d 900 253:1 %s %s rw,relatime - ext4 /dev/vda1 rw\n", 901+i, p.Mounts[inside], inside)
		}
	}
	dir := fmt.Sprintf("/proc/%d/", p.PID)
	hosttest.Add(t, root, hosttest.Files{dir + "mountinfo": mounts})
	if p.Database != "" {
		hosttest.Add(t, root, hosttest.Files{
			dir + "fd/8": "-> " + path.Join(p.Database, "member/snap/db"),
			dir + "fd/9": "-> " + path.Join(p.Database, "member/wal/0000000000000000-0000000000000000.wal"),
		})
	}
}

// environment returns the variables of a process, including those of its environment file.
func environment(t testing.TB, root string, p Process, addresses *strings.Replacer) map[string]string {
	t.Helper()
	env := map[string]string{}
	if p.EnvFile != "" {
		text, err := os.ReadFile(filepath.Join(root, p.EnvFile))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
				env[name] = strings.Trim(value, `"`)
			}
		}
	}
	for name, value := range p.Env {
		env[name] = addresses.Replace(value)
	}
	return env
}

// ServerCommand returns the arguments and variables for a real etcd that stands for a process
// of the layout. They are the layout's own, with all paths below root.
func ServerCommand(t testing.TB, root string, p Process, addresses *strings.Replacer) (args, env []string) {
	t.Helper()
	command := p.Command
	if command == "" {
		_, command, _ = strings.Cut(p.Args, " ")
	}
	containerRoot := filepath.Join(root, p.Root)
	for name, value := range environment(t, root, p, addresses) {
		env = append(env, prefixPaths(name+"="+value, containerRoot))
	}
	for _, word := range strings.Fields(addresses.Replace(command)) {
		name, file, hasValue := strings.Cut(word, "=")
		if !hasValue || name != "--config-file" {
			args = append(args, prefixPaths(word, containerRoot))
			continue
		}
		// The host keeps its file. etcd gets a copy with paths below root.
		text, err := os.ReadFile(filepath.Join(containerRoot, file))
		require.NoError(t, err)
		copied := filepath.Join(root, "launched.yaml")
		require.NoError(t, os.WriteFile(copied, []byte(prefixPaths(string(text), containerRoot)), 0o600))
		args = append(args, name+"="+copied)
	}
	return args, env
}

// prefixPaths puts root before each absolute path in text.
func prefixPaths(text, root string) string {
	absolute := regexp.MustCompile(`(^|[\s=,:"'])(/(?:etc|var|system|data|srv|opt|rootfs)/)`)
	return absolute.ReplaceAllString(text, "${1}"+root+"${2}")
}
