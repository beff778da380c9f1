package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdunit "github.com/coreos/go-systemd/v22/unit"
	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
)

func FuzzUnitFile(f *testing.F) {
	f.Add("[Service]\nEnvironment=ETCD_NAME=%m \"A=b c\"\nExecStartPre=/usr/bin/docker run --env-file /e -v /a:/b etcd\nExecStart=docker logs -f etcd\n", "A=1\n")
	f.Add("[Service]\nExecStart=\nExecStart=/bin/bash -c \"GOMAXPROCS=$(nproc) /usr/bin/etcd --name=\\\"${A}\\\"\"\n[Service]\nEnvironmentFile=", "")
	f.Fuzz(func(t *testing.T, text, env string) {
		options, err := sdunit.DeserializeOptions(strings.NewReader(text))
		if err != nil {
			return
		}
		var all fragment
		all.add(options)
		variables := parseEnvFile([]byte(env))
		for _, line := range append(all.before, all.exec) {
			c := serverCommand(commandLine(line, variables), variables)
			if !c.server {
				require.Equal(t, command{}, c)
			}
			s := service{command: c, env: variables}
			if named := s.outside("/var/lib/etcd"); len(c.volumes) == 0 {
				require.Equal(t, "/var/lib/etcd", named)
			}
			told, err := precedence(flagSettings(c.args), envSettings(variables), func(string) ([]byte, error) { return []byte(text), nil })
			if err == nil {
				require.True(t, filepath.IsAbs(told.config("/", true).DataDir))
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add("spec: {containers: [{command: [etcd, --data-dir=/var/lib/etcd], args: [--name=a], env: [{name: ETCD_NAME, value: b}]}]}")
	f.Add("spec:\n  containers:\n  - command: [sh, -c, etcd]\n  - args: [etcd, gateway]\n")
	f.Fuzz(func(t *testing.T, text string) {
		flags, env, err := podSettings([]byte(text))
		if err != nil {
			require.Nil(t, flags)
			require.Nil(t, env)
		}
	})
}

func FuzzCgroup(f *testing.F) {
	f.Add("/kubepods.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/cri-containerd-1.scope")
	f.Add("/system.slice/etcd-member.service/system.slice/etcd.service")
	f.Add("/podruntime/etcd")
	f.Fuzz(func(t *testing.T, cgroup string) {
		var p placement
		p.add(cgroup)
		require.False(t, p.static && !p.pod, "%+v", p)
		require.False(t, p.unit() != "" && (p.pod || p.container), "what runs in a unit is told as that: %+v", p)
		for _, unit := range p.units {
			require.Contains(t, strings.Split(cgroup, "/"), unit)
		}
		before := p
		p.add("/")
		require.Equal(t, before, p, "another hierarchy that says nothing changes nothing")
	})
}

func FuzzMounts(f *testing.F) {
	f.Add("/var/lib/rancher/etcd", "/var/lib/etcd", "/", "/", "/var/lib/rancher/etcd/member")
	f.Add("/a b", `/c\040d`, "/c", "/mnt", "/a b/../x")
	f.Fuzz(func(t *testing.T, insidePoint, insideRoot, hostRoot, hostPoint, name string) {
		m := mounts{
			inside: []*procfs.MountInfo{{MajorMinorVer: "1:1", MountPoint: insidePoint, Root: insideRoot}},
			host:   []*procfs.MountInfo{{MajorMinorVer: "1:1", MountPoint: hostPoint, Root: hostRoot}, {MajorMinorVer: "1:2", MountPoint: "/wrong", Root: "/"}},
		}
		if outside, ok := m.outside(name); ok && filepath.IsAbs(hostPoint) {
			require.True(t, filepath.IsAbs(outside), "%q", outside)
		}
	})
}

// FuzzProgramSettings reads what k3s reads besides its command line.
func FuzzProgramSettings(f *testing.F) {
	f.Add("data-dir: /srv/k3s\n", "server --data-dir=/x -d /y")
	f.Add("data-dir: [", "--debug server")
	root := f.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc/rancher/k3s"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, args string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, "etc/rancher/k3s/config.yaml"), []byte(text), 0o600))
		p := program{role: "server", dataDir: "/var/lib/rancher/k3s", settings: "/etc/rancher/k3s/config.yaml", etcdDir: "server/db/etcd"}
		dir, err := p.etcd(strings.Fields(args), tree(root))
		require.True(t, filepath.IsAbs(dir))
		if err != nil {
			require.Equal(t, "/var/lib/rancher/k3s/server/db/etcd", dir)
		}
	})
}

// FuzzProcess is a whole look at a process with anything in its files.
func FuzzProcess(f *testing.F) {
	f.Add("etcd\n", "/usr/bin/etcd\x00--data-dir=/d\x00", "ETCD_NAME=a\x00B\x00", "0::/docker/1\n", "1 0 1:1 / / rw - ext4 d rw\n")
	f.Add("k3s-server\n", "k3s\x00server\x00", "", "12:pids:/system.slice/k3s.service\n0::/\n", "x")
	f.Add("etcd", "", "", ":", "1 1 1:1 /a /b rw shared:x - - -\n")
	root := f.TempDir()
	dir := filepath.Join(root, "proc/812")
	for at, target := range map[string]string{"exe": "/usr/bin/other", "cwd": "/", "root": filepath.Join(root, "c")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			f.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, at)); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "c/d/member/wal"), 0o755); err != nil {
		f.Fatal(err)
	}
	h, err := New(Options{Root: root})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, comm, line, env, cgroup, mountinfo string) {
		for name, text := range map[string]string{"comm": comm, "cmdline": line, "environ": env, "cgroup": cgroup, "mountinfo": mountinfo} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		look := h.Look(t.Context())
		require.LessOrEqual(t, len(look.Found), 1)
		for _, found := range look.Found {
			require.Equal(t, 812, found.PID)
			require.True(t, found.Config.DataDir == "" || filepath.IsAbs(found.Config.DataDir))
		}
		called, _, _ := strings.Cut(line, "\x00")
		if isServerName(filepath.Base(called)) && !isShell(filepath.Base(called)) && !strings.Contains(line, "\x00gateway") && !strings.Contains(line, "\x00grpc-proxy") && len(look.Unknown) == 0 && !strings.Contains(cgroup, "pod") {
			require.Len(t, look.Found, 1, "a server is not passed over")
		}
	})
}
