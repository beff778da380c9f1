package etcddetect

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/systemd"
)

func TestIsServerName(t *testing.T) {
	for _, name := range []string{
		"etcd", "etcd2", "etcd3", "etcd-3.5", "etcd_3.5.12", "etcdv3", "etcd-v3.5.12", "etcd-v3.6.0-rc.1",
		"etcd-v3.5.12-linux-amd64", "etcd-linux-arm64", "etcd-x86_64", "etcd-v3.5.21-k3s1",
	} {
		require.True(t, isServerName(name), name)
	}
	for _, name := range []string{
		"", "etc", "etcdctl", "etcdutl", "etcd_exporter", "etcd-backup", "etcd-v3-backup", "etcd-defrag", "etcd.service",
		"etcd-20240102.db", "etcd-v3.5.12.tar.gz", "etcd-vault", "etcd-main", "etcd-k3s", "etcdv", "myetcd", "etcd-io",
		"etcdhelper-1",
	} {
		require.False(t, isServerName(name), name)
	}
}

// A word with a version is the program only where no other thing has such a name.
func TestParseCommandVersions(t *testing.T) {
	for line, want := range map[string]bool{
		"/usr/local/bin/etcd-v3.5.12 --name=a":                       true,
		"/opt/etcd/etcd-v3.5.12 --name=a":                            true,
		"/usr/bin/nice /usr/local/bin/etcd-v3.5.12 --name=a":         true,
		"/usr/bin/docker run registry.example/etcd-amd64:3.5 --name": true,
		"/usr/local/bin/etcdctl snapshot save etcd-20240102":         false,
		"/usr/bin/docker run --network etcd-1 redis":                 false,
		"/usr/bin/restic backup --tag etcd-3.5 /var/lib/etcd":        false,
		"/usr/bin/tar --create --file /srv/etcd-3.5 /var/lib/etcd":   false,
	} {
		require.Equal(t, want, parseCommand(strings.Fields(line), nil).isServer, line)
	}
}

func TestParseCommand(t *testing.T) {
	const image = "quay.io/coreos/etcd"
	env := map[string]string{"OPTS": "--name=a --data-dir=/d", "DIR": "/my dir", "ETCD_NAME": "b"}
	options := []string{"--name=a", "--data-dir=/d"}
	for name, c := range map[string]struct {
		exec     string
		args     []string
		envFiles []string
		isServer bool
	}{
		"nothing":             {exec: ""},
		"program":             {"/usr/bin/etcd --name=a", []string{"--name=a"}, nil, true},
		"prefix":              {"-@/usr/bin/etcd", nil, nil, true},
		"variable of words":   {"/usr/bin/etcd $OPTS", options, nil, true},
		"variable in a word":  {"/usr/bin/etcd --data-dir=${DIR}", []string{"--data-dir=/my dir"}, nil, true},
		"unset variable":      {"/usr/bin/etcd $NO --name=${NO}", []string{"--name=" + systemd.Unresolved("$NO")}, nil, true},
		"directory of a name": {"/usr/bin/etcd --data-dir=/srv/etcd", []string{"--data-dir=/srv/etcd"}, nil, true},
		"shell": {
			`/bin/bash -c "GOMAXPROCS=$(nproc) exec /usr/bin/etcd --name=\"${ETCD_NAME}\""`, []string{"--name=b"}, nil, true,
		},
		"shell with options": {`/bin/sh -ec 'exec /usr/local/bin/etcd --name a'`, []string{"--name", "a"}, nil, true},
		"docker": {
			"/usr/bin/docker run --rm --env-file=/etc/e.env --name etcd " + image + ":v3.5", nil, []string{"/etc/e.env"}, true,
		},
		"docker with a program": {
			"/usr/bin/docker run --env-file /e --name=etcd1 " + image + "@sha256:0 /usr/local/bin/etcd --name=a",
			[]string{"--name=a"},
			[]string{"/e"},
			true,
		},
		"wrapper":       {"/usr/lib/coreos/etcd-wrapper $OPTS", options, nil, true},
		"etcdctl":       {exec: "/usr/bin/etcdctl --endpoints=x snapshot save /var/lib/etcd"},
		"gateway":       {exec: "/usr/bin/etcd gateway start"},
		"docker rm":     {exec: "/usr/bin/docker rm -f etcd-backup"},
		"another image": {exec: "/usr/bin/docker run -v /var/lib/etcd redis"},
	} {
		t.Run(name, func(t *testing.T) {
			found := parseCommand(systemd.CommandLine(c.exec, env), env)
			require.Equal(t, c.isServer, found.isServer)
			require.Equal(t, c.args, slices.Clip(append([]string(nil), found.args...)))
			require.Equal(t, c.envFiles, found.envFiles)
		})
	}
}

func FuzzUnitCommand(f *testing.F) {
	f.Add("/bin/bash -c \"exec /usr/bin/etcd $OPTS\"", "--name=a", "")
	f.Add("/bin/sh -c 'cd /a && A=$(b `c`) etcd $OPTS; d'", "--data-dir=${B}", "name: a")
	f.Add("/usr/bin/docker run -e A=b -v c:/d --mount type=bind,src=/e,dst=/f quay.io/coreos/etcd:v3 sh -c 'etcd'", "", "")
	f.Add("etcd \x01", "a\x00b", "")
	f.Fuzz(func(t *testing.T, exec, opts, config string) {
		env := map[string]string{"OPTS": opts, "ETCD_NAME": opts}
		c := parseCommand(systemd.CommandLine(exec, env), env)
		if !c.isServer {
			require.Equal(t, etcdCommand{}, c)
		}
		for _, arg := range c.args {
			isResolved := len(systemd.UnresolvedNames(arg)) == 0
			require.Equal(t, isResolved, systemd.ReplaceUnresolved(arg, "") == arg, "%q", arg)
		}
		u := etcdUnit{volumes: c.volumes}
		if named := u.hostPath("/var/lib/etcd"); len(c.volumes) == 0 {
			require.Equal(t, "/var/lib/etcd", named)
		}
		read := func(string) ([]byte, error) { return []byte(config), nil }
		loaded, err := loadSettings(parseFlags(c.args), envSettings(env), "/", read)
		if err == nil {
			require.True(t, filepath.IsAbs(loaded.config("/", true).DataDir))
		}
	})
}
