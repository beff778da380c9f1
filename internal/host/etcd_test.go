package host_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// files lays out a host: content by path, links where the content begins with "-> ".
type files map[string]string

const bootID = "8a5cd4d8-2c49-4f5e-9d4e-6a1b35a3b9f1"

// layOut makes a host with the given files, and a process table of its own without processes.
func layOut(t *testing.T, content files) string {
	t.Helper()
	root := t.TempDir()
	add(t, root, files{"/proc/sys/kernel/random/boot_id": bootID + "\n"})
	add(t, root, content)
	return root
}

func add(t *testing.T, root string, content files) {
	t.Helper()
	for path, text := range content {
		at := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			if text == loop {
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

// loop makes a link to itself: a kind of unreadable file that root cannot read either.
const loop = "-> itself"

func at(t *testing.T, root string) *host.Host {
	t.Helper()
	h, err := host.New(host.Options{Root: root})
	require.NoError(t, err)
	return h
}

func TestARunningMemberOfKubespray(t *testing.T) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true, BootID: func(int) string { return bootID }})
	member := etcd.Member(1)
	h := at(t, member.Root)

	found, unknown := h.Etcd(t.Context())
	require.Empty(t, unknown)
	require.Len(t, found, 1, "unit, process and data directory are one server")
	s := found[0]
	require.Equal(t, protect.SystemdUnit, s.Source)
	require.Equal(t, "etcd.service", s.Unit)
	require.Equal(t, "systemd unit etcd.service", s.Where)
	require.Equal(t, member.PID(), s.PID)
	require.False(t, s.InCluster)
	require.Empty(t, s.Problems)
	require.Equal(t, protect.Config{
		Name: "etcd1", DataDir: member.DataDir(),
		ListenClientURLs: []string{member.ClientURL}, AdvertiseClientURLs: []string{member.ClientURL},
		InitialPeerURLs: []string{member.PeerURL}, File: filepath.Join(member.Root, "etc/etcd.env"),
	}, s.Config)
	require.True(t, *s.HasData)
	require.Equal(t, protect.Credential{
		CA: member.Files.CA, Cert: member.Files.AdminCert, Key: member.Files.AdminKey,
		Origin: "ETCDCTL_CERT in /etc/etcd.env",
	}, s.Credentials[0])
	require.Equal(t, protect.Credential{
		CA: member.Files.CA, Cert: member.Files.Cert, Key: member.Files.Key, Origin: "the server's own certificate",
	}, s.Credentials[len(s.Credentials)-1])

	require.NoError(t, member.Stop(t.Context()))
	found, unknown = h.Etcd(t.Context())
	require.Empty(t, unknown)
	require.Len(t, found, 1)
	s = found[0]
	require.Equal(t, protect.DataDirectory, s.Source, "a stopped member is still a voter")
	require.Equal(t, "data directory /var/lib/etcd of systemd unit etcd.service, which does not run", s.Where)
	require.Zero(t, s.PID)
	require.Equal(t, "etcd1", s.Config.Name)
	require.Equal(t, member.DataDir(), s.Config.DataDir)
	require.Equal(t, []string{member.PeerURL}, s.Config.InitialPeerURLs)
	require.True(t, *s.HasData)
}

