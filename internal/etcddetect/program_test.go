package etcddetect_test

import (
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

const (
	k3sUnit = "/etc/systemd/system/k3s.service"
	k3sEtcd = "/srv/k3s/server/db/etcd"
)

// A stopped program shows its data directory by its unit and its settings alone.
func TestStoppedProgram(t *testing.T) {
	ofK3s := []string{"data directory " + k3sEtcd + " (k3s, systemd unit k3s.service)"}
	for name, c := range map[string]stoppedCase{
		"RKE2 with a variable": {
			host: hosttest.Files{
				"/usr/local/lib/systemd/system/rke2-server.service": service("EnvironmentFile=-/etc/default/%N",
					"ExecStart=/usr/local/bin/rke2 server"),
				"/etc/default/rke2-server":            "RKE2_DATA_DIR=/srv/rke2\n",
				"/srv/rke2/server/db/etcd/member/wal": "x",
			},
			where: []string{"data directory /srv/rke2/server/db/etcd (RKE2, systemd unit rke2-server.service)"},
		},
		"settings file, in a shell": {
			host: hosttest.Files{
				"/etc/systemd/system/k3s-blue.service": service("ExecStart=/bin/sh -c 'exec /bin/k3s server -c=/etc/k3s.yaml'"),
				"/etc/k3s.yaml":                        "data-dir: /wrong\n", "/etc/k3s.yaml.d/10.YAML": "d: /srv/k3s\n",
				"/etc/rancher/k3s/config.yaml": "data-dir: /not/read\n", k3sEtcd + "/member/wal": "x",
			},
			where: []string{"data directory " + k3sEtcd + ", with no server running on it"},
		},
		"settings file in a variable": {
			host: hosttest.Files{
				k3sUnit: service("Environment=K3S_CONFIG_FILE=/etc/k3s.yaml",
					"ExecStart=/usr/local/bin/k3s server --config /etc/other.yaml"),
				"/etc/k3s.yaml": "data-dir: /srv/k3s\n", k3sEtcd + "/member/wal": "x",
			},
			where: ofK3s,
		},
		"argument for etcd": {
			host: hosttest.Files{
				k3sUnit: service("ExecStart=/usr/local/bin/k3s server --etcd-arg=data-dir=/srv/etcd"),
				"/var/lib/rancher/k3s/server/db/etcd/config": "name: n1\ndata-dir: /srv/etcd\n", "/srv/etcd/member/wal": "x",
			},
			where: []string{"data directory /srv/etcd (k3s, systemd unit k3s.service)"},
		},
		"unset variable": {
			host: hosttest.Files{
				k3sUnit: service("ExecStart=/usr/local/bin/k3s server --data-dir=${WHERE} --config=${WHAT}"),
				"/var/lib/rancher/k3s/server/db/etcd/member/wal": "x",
			},
			where: []string{"data directory /var/lib/rancher/k3s/server/db/etcd (k3s, systemd unit k3s.service)"},
		},
		"settings on the network": {
			host: hosttest.Files{k3sUnit: service("ExecStart=/usr/local/bin/k3s server --config=https://example.com/k3s")},
			unknown: []string{"the data directory of systemd unit k3s.service: " +
				"k3s reads its settings from the network"},
		},
		"relative data directory": {
			host: hosttest.Files{k3sUnit: service("ExecStart=/usr/local/bin/k3s server --data-dir ~/k3s")},
			unknown: []string{"the data directory of systemd unit k3s.service: " +
				"k3s has the data directory \"~/k3s\": set it to an absolute path"},
		},
	} {
		t.Run(name, func(t *testing.T) { requireStopped(t, c) })
	}
}

// k3s hides its arguments. A k3s with etcd in another directory must not count as one without
// etcd.
func TestRunningProgram(t *testing.T) {
	k3s := func(exe, line, cgroup string) hosttest.Process {
		return hosttest.Process{Comm: "k3s-server", Exe: exe, Line: []string{line}, Cgroup: cgroup}
	}
	hidden := k3s("/var/lib/rancher/k3s/data/1/bin/k3s", "/usr/local/bin/k3s server", "/system.slice/k3s.service")
	withVariable := func(dir string) hosttest.Process {
		p := k3s("/usr/local/bin/k3s", "k3s", "")
		p.Line, p.Env = []string{"k3s", "server"}, map[string]string{"K3S_DATA_DIR": dir}
		return p
	}
	for name, c := range map[string]struct {
		host    hosttest.Files
		process hosttest.Process
	}{
		"flag": {
			host:    hosttest.Files{k3sUnit: service("ExecStart=/bin/k3s --debug server --cluster-init --data-dir /srv/k3s")},
			process: hidden,
		},
		"flag before the role": {
			host:    hosttest.Files{k3sUnit: service("ExecStart=/usr/local/bin/k3s -d /srv/k3s server")},
			process: hidden,
		},
		"settings file": {
			host: hosttest.Files{
				k3sUnit:         service("ExecStart=/usr/local/bin/k3s server --config /etc/k3s.yaml"),
				"/etc/k3s.yaml": "data-dir: /srv/k3s\n",
			},
			process: hidden,
		},
		"unit with another name, behind a script": {
			host: hosttest.Files{
				"/etc/systemd/system/k3s-blue.service": service("Environment=K3S_DATA_DIR=/srv/k3s", "ExecStart=/opt/start.sh"),
			},
			process: k3s("/var/lib/rancher/k3s/data/1/bin/k3s", "/usr/local/bin/k3s server", "/system.slice/k3s-blue.service"),
		},
		"variable of the process":    {process: withVariable("/srv/k3s")},
		"variable of an old version": {process: withVariable("/srv/k3s/data/1")},
		"path of the program":        {process: k3s("/srv/k3s/data/1/bin/k3s (deleted)", "/usr/local/bin/k3s server", "")},
		"open database": {
			host: hosttest.Files{
				"/proc/812/fd/7": "-> socket:[1]", "/proc/812/fd/8": "-> " + k3sEtcd + member,
				"/var/lib/rancher/k3s/server/token": "of an earlier k3s",
			},
			process: k3s("/var/lib/rancher/k3s/data/1/bin/k3s", "/usr/local/bin/k3s server", ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := hosttest.Files{k3sEtcd + "/config": "name: n1\ndata-dir: " + k3sEtcd + "\n", k3sEtcd + member: "x"}
			maps.Copy(host, c.host)
			root := hosttest.New(t, host)
			hosttest.AddProcess(t, root, 812, c.process)
			s := detectOne(t, root)
			require.Equal(t, 812, s.PID)
			require.Equal(t, filepath.Join(root, k3sEtcd), s.Config.DataDir)
		})
	}
}

func TestRunningProgramUnknown(t *testing.T) {
	const server = "process 812, k3s server, may contain etcd: "
	for name, c := range map[string]struct {
		host    hosttest.Files
		unknown string
	}{
		"no data": {nil, server + "it has no data in /var/lib/rancher/k3s; " +
			"set data-dir in /etc/rancher/k3s/config.yaml to its data directory"},
		"invalid settings": {
			hosttest.Files{"/etc/rancher/k3s/config.yaml": "\t[", "/var/lib/rancher/k3s/server/token": "x"},
			server + "parsing /etc/rancher/k3s/config.yaml: it is not valid YAML; it has no data in ",
		},
		"unreadable drop-ins": {
			hosttest.Files{"/etc/rancher/k3s/config.yaml.d": hosttest.Loop, "/var/lib/rancher/k3s/server/token": "x"},
			server + "reading /etc/rancher/k3s/config.yaml.d: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			line := []string{"/usr/local/bin/k3s server"}
			hosttest.AddProcess(t, root, 812, hosttest.Process{Comm: "k3s-server", Exe: "/usr/local/bin/k3s", Line: line})
			findings := detect(t, root)
			require.Empty(t, findings.Found)
			require.NotEmpty(t, findings.Unknown)
			require.Contains(t, findings.Unknown[0], c.unknown)
		})
	}
}
