package etcddetect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

// FuzzUnit scans a host with the data of a stopped member. Its unit has any text before the
// data directory.
func FuzzUnit(f *testing.F) {
	f.Add("Environment=A=%i B=${C}\nEnvironmentFile=-/d/*.env\nStateDirectory=a:b\nWorkingDirectory=~", "etcd.service")
	f.Add("ExecStartPre=/usr/bin/docker run -v a:/d -e A etcd\nRootDirectory=/srv\n", "etcd@.service")
	f.Add("ExecStart=/bin/sh -c '. /d; etcd'\n", "etcd-a@b.service")
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
		s := hostScan{Detector: d}
		s.addUnits(t.Context())
		s.addStoppedUnits()
		s.addScriptUnits()
		for _, unit := range s.units {
			if len(unit.volumes) > 0 || unit.Env["ETCD_CONFIG_FILE"] != "" {
				return // which may move the data directory
			}
		}
		require.NotZero(t, len(s.unknown)+len(s.found), "neither found nor unknown")
	})
}

func FuzzManifest(f *testing.F) {
	f.Add("spec: {containers: [{command: [etcd, --data-dir=/d], args: [--name=a], env: [{name: ETCD_NAME, value: b}]}]}")
	f.Add("spec:\n  containers:\n  - command: [sh, -c, etcd]\n  - args: [etcd, gateway]\n")
	f.Fuzz(func(t *testing.T, text string) {
		flags, env, err := parsePodManifest([]byte(text))
		if err != nil {
			require.Nil(t, flags)
			require.Nil(t, env)
		}
	})
}

// FuzzProgramSettings reads the settings of k3s: files, arguments and variables.
func FuzzProgramSettings(f *testing.F) {
	const settings = "/etc/rancher/k3s/config.yaml"
	f.Add("data-dir: /srv/k3s\n", "d: /srv/k3s", "server --data-dir=/x -d /y", "/z")
	f.Add("data-dir: [", "a: &a [*a]", "--debug server", "")
	root := hosttest.New(f, hosttest.Files{settings + ".d/keep": ""})
	f.Fuzz(func(t *testing.T, text, dropIn, args, dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, settings), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(root, settings+".d/a.yml"), []byte(dropIn), 0o600))
		start := programStart{args: strings.Fields(args), env: map[string]string{"K3S_DATA_DIR": dir}}
		dirs, _, err := rancherProgram("k3s", "").programDirs(start, hostfs.Root(root))
		for _, programDir := range dirs {
			require.True(t, filepath.IsAbs(programDir), programDir)
		}
		if filepath.IsAbs(dir) && err == nil {
			require.NotEmpty(t, dirs)
		}
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
		findings := d.Detect(t.Context())
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
