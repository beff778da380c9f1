package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
)

func FuzzUnitFile(f *testing.F) {
	f.Add("[Service]\nEnvironment=ETCD_NAME=%m \"A=b c\"\nExecStartPre=/usr/bin/docker run --env-file /e -v /a:/b etcd\nExecStart=docker logs -f etcd\n", "A=1\n")
	f.Add("[Service]\nExecStart=\nExecStart=/bin/bash -c \"GOMAXPROCS=$(nproc) /usr/bin/etcd --name=\\\"${A}\\\"\"\n[Service]\nEnvironmentFile=", "")
	f.Add("[Service]\nExecStart=/usr/bin/etcd \\\n# --old \\\n  --data-dir /d", "")
	f.Add("[Service]\nExecStart=\\ ", "")
	f.Fuzz(func(t *testing.T, text, env string) {
		options, err := unitOptions([]byte(text))
		if err != nil {
			require.Regexp(t, `^line [0-9]+: it begins a section and does not end with a bracket, so that systemd does not load the file$`, err.Error())
			return
		}
		commented, err := unitOptions([]byte("# first\n" + strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\n", "\n # comment \\\n")))
		require.NoError(t, err)
		require.Equal(t, options, commented, "comments are nothing wherever they stand")
		var again strings.Builder
		for _, o := range options {
			again.WriteString("[" + o.section + "]\n" + o.name + "=" + o.value + " \n") // a backslash before the space joins no lines
		}
		written, err := unitOptions([]byte(again.String()))
		require.NoError(t, err)
		require.Equal(t, options, written)
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

// FuzzUnit is a whole look at the data of a stopped member, whose unit says anything before it says where that is.
func FuzzUnit(f *testing.F) {
	f.Add("Environment=ETCD_NAME=%i A=${B}\nEnvironmentFile=-/d/*.env\nStateDirectory=a:b\nWorkingDirectory=~", "etcd.service")
	f.Add("ExecStartPre=/usr/bin/docker run -v a:/d -e A etcd\nRootDirectory=/srv\n", "etcd@.service")
	f.Add("ExecStart=/bin/sh -c '. /d; etcd'\n", "etcd-a@b.service")
	root := f.TempDir()
	for _, dir := range []string{"proc", "d/member/wal", "etc/systemd/system", "usr/lib/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	h, err := New(Options{Root: root})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		if !matchesAny([]string{"etcd*.service"}, name) || filepath.Base(name) != name || len(name) > 100 || strings.ContainsAny(name, "\x00\n") {
			return
		}
		file := filepath.Join(root, "etc/systemd/system", name)
		require.NoError(t, os.WriteFile(file, []byte("[Service]\n"+text+"\n\n[Service]\nExecStart=/usr/bin/etcd --data-dir=/d\n"), 0o600))
		defer func() { require.NoError(t, os.Remove(file)) }()
		s := scan{host: h}
		s.readUnits(t.Context())
		s.readStopped()
		for _, unit := range s.services {
			if len(unit.volumes) > 0 || unit.env["ETCD_CONFIG_FILE"] != "" {
				return // they may well put it elsewhere
			}
		}
		require.NotEmpty(t, append(slices.Clone(s.unknown), places(s.found)...), "neither found nor unknown")
	})
}

func places(found []server) (all []string) {
	for _, f := range found {
		all = append(all, f.named)
	}
	return all
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
	f.Add("data-dir: /srv/k3s\n", "d: /srv/k3s", "server --data-dir=/x -d /y", "/z")
	f.Add("data-dir: [", "a: &a [*a]", "--debug server", "")
	root := f.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc/rancher/k3s/config.yaml.d"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, dropIn, args, env string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, "etc/rancher/k3s/config.yaml"), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(root, "etc/rancher/k3s/config.yaml.d/a.yml"), []byte(dropIn), 0o600))
		homes, _, err := rancher("k3s", "").told(start{args: strings.Fields(args), env: map[string]string{"K3S_DATA_DIR": env}}, tree(root))
		for _, home := range homes {
			require.True(t, filepath.IsAbs(home), home)
		}
		if filepath.IsAbs(env) && err == nil {
			require.NotEmpty(t, homes)
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