func TestWhatAHostWithoutAProcessShows(t *testing.T) {
	const (
		unitFile = "[Service]\nEnvironmentFile=-/etc/etcd.env\nExecStart=/usr/local/bin/etcd\n"
		envFile  = "ETCD_NAME=etcd1\nETCD_DATA_DIR=/var/lib/etcd\nETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.0.0.1:2380\n"
		pod      = "spec:\n  containers:\n  - command: [etcd, --name=n1, --data-dir=/var/lib/etcd]\n"
	)
	for name, c := range map[string]struct {
		host files
		// found are source and place of what is found.
		found   []string
		unknown []string
	}{
		"nothing": {},
		"certificates of a worker": {
			host: files{"/etc/ssl/etcd/ssl/ca.pem": "x", "/etc/ssl/etcd/ssl/node-w1.pem": "x", "/etc/ssl/etcd/ssl/node-w1-key.pem": "x"},
		},
		"unit without data": {
			host: files{"/etc/systemd/system/etcd.service": unitFile, "/etc/etcd.env": envFile},
		},
		"unit with data": {
			host: files{
				"/etc/systemd/system/etcd.service": unitFile, "/etc/etcd.env": envFile,
				"/var/lib/etcd/member/snap/db": "x", "/var/lib/etcd/member/wal/0.wal": "x",
			},
			found: []string{"DataDirectory: data directory /var/lib/etcd of systemd unit etcd.service, which does not run"},
		},
		"data directory alone": {
			host:  files{"/var/lib/etcd-events/member/wal/0.wal": "x"},
			found: []string{"DataDirectory: data directory /var/lib/etcd-events, with no server running on it"},
		},
		"data on a disk of its own behind an absolute link": {
			host:  files{"/var/lib/etcd": "-> /mnt/disk/etcd", "/mnt/disk/etcd/member/snap/db": "x"},
			found: []string{"DataDirectory: data directory /var/lib/etcd, with no server running on it"},
		},
		"k3s that was stopped": {
			host: files{
				"/etc/systemd/system/k3s.service":                "[Service]\nExecStart=/usr/local/bin/k3s server\n",
				"/var/lib/rancher/k3s/server/db/etcd/member/wal": "x",
			},
			found: []string{"DataDirectory: data directory /var/lib/rancher/k3s/server/db/etcd (k3s, systemd unit k3s.service)"},
		},
		"data in a place that only a drop-in names": {
			host: files{
				"/usr/lib/systemd/system/etcd.service":           "[Service]\nExecStart=/bin/bash -c \"GOMAXPROCS=$(nproc) /usr/bin/etcd --name=\\\"${ETCD_NAME}\\\" --data-dir=\\\"${ETCD_DATA_DIR}\\\"\"\n",
				"/etc/systemd/system/etcd.service.d/10-dir.conf": "[Service]\nEnvironment=ETCD_NAME=%m \"ETCD_DATA_DIR=/data/etcd one\"\n",
				"/etc/machine-id":               "0123\n",
				"/data/etcd one/member/snap/db": "x",
			},
			found: []string{"DataDirectory: data directory /data/etcd one of systemd unit etcd.service, which does not run"},
		},
		"masked unit with data": {
			host: files{
				"/etc/systemd/system/etcd.service":     "-> /dev/null",
				"/usr/lib/systemd/system/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir /srv/etcd\n",
				"/srv/etcd/member/snap/db":             "x",
			},
			found: []string{"DataDirectory: data directory /srv/etcd of systemd unit etcd.service, which does not run"},
		},
		"two units with one data directory": {
			host: files{
				"/etc/systemd/system/etcd.service":  unitFile,
				"/etc/systemd/system/etcd2.service": "-> /etc/systemd/system/etcd.service",
				"/etc/etcd.env":                     envFile, "/var/lib/etcd/member/snap/db": "x",
			},
			found: []string{"DataDirectory: data directory /var/lib/etcd of systemd unit etcd.service, which does not run"},
		},
		"a backup unit and a gateway": {
			host: files{
				"/etc/systemd/system/etcd-backup.service":  "[Service]\nEnvironmentFile=/etc/etcd.env\nExecStart=/usr/local/bin/etcdctl snapshot save /var/lib/etcd\n",
				"/etc/systemd/system/etcd-gateway.service": "[Service]\nExecStart=/usr/local/bin/etcd gateway start --endpoints=10.0.0.1:2379\n",
				"/etc/etcd.env": envFile,
			},
		},
		"static pod that does not run": {
			host:  files{"/etc/kubernetes/manifests/etcd.yaml": pod, "/var/lib/etcd/member/snap/db": "x"},
			found: []string{"StaticPod: data directory /var/lib/etcd of static pod etcd.yaml, which does not run"},
		},
		"half-written static pod": {
			host:    files{"/etc/kubernetes/manifests/etcd.yaml": "spec:\n  containers:\n  - comm"},
			unknown: []string{"the static pod /etc/kubernetes/manifests/etcd.yaml: "},
		},
		"unreadable data directory": {
			host:    files{"/var/lib/etcd": loop},
			unknown: []string{"the data directory /var/lib/etcd: following"},
		},
		"unreadable member": {
			host:    files{"/var/lib/etcd/member": loop},
			unknown: []string{"the data directory /var/lib/etcd: following"},
		},
		"unreadable environment file": {
			host:    files{"/etc/systemd/system/etcd.service": unitFile, "/etc/etcd.env/a": "a directory"},
			unknown: []string{"systemd unit etcd.service: environment file /etc/etcd.env: not a regular file"},
		},
		"unreadable unit": {
			host:    files{"/etc/systemd/system/etcd.service": loop},
			unknown: []string{"systemd unit etcd.service: unit file /etc/systemd/system/etcd.service: "},
		},
		"unreadable configuration file": {
			host: files{
				"/etc/systemd/system/etcd.service": "[Service]\nExecStart=/usr/bin/etcd --config-file=/etc/etcd.yml\n",
				"/etc/etcd.yml":                    "name: [",
			},
			unknown: []string{"systemd unit etcd.service: parsing the configuration file /etc/etcd.yml: "},
		},
		"unreadable unit directory": {
			host:    files{"/etc/systemd/system": loop},
			unknown: []string{"the unit files: following \"/etc/systemd/system\": "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, unknown := at(t, layOut(t, c.host)).Etcd(t.Context())
			var places []string
			for _, s := range found {
				places = append(places, fmt.Sprintf("%s: %s", s.Source, s.Where))
				require.True(t, *s.HasData)
				require.DirExists(t, filepath.Join(s.Config.DataDir, "member"), "the path can be opened")
			}
			require.Equal(t, c.found, places)
			require.Len(t, unknown, len(c.unknown), "%q", unknown)
			for i, want := range c.unknown {
				require.Contains(t, unknown[i], want)
			}
		})
	}
}

