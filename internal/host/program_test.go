package host_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is stopped tells where its data is by its unit and its settings alone.
func TestWhereAStoppedProgramKeepsItsData(t *testing.T) {
	for name, c := range map[string]struct {
		host files
		// found are places of what is found.
		found   []string
		unknown []string
	}{
		"RKE2 with its data where a variable says": {
			host: files{
				"/usr/local/lib/systemd/system/rke2-server.service": "[Service]\nEnvironmentFile=-/etc/default/%N\nExecStart=/usr/local/bin/rke2 server\n",
				"/etc/default/rke2-server":                          "RKE2_DATA_DIR=/srv/rke2\n",
				"/srv/rke2/server/db/etcd/member/wal":               "x",
			},
			found: []string{"data directory /srv/rke2/server/db/etcd (RKE2, systemd unit rke2-server.service)"},
		},
		"k3s with a configuration file of another name, by a shell": {
			host: files{
				"/etc/systemd/system/k3s-blue.service": "[Service]\nExecStart=/bin/sh -c 'exec /usr/local/bin/k3s server -c=/etc/k3s.yaml'\n",
				"/etc/k3s.yaml":                        "data-dir: /wrong\n",
				"/etc/k3s.yaml.d/10.YAML":              "d: /srv/k3s\n",
				"/etc/rancher/k3s/config.yaml":         "data-dir: /nobody/reads/this\n",
				"/srv/k3s/server/db/etcd/member/wal":   "x",
			},
			found: []string{"data directory /srv/k3s/server/db/etcd, with no server running on it"},
		},
		"k3s with a configuration file that a variable names": {
			host: files{
				"/etc/systemd/system/k3s.service":    "[Service]\nEnvironment=K3S_CONFIG_FILE=/etc/k3s.yaml\nExecStart=/usr/local/bin/k3s server --config /etc/other.yaml\n",
				"/etc/k3s.yaml":                      "data-dir: /srv/k3s\n",
				"/srv/k3s/server/db/etcd/member/wal": "x",
			},
			found: []string{"data directory /srv/k3s/server/db/etcd (k3s, systemd unit k3s.service)"},
		},
		"k3s with an argument for etcd": {
			host: files{
				"/etc/systemd/system/k3s.service":            "[Service]\nExecStart=/usr/local/bin/k3s server --etcd-arg=data-dir=/srv/etcd\n",
				"/var/lib/rancher/k3s/server/db/etcd/config": "name: n1\ndata-dir: /srv/etcd\n",
				"/srv/etcd/member/wal":                       "x",
			},
			found: []string{"data directory /srv/etcd (k3s, systemd unit k3s.service)"},
		},
		"k3s with a variable that nobody sets": {
			host: files{
				"/etc/systemd/system/k3s.service":                "[Service]\nExecStart=/usr/local/bin/k3s server --data-dir=${WHERE} --config=${WHAT}\n",
				"/var/lib/rancher/k3s/server/db/etcd/member/wal": "x",
			},
			found: []string{"data directory /var/lib/rancher/k3s/server/db/etcd (k3s, systemd unit k3s.service)"},
		},
		"k3s with settings on the network": {
			host:    files{"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server --config=https://config.example.com/k3s\n"},
			unknown: []string{"where systemd unit k3s.service has its data: k3s takes its settings from an address on the network"},
		},
		"k3s with a data directory by half its name": {
			host:    files{"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server --data-dir ~/k3s\n"},
			unknown: []string{"where systemd unit k3s.service has its data: k3s was told to keep its data in \"~/k3s\": name the directory by its whole path"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			look := at(t, layOut(t, c.host)).Look(t.Context())
			var places []string
			for _, s := range look.Found {
				places = append(places, s.Where)
				require.True(t, *s.HasData)
			}
			require.Equal(t, c.found, places)
			require.Len(t, look.Unknown, len(c.unknown), "%q", look.Unknown)
			for i, want := range c.unknown {
				require.Contains(t, look.Unknown[i], want)
			}
		})
	}
}
