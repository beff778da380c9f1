package etcddetect_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/node/etcddetect"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	unitFile = "/etc/systemd/system/etcd.service"
	// member is a file in the data directory of a member.
	member = "/member/snap/db"
	opaque = " may start etcd, and does not tell where its data is; set its data directory to an absolute path of the host"
)

// detect scans a host.
func detect(t *testing.T, root string) evidence.Scan {
	t.Helper()
	return etcddetect.New(hostfs.Root(root), nil).Detect()
}

// detectOne scans a host with one server and nothing unknown.
func detectOne(t *testing.T, root string) evidence.Server {
	t.Helper()
	findings := detect(t, root)
	require.Empty(t, findings.Unknown)
	require.Len(t, findings.Found, 1, "%q", findings.Notes)
	return findings.Found[0].Server
}

// service returns a unit file.
func service(lines ...string) string { return "[Service]\n" + strings.Join(lines, "\n") + "\n" }

// A stoppedCase is a host without running servers.
type stoppedCase struct {
	host hosttest.Files
	// where are the places of the servers, unknown parts of what is unknown.
	where, unknown []string
}

func requireStopped(t *testing.T, c stoppedCase) {
	t.Helper()
	findings := detect(t, hosttest.New(t, c.host))
	var where []string
	for _, s := range findings.Found {
		where = append(where, s.Where)
		source := evidence.DataDirectory
		if strings.Contains(s.Where, "static pod") {
			source = evidence.StaticPod
		}
		require.Equal(t, source, s.Source)
		require.True(t, *s.HasData)
		require.DirExists(t, filepath.Join(s.Config.DataDir, "member"), "the path can be opened")
	}
	require.Equal(t, c.where, where, "%q", findings.Notes)
	require.Len(t, findings.Unknown, len(c.unknown), "%q", findings.Unknown)
	for i, want := range c.unknown {
		require.Contains(t, findings.Unknown[i], want)
	}
}

func TestDetectKubespray(t *testing.T) {
	etcd := etcd.New(t, etcd.Options{TLS: true, BootID: func(int) string { return hosttest.BootID }})
	member := etcd.Member(1)

	s := detectOne(t, member.Root)
	require.Equal(t, evidence.SystemdUnit, s.Source)
	require.Equal(t, "etcd.service", s.Unit)
	require.Equal(t, "systemd unit etcd.service", s.Where)
	require.Equal(t, member.PID(), s.PID)
	require.False(t, s.InCluster)
	require.Empty(t, s.Problems)
	require.Equal(t, evidence.Config{
		Name: "etcd1", DataDir: member.DataDir(),
		ListenClientURLs: []string{member.ClientURL}, AdvertiseClientURLs: []string{member.ClientURL},
		InitialPeerURLs: []string{member.PeerURL}, File: filepath.Join(member.Root, "etc/etcd.env"),
	}, s.Config)
	require.True(t, *s.HasData)
	require.Equal(t, v1alpha1.MemberID(member.HexID()), s.Stored.Member)
	require.Equal(t, evidence.Credential{
		CA: member.Files.CA, Cert: member.Files.AdminCert, Key: member.Files.AdminKey,
		Origin: "client certificate admin-etcd-1.pem",
	}, s.Credentials[0])
	require.Equal(t, evidence.Credential{
		CA: member.Files.CA, Cert: member.Files.Cert, Key: member.Files.Key, Origin: "the server's own certificate",
	}, s.Credentials[len(s.Credentials)-1])

	stored := *s.Stored
	require.NoError(t, member.Stop(t.Context()))
	s = detectOne(t, member.Root)
	require.Equal(t, stored, *s.Stored)
	require.Equal(t, evidence.DataDirectory, s.Source, "a stopped member is still a voter")
	require.Equal(t, "data directory /var/lib/etcd of systemd unit etcd.service, with no server running on it", s.Where)
	require.Zero(t, s.PID)
	require.Equal(t, "etcd1", s.Config.Name)
	require.Equal(t, member.DataDir(), s.Config.DataDir)
	require.Equal(t, []string{member.PeerURL}, s.Config.InitialPeerURLs)
	require.True(t, *s.HasData)
}