func TestAProcessTableThatIsNotThere(t *testing.T) {
	for name, root := range map[string]string{
		"none":  t.TempDir(),
		"empty": func() string { d := t.TempDir(); add(t, d, files{"/proc/x": ""}); return d }(),
	} {
		t.Run(name, func(t *testing.T) {
			found, unknown := at(t, root).Etcd(context.WithoutCancel(t.Context()))
			require.Empty(t, found)
			require.Len(t, unknown, 1)
			require.Contains(t, unknown[0], "the process table")
		})
	}
}

func truncate(t *testing.T, root, path string) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(root, path), 0))
}

// replaceByDirectory makes a file unreadable, also for root.
func replaceByDirectory(t *testing.T, root, path string) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(root, path)))
	require.NoError(t, os.Mkdir(filepath.Join(root, path), 0o755))
}

func TestTwoServersOfTwoClustersOnOneHost(t *testing.T) {
	root := layOut(t, files{"/var/lib/etcd/member/snap/db": "x", "/var/lib/etcd-events/member/snap/db": "x"})
	env := func(name, dir string) map[string]string {
		return map[string]string{"ETCD_NAME": name, "ETCD_DATA_DIR": dir}
	}
	process(t, root, 812, shown{line: []string{"etcd"}, env: env("etcd1", "/var/lib/etcd"), cgroup: "/system.slice/etcd.service"})
	process(t, root, 813, shown{line: []string{"etcd"}, env: env("etcd1-events", "/var/lib/etcd-events"), cgroup: "/system.slice/etcd-events.service"})
	found, unknown := at(t, root).Etcd(t.Context())
	require.Empty(t, unknown)
	units := map[string]string{}
	for _, s := range found {
		units[s.Unit] = s.Config.Name
	}
	require.Equal(t, map[string]string{"etcd.service": "etcd1", "etcd-events.service": "etcd1-events"}, units)
}
