package host_test

import (
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
)

// k3s hides what it was told. A server of it whose etcd lies elsewhere must not pass for one without etcd.
func TestWhereK3sKeepsItsData(t *testing.T) {
	const unit = "/etc/systemd/system/k3s.service"
	hidden := shown{comm: "k3s-server", exe: "/var/lib/rancher/k3s/data/1/bin/k3s", line: []string{"/usr/local/bin/k3s server"}}
	under := func(cgroup string, p shown) shown { p.cgroup = cgroup; return p }
	for name, c := range map[string]struct {
		host    files
		process shown
	}{
		"a flag": {
			host:    files{unit: "[Service]\nExecStart=/usr/local/bin/k3s --debug server --cluster-init --data-dir /srv/k3s\n"},
			process: under("/system.slice/k3s.service", hidden),
		},
		"a flag before the role": {
			host:    files{unit: "[Service]\nExecStart=/usr/local/bin/k3s -d /srv/k3s server\n"},
			process: under("/system.slice/k3s.service", hidden),
		},
		"a file of another name": {
			host:    files{unit: "[Service]\nExecStart=/usr/local/bin/k3s server --config /etc/k3s.yaml\n", "/etc/k3s.yaml": "data-dir: /srv/k3s\n"},
			process: under("/system.slice/k3s.service", hidden),
		},
		"a unit of another name, behind a script": {
			host:    files{"/etc/systemd/system/k3s-blue.service": "[Service]\nEnvironment=K3S_DATA_DIR=/srv/k3s\nExecStart=/opt/start.sh\n"},
			process: under("/system.slice/k3s-blue.service", hidden),
		},
		"the process's own variable": {
			process: shown{comm: "k3s-server", exe: "/usr/local/bin/k3s", line: []string{"k3s", "server"}, env: map[string]string{"K3S_DATA_DIR": "/srv/k3s"}},
		},
		"the variable by which old versions tell where they are unpacked": {
			process: shown{comm: "k3s-server", exe: "/usr/local/bin/k3s", line: []string{"k3s", "server"}, env: map[string]string{"K3S_DATA_DIR": "/srv/k3s/data/1"}},
		},
		"the program that runs": {process: shown{comm: "k3s-server", exe: "/srv/k3s/data/1/bin/k3s (deleted)", line: []string{"/usr/local/bin/k3s server"}}},
		"the database that it has open": {
			host:    files{"/proc/812/fd/7": "-> socket:[1]", "/proc/812/fd/8": "-> /srv/k3s/server/db/etcd/member/snap/db", "/var/lib/rancher/k3s/server/token": "of before"},
			process: hidden,
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := files{"/srv/k3s/server/db/etcd/config": "name: n1\ndata-dir: /srv/k3s/server/db/etcd\n", "/srv/k3s/server/db/etcd/member/snap/db": "x"}
			maps.Copy(data, c.host)
			root := layOut(t, data)
			process(t, root, 812, c.process)
			look := at(t, root).Look(t.Context())
			require.Empty(t, look.Unknown)
			require.Len(t, look.Found, 1, "the server and its data are one")
			require.Equal(t, 812, look.Found[0].PID)
			require.Equal(t, filepath.Join(root, "srv/k3s/server/db/etcd"), look.Found[0].Config.DataDir)
		})
	}
}

func TestAK3sWhosePlaceIsNotKnownIsUnknown(t *testing.T) {
	server := shown{comm: "k3s-server", exe: "/usr/local/bin/k3s", line: []string{"/usr/local/bin/k3s server"}}
	look := func(t *testing.T, content files) host.Look {
		root := layOut(t, content)
		process(t, root, 812, server)
		return at(t, root).Look(t.Context())
	}
	for name, c := range map[string]struct {
		host    files
		unknown string
	}{
		"nothing tells": {nil, "process 812, k3s server, and whether it has etcd inside: it has no data in /var/lib/rancher/k3s; set data-dir in /etc/rancher/k3s/config.yaml to where it keeps its data"},
		"settings that cannot be read": {
			files{"/etc/rancher/k3s/config.yaml": "\t[", "/var/lib/rancher/k3s/server/token": "x"},
			"process 812, k3s server, and whether it has etcd inside: parsing /etc/rancher/k3s/config.yaml: it is not valid YAML; it has no data in ",
		},
		"drop-ins that cannot be read": {
			files{"/etc/rancher/k3s/config.yaml.d": loop, "/var/lib/rancher/k3s/server/token": "x"},
			"process 812, k3s server, and whether it has etcd inside: reading /etc/rancher/k3s/config.yaml.d: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := look(t, c.host)
			require.Empty(t, seen.Found)
			require.NotEmpty(t, seen.Unknown)
			require.Contains(t, seen.Unknown[0], c.unknown)
		})
	}
}
