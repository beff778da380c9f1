package etcddetect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// FuzzUnit scans a host with the data of a stopped member. Its unit has any text before the
// data directory.
func FuzzUnit(f *testing.F) {
	f.Add("Environment=A=%i B=${C}\nEnvironmentFile=-/d/*.env\nStateDirectory=a:b\nWorkingDirectory=~", "etcd.service")
	f.Add("ExecStartPre=/usr/bin/docker run -v a:/d -e A etcd\nRootDirectory=/srv\n", "etcd@.service")
	f.Add("ExecStart=/bin/sh -c '. /d; etcd'\n", "etcd-a@b.service")
	f.Add("\x00", "etcd.service")
	root := hosttest.New(f, hosttest.Files{
		"/d/member/wal/0.wal": "", "/etc/systemd/system/keep": "", "/usr/lib/systemd/system/keep": "",
	})
	d := New(hostfs.Root(root), nil)
	f.Fuzz(func(t *testing.T, text, name string) {
		isFileName := filepath.Base(name) == name && len(name) <= 100 && !strings.ContainsAny(name, "\x00\n")
		if !hostfs.MatchesAny([]string{"etcd*.service"}, name) || !isFileName {
			return
		}
		file := filepath.Join(root, "etc/systemd/system", name)
		unit := "[Service]\n" + text + "\n\n[Service]\nExecStart=/usr/bin/etcd --data-dir=/d\n"
		require.NoError(t, os.WriteFile(file, []byte(unit), 0o600))
		defer func() { require.NoError(t, os.Remove(file)) }()
		s := d.newScan()
		s.addUnits()
		s.addStopped()
		s.addOpaque()
		require.NotZero(t, len(s.unknown)+len(s.found), "neither found nor unknown")
	})
}

// FuzzProcess scans a host with one process, whose files have any content.
func FuzzProcess(f *testing.F) {
	f.Add("etcd\n", "/bin/etcd\x00--data-dir=/d\x00", "ETCD_NAME=a\x00", "0::/docker/1\n", "1 0 1:1 / / rw - ext4 d rw\n")
	f.Add("k3s-server\n", "k3s\x00server\x00", "", "12:pids:/system.slice/k3s.service\n0::/\n", "x")
	f.Add("etcd", "", "", ":", "1 1 1:1 /a /b rw shared:x - - -\n")
	root := f.TempDir()
	hosttest.Add(f, root, hosttest.Files{
		"/proc/812/exe": "-> /usr/bin/other", "/proc/812/cwd": "-> /", "/proc/812/root": "-> " + filepath.Join(root, "c"),
		"/c/d/member/wal/0.wal": "",
	})
	d := New(hostfs.Root(root), nil)
	f.Fuzz(func(t *testing.T, comm, line, env, cgroup, mountinfo string) {
		for name, text := range map[string]string{
			"comm": comm, "cmdline": line, "environ": env, "cgroup": cgroup, "mountinfo": mountinfo,
		} {
			require.NoError(t, os.WriteFile(filepath.Join(root, "proc/812", name), []byte(text), 0o600))
		}
		findings := d.Detect()
		require.LessOrEqual(t, len(findings.Found), 1)
		for _, found := range findings.Found {
			require.Equal(t, 812, found.PID)
			require.True(t, found.Config.DataDir == "" || filepath.IsAbs(found.Config.DataDir))
		}
		called, rest, _ := strings.Cut(line, "\x00")
		called = filepath.Base(called)
		isOther := strings.HasPrefix(rest, "gateway") || strings.HasPrefix(rest, "grpc-proxy") || isShell(called)
		if isServerName(called) && !isOther && !strings.Contains(cgroup, "pod") && len(findings.Unknown) == 0 {
			require.Len(t, findings.Found, 1, "a server is found")
		}
	})
}