func TestDetectStopped(t *testing.T) {
	const (
		envFile = "ETCD_NAME=etcd1\nETCD_DATA_DIR=/var/lib/etcd\nETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.0.0.1:2380\n"
		podFile = "/etc/kubernetes/manifests/etcd.yaml"
		alone   = ", with no server running on it"
		ofUnit  = " of systemd unit etcd.service" + alone
	)
	unit := service("EnvironmentFile=-/etc/etcd.env", "ExecStart=/usr/local/bin/etcd")
	for name, c := range map[string]stoppedCase{
		"empty host": {},
		"worker's certificates": {host: hosttest.Files{
			"/etc/ssl/etcd/ssl/ca.pem": "x", "/etc/ssl/etcd/ssl/node-w1.pem": "x", "/etc/ssl/etcd/ssl/node-w1-key.pem": "x",
		}},
		"data directory alone": {
			host:  hosttest.Files{"/var/lib/etcd-events/member/wal/0.wal": "x"},
			where: []string{"data directory /var/lib/etcd-events" + alone},
		},
		"absolute link to a disk": {
			host:  hosttest.Files{"/var/lib/etcd": "-> /mnt/disk/etcd", "/mnt/disk/etcd" + member: "x"},
			where: []string{"data directory /var/lib/etcd" + alone},
		},
		"data directory in a drop-in": {
			host: hosttest.Files{
				"/usr/lib/systemd/system/etcd.service": service(`ExecStart=/bin/bash -c "GOMAXPROCS=$(nproc) /usr/bin/etcd ` +
					`--name=\"${ETCD_NAME}\" --data-dir=\"${ETCD_DATA_DIR}\""`),
				unitFile + ".d/10-dir.conf": service(`Environment=ETCD_NAME=%m "ETCD_DATA_DIR=/data/etcd one"`),
				"/etc/machine-id":           "0123\n", "/data/etcd one" + member: "x",
			},
			where: []string{"data directory /data/etcd one" + ofUnit},
		},
		"masked unit": {
			host: hosttest.Files{
				unitFile:                               "-> /dev/null",
				"/usr/lib/systemd/system/etcd.service": service("ExecStart=/usr/bin/etcd --data-dir /srv/etcd"),
				"/srv/etcd" + member:                   "x",
			},
			where: []string{"data directory /srv/etcd" + ofUnit},
		},
		"two units of one server": {
			host: hosttest.Files{
				unitFile: unit, "/etc/systemd/system/etcd2.service": "-> " + unitFile, "/etc/etcd.env": envFile,
				"/var/lib/etcd" + member: "x",
			},
			where: []string{"data directory /var/lib/etcd" + ofUnit},
		},
		"restored to another directory, old one left": {
			host: hosttest.Files{
				unitFile:                          service("ExecStart=/usr/bin/etcd --data-dir=/var/lib/etcd-restored"),
				"/var/lib/etcd" + member:          "x",
				"/var/lib/etcd-restored" + member: "x",
			},
			where: []string{
				"data directory /var/lib/etcd-restored" + ofUnit, "data directory /var/lib/etcd, with no server running on it",
			},
		},
		"unit that does not show etcd": {
			host:  hosttest.Files{unitFile: service("ExecStart=/opt/start"), "/var/lib/etcd" + member: "x"},
			where: []string{"data directory /var/lib/etcd of systemd unit etcd.service, with no server running on it"},
		},
		"static pod with a shell": {
			host: hosttest.Files{
				podFile: "spec:\n  containers:\n  - command:\n    - sh\n    - -c\n" +
					"    - exec etcd --data-dir=/var/lib/etcd 2>>/var/log/etcd\n",
				"/var/lib/etcd" + member: "x",
			},
			where: []string{"data directory /var/lib/etcd of static pod etcd.yaml, with no server running on it"},
		},
		"unreadable data directory": {
			host:    hosttest.Files{"/var/lib/etcd": hosttest.Loop},
			unknown: []string{"the data directory /var/lib/etcd: too many levels"},
		},
		"unreadable member": {
			host:    hosttest.Files{"/var/lib/etcd/member": hosttest.Loop},
			unknown: []string{"the data directory /var/lib/etcd: too many levels"},
		},
		"unreadable environment file": {
			host:    hosttest.Files{unitFile: unit, "/etc/etcd.env/a": "a directory"},
			unknown: []string{"systemd unit etcd.service" + opaque},
		},
		"script with etcd's variables": {
			host: hosttest.Files{
				unitFile:        service("EnvironmentFile=/etc/etcd.env", "ExecStart=/opt/etcd/start.sh"),
				"/etc/etcd.env": envFile, "/var/lib/etcd" + member: "x",
			},
			where: []string{"data directory /var/lib/etcd" + ofUnit},
		},
		"script with unreadable data": {
			host: hosttest.Files{
				unitFile:     service("Environment=ETCD_DATA_DIR=/data/etcd", "ExecStart=/opt/etcd/start.sh"),
				"/data/etcd": hosttest.Loop,
			},
			unknown: []string{"systemd unit etcd.service (/data/etcd: too many levels of symbolic links)" + opaque},
		},
		"unreadable unit": {
			host:    hosttest.Files{unitFile: hosttest.Loop},
			unknown: []string{"systemd unit etcd.service (" + unitFile + ": too many levels of symbolic links)" + opaque},
		},
		"invalid configuration file": {
			host: hosttest.Files{
				unitFile: service("ExecStart=/usr/bin/etcd --config-file=/etc/etcd.yml"), "/etc/etcd.yml": "name: [",
			},
			unknown: []string{"systemd unit etcd.service (parsing the configuration file /etc/etcd.yml: "},
		},
		"disk of a layout that is not mounted": {
			host: hosttest.Files{
				"/etc/systemd/system/k3s.service":                service("ExecStart=/usr/local/bin/k3s server"),
				"/run/systemd/generator/var-lib-rancher.mount":   "[Mount]\n",
				"/run/systemd/generator/-.mount":                 "[Mount]\n",
				"/run/systemd/generator/srv-backup.mount":        "[Mount]\n",
				"/etc/systemd/system/var-lib-etcd.mount":         "-> /dev/null",
				"/var/lib/rancher/k3s/server/db/etcd/lost+found": "x",
			},
			unknown: []string{
				"the data directory /var/lib/rancher/k3s/server/db/etcd: nothing is mounted on /var/lib/rancher",
				"the data directory /var/lib/rancher/rke2/server/db/etcd: nothing is mounted on /var/lib/rancher",
			},
		},
		"disk of OpenRC that is not mounted": {
			host: hosttest.Files{
				"/etc/init.d/etcd": "command=/usr/bin/etcd\ncommand_args=--data-dir=/srv/etcd/x\n",
				"/etc/fstab":       "# UUID=x /data xfs\nUUID=x\t/var/lib/etcd ext4 nofail 0 2\n/dev/sdb1 /srv xfs\nx none swap\n",
			},
			unknown: []string{
				"service /etc/init.d/etcd (nothing is mounted on /srv)" + opaque,
				"the data directory /var/lib/etcd: nothing is mounted on /var/lib/etcd",
			},
		},
		"unit on a disk that is not mounted": {
			host:    hosttest.Files{unitFile: "-> /opt/etcd/etcd.service", "/etc/fstab": "/dev/sdb1 /opt ext4 nofail 0 2\n"},
			unknown: []string{"systemd unit etcd.service (nothing is mounted on /opt)" + opaque},
		},
		"link in /etc/fstab": {
			host: hosttest.Files{
				"/var/lib/etcd": "-> ../../srv/etcd", "/srv/etcd/x": "x", "/etc/fstab": "UUID=x /var/lib/etcd ext4\n",
			},
		},
		"link of a layout to a disk that is not mounted": {
			host: hosttest.Files{
				"/var/lib/etcd": "-> ../../srv/disk/etcd", "/run/systemd/generator/srv-disk.mount": "[Mount]\n",
			},
			unknown: []string{"the data directory /var/lib/etcd: nothing is mounted on /srv/disk"},
		},
		"unreadable instances": {
			host: hosttest.Files{
				"/etc/systemd/system/etcd@.service": service("ExecStart=/usr/bin/etcd --data-dir=/data/%i"), "/data": hosttest.Loop,
			},
			unknown: []string{"systemd unit etcd@.service (/data/*: "},
		},
		"unreadable links of units": {
			host: hosttest.Files{
				"/etc/systemd/system/etcd@.service":           service("ExecStart=/usr/bin/etcd --data-dir=/data/%i"),
				"/etc/systemd/system/multi-user.target.wants": hosttest.Loop,
			},
			unknown: []string{"the unit files: "},
		},
		"unreadable unit directory": {
			host:    hosttest.Files{"/etc/systemd/system": hosttest.Loop},
			unknown: []string{"the unit files: listing /etc/systemd/system: too many levels"},
		},
	} {
		t.Run(name, func(t *testing.T) { requireStopped(t, c) })
	}
}

func TestDetectWithoutProcessTable(t *testing.T) {
	empty := t.TempDir()
	hosttest.Add(t, empty, hosttest.Files{"/proc/x": ""})
	for name, root := range map[string]string{"none": t.TempDir(), "empty": empty} {
		t.Run(name, func(t *testing.T) {
			findings := detect(t, root)
			require.Empty(t, findings.Found)
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], "the process table")
		})
	}
}

func TestDetectTwoServers(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/var/lib/etcd" + member: "x", "/var/lib/etcd-events" + member: "x"})
	for pid, name := range map[int]string{812: "etcd", 813: "etcd-events"} {
		env := map[string]string{"ETCD_NAME": name + "1", "ETCD_DATA_DIR": "/var/lib/" + name}
		cgroup := "/system.slice/" + name + ".service"
		hosttest.AddProcess(t, root, pid, hosttest.Process{Line: []string{"etcd"}, Env: env, Cgroup: cgroup})
	}
	findings := detect(t, root)
	require.Empty(t, findings.Unknown)
	names := map[string]string{}
	for _, s := range findings.Found {
		names[s.Unit] = s.Config.Name
	}
	require.Equal(t, map[string]string{"etcd.service": "etcd1", "etcd-events.service": "etcd-events1"}, names)
}

// A stopped container leaves its data in a place that no layout names. Its member is still a
// voter.
func TestDetectStoppedContainer(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/srv/mine" + member: "x", "/srv/pod" + member: "x"})
	d := etcddetect.New(hostfs.Root(root), nil)
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd", "--data-dir=/srv/mine"}, Cgroup: "/docker/" + hosttest.ContainerID,
	})
	hosttest.AddProcess(t, root, 813, hosttest.Process{
		Line: []string{"etcd", "--data-dir=/srv/pod"}, Cgroup: "/kubepods/burstable/pod1/" + hosttest.ContainerID,
	})
	require.Len(t, d.Detect().Found, 2)
	hosttest.Remove(t, root, "/proc/812")
	hosttest.Remove(t, root, "/proc/813")
	findings := d.Detect()
	require.Empty(t, findings.Unknown)
	require.Len(t, findings.Found, 1, "Kubernetes cleans up what a pod leaves")
	require.Equal(t, evidence.DataDirectory, findings.Found[0].Source)
	require.Equal(t, "data directory /srv/mine, with no server running on it", findings.Found[0].Where)

	hosttest.Remove(t, root, "/srv/mine/member")
	require.Empty(t, d.Detect().Found, "without the data")
}
