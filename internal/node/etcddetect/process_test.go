package etcddetect_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// podCgroup returns the cgroup of a container in a pod with cgroups of systemd.
func podCgroup(class, uid string) string {
	slice := "kubepods-" + class
	container := "cri-containerd-" + hosttest.ContainerID + ".scope"
	return "/kubepods.slice/" + slice + ".slice/" + slice + "-pod" + uid + ".slice/" + container
}

func TestDetectProcess(t *testing.T) {
	const (
		peer   = "https://10.0.0.1:2380"
		static = "0123456789abcdef0123456789abcdef"
		plain  = "etcd process 812"
		// ownData is a data directory in the root directory of the process.
		ownData = "/proc/812/root/data"
	)
	withData := []string{"etcd", "--data-dir=/data"}
	data := hosttest.Files{"/var/lib/etcd/member/wal/0.wal": "x"}
	flags := []string{"etcd", "--name=n1", "--data-dir", "/var/lib/etcd", "--initial-advertise-peer-urls=" + peer}
	inContainer := hosttest.Files{"/containers/c1/data/member/wal/0.wal": "x"}
	for name, c := range map[string]struct {
		host    hosttest.Files
		process hosttest.Process
		source  evidence.Source
		where   string
		unit    string
		pod     bool
		// dir is the data directory below the root.
		dir      string
		config   func(*testing.T, evidence.Config)
		problems []string
	}{
		"flags": {
			host: data, process: hosttest.Process{Line: flags}, source: evidence.Process, where: plain, dir: "/var/lib/etcd",
			config: func(t *testing.T, c evidence.Config) {
				require.Equal(t, "n1", c.Name)
				require.Equal(t, []string{peer}, c.InitialPeerURLs)
				require.Equal(t, []string{"http://localhost:2379"}, c.ListenClientURLs, "etcd's default")
			},
		},
		"flags and variables": {
			host: data, source: evidence.Process, where: plain, dir: "/var/lib/etcd",
			process: hosttest.Process{Line: flags, Env: map[string]string{
				"ETCD_NAME": "other", "ETCD_LISTEN_CLIENT_URLS": "https://10.0.0.1:2379,https://127.0.0.1:2379",
			}},
			config: func(t *testing.T, c evidence.Config) {
				require.Equal(t, "n1", c.Name)
				require.Equal(t, []string{"https://10.0.0.1:2379", "https://127.0.0.1:2379"}, c.ListenClientURLs)
			},
		},
		"configuration file": {
			host: hosttest.Files{
				"/etc/etcd.yml":      "name: 0042\ndata-dir: /srv/etcd\nlisten-client-urls: https://10.0.0.9:2379\n",
				"/srv/etcd" + member: "x",
			},
			process: hosttest.Process{
				Line: append(flags, "--config-file=/etc/etcd.yml"),
				Env:  map[string]string{"ETCD_ADVERTISE_CLIENT_URLS": "http://10.0.0.8:1"},
			},
			source: evidence.Process, where: plain, dir: "/srv/etcd",
			config: func(t *testing.T, c evidence.Config) {
				require.Equal(t, "34", c.Name, "as YAML 1.1 and etcd read it")
				require.Equal(t, []string{"https://10.0.0.9:2379"}, c.ListenClientURLs)
				require.Equal(t, []string{"http://localhost:2379"}, c.AdvertiseClientURLs)
				require.Equal(t, "etcd.yml", filepath.Base(c.File))
			},
		},
		"configuration file in the working directory": {
			host:    hosttest.Files{"/var/lib/conf/etcd.yml": "name: n3\ndata-dir: /srv/etcd\n", "/srv/etcd" + member: "x"},
			process: hosttest.Process{Line: append(flags, "--config-file", "conf/etcd.yml")},
			source:  evidence.Process, where: plain, dir: "/srv/etcd",
			config: func(t *testing.T, c evidence.Config) {
				require.Equal(t, "n3", c.Name)
				require.Equal(t, "etcd.yml", filepath.Base(c.File))
			},
		},
		"configuration file in a variable": {
			host:    hosttest.Files{"/etc/etcd.yml": "name: n2\ndata-dir: /srv/etcd\n", "/srv/etcd" + member: "x"},
			process: hosttest.Process{Line: flags, Env: map[string]string{"ETCD_CONFIG_FILE": "/etc/etcd.yml"}},
			source:  evidence.Process, where: plain, dir: "/srv/etcd",
			config: func(t *testing.T, c evidence.Config) { require.Equal(t, "n2", c.Name) },
		},
		"default data directory": {
			host: hosttest.Files{"/var/lib/n9.etcd" + member: "x"}, dir: "/var/lib/n9.etcd",
			source: evidence.Process, where: plain,
			process: hosttest.Process{Line: []string{"./etcd", "-name", "n9"}},
		},
		"unit": {
			host: data, process: hosttest.Process{Line: flags, Cgroup: "/system.slice/etcd.service"},
			source: evidence.SystemdUnit, where: "systemd unit etcd.service", unit: "etcd.service", dir: "/var/lib/etcd",
		},
		"container": {
			host: inContainer, source: evidence.Container, where: "container, process 812", dir: ownData,
			process: hosttest.Process{Line: withData, Root: "/containers/c1", Cgroup: "/docker/" + hosttest.ContainerID},
		},
		"container with its own data, of a unit that does not name it": {
			host: hosttest.Files{
				"/containers/c1/data/member/wal/0.wal": "x",
				"/etc/systemd/system/etcd-member.service": service("EnvironmentFile=/etc/etcd/etcd.env",
					"ExecStart=/usr/bin/docker run --name etcd --env-file=/etc/etcd/etcd.env quay.io/coreos/etcd:v3.5.0"),
				"/etc/etcd/etcd.env": "ETCD_NAME=etcd1\nETCD_INITIAL_ADVERTISE_PEER_URLS=" + peer + "\n",
			},
			process: hosttest.Process{
				Line: []string{"etcd"}, Cgroup: "/docker/" + hosttest.ContainerID, Root: "/containers/c1",
				Env: map[string]string{"ETCD_NAME": "etcd1", "ETCD_DATA_DIR": "/data", "ETCD_INITIAL_ADVERTISE_PEER_URLS": peer},
			},
			source: evidence.Container, where: "container, process 812", dir: ownData,
		},
		"pod on the host's data": {
			host: data, source: evidence.Container, where: "container, process 812", pod: true, dir: "/var/lib/etcd",
			process: hosttest.Process{
				Line: flags, Cgroup: "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + hosttest.ContainerID + ".scope",
			},
		},
		"static pod by its UID": {
			host: inContainer, source: evidence.StaticPod, where: "static pod, process 812", pod: true, dir: ownData,
			process: hosttest.Process{Line: withData, Root: "/containers/c1", Cgroup: podCgroup("burstable", static)},
		},
		"invalid configuration file": {
			host:    hosttest.Files{"/etc/etcd.yml": "name: ["},
			process: hosttest.Process{Line: []string{"etcd", "--config-file", "/etc/etcd.yml"}},
			source:  evidence.Process, where: plain, problems: []string{"parsing the configuration file /etc/etcd.yml"},
		},
		"unreadable data directory": {
			host: hosttest.Files{"/var/lib/etcd": hosttest.Loop}, process: hosttest.Process{Line: flags},
			source: evidence.Process, where: plain, problems: []string{"the data directory /var/lib/etcd: "}, dir: "?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			hosttest.AddProcess(t, root, 812, c.process)
			findings := detect(t, root)
			if c.dir != "?" {
				require.Empty(t, findings.Unknown)
			}
			require.Len(t, findings.Found, 1)
			s := findings.Found[0]
			require.Equal(t, 812, s.PID)
			require.Equal(t, c.source, s.Source)
			require.Equal(t, c.where, s.Where)
			require.Equal(t, c.unit, s.Unit)
			require.Equal(t, c.pod, s.InCluster)
			require.Len(t, s.Problems, len(c.problems), "%q", s.Problems)
			for i, problem := range c.problems {
				require.Contains(t, s.Problems[i], problem)
			}
			if len(c.problems) == 0 {
				require.True(t, *s.HasData)
				require.Equal(t, filepath.Join(root, c.dir), s.Config.DataDir)
			} else {
				require.Nil(t, s.HasData)
			}
			if c.config != nil {
				c.config(t, s.Config)
			}
		})
	}
}

func TestDetectIgnoresOtherProcesses(t *testing.T) {
	process := func(comm, exe string, line ...string) hosttest.Process {
		return hosttest.Process{Comm: comm, Exe: exe, Line: line}
	}
	for name, p := range map[string]hosttest.Process{
		"gateway":         process("etcd", "/usr/local/bin/etcd", "/usr/local/bin/etcd", "gateway", "start"),
		"proxy":           process("etcd", "/usr/local/bin/etcd", "etcd", "grpc-proxy", "start"),
		"etcdctl":         process("etcdctl", "/usr/local/bin/etcdctl", "etcdctl", "endpoint", "health"),
		"shell":           process("etcd", "/usr/bin/bash", "/bin/bash", "/usr/local/bin/etcd"),
		"shell with -c":   process("bash", "/usr/bin/bash", "/bin/bash", "-c", "exec /usr/bin/etcd"),
		"docker run":      process("docker", "/usr/bin/docker", "/usr/bin/docker", "run", "quay.io/coreos/etcd:v3"),
		"ended process":   process("etcd", "/usr/local/bin/etcd"),
		"k3s with SQLite": process("k3s-server", "/var/lib/rancher/k3s/data/1/bin/k3s", "k3s", "server"),
		"moved k3s":       process("k3s-server", "/srv/k3s/data/1/bin/k3s", "k3s", "server"),
		"backup":          process("etcd-backup", "/usr/local/bin/etcd-backup", "etcd-backup"),
		"exporter":        process("etcd_exporter", "/usr/local/bin/etcd_exporter", "etcd_exporter"),
		"k3s agent":       process("k3s-agent", "/usr/local/bin/k3s", "k3s", "agent"),
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/var/lib/rancher/k3s/server/db/state.db": "x", "/srv/k3s/server/db/state.db": "x",
			})
			hosttest.AddProcess(t, root, 812, p)
			if p.Line == nil {
				hosttest.Remove(t, root, "/proc/812/cmdline")
				// 813 has vanished.
				hosttest.Add(t, root, hosttest.Files{"/proc/812/cmdline": "", "/proc/813": "-> 999999"})
			}
			findings := detect(t, root)
			require.Empty(t, findings.Unknown)
			require.Empty(t, findings.Found)
		})
	}
}

// makeUnreadable replaces a file by a directory, which is unreadable for root too.
func makeUnreadable(t *testing.T, root, path string) {
	t.Helper()
	hosttest.Remove(t, root, path)
	hosttest.Add(t, root, hosttest.Files{path + "/file": ""})
}

func TestDetectWithoutEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		cgroup string
		host   hosttest.Files
		dir    string
	}{
		"with a unit": {cgroup: "/system.slice/etcd.service", dir: "/srv/etcd", host: hosttest.Files{
			unitFile:        service("EnvironmentFile=-/etc/etcd.env", "ExecStart=/usr/local/bin/etcd"),
			"/etc/etcd.env": "ETCD_NAME=etcd1\nETCD_DATA_DIR=/srv/etcd\n", "/srv/etcd" + member: "x",
		}},
		"without a unit": {cgroup: "/"},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd"}, Cgroup: c.cgroup})
			makeUnreadable(t, root, "/proc/812/environ")
			found := detect(t, root).Found
			require.Len(t, found, 1)
			require.Contains(t, found[0].Problems[0], "the environment of process 812: ")
			if c.dir == "" {
				require.Nil(t, found[0].HasData)
				require.Equal(t, evidence.Config{}, found[0].Config, "no guesses")
				return
			}
			require.True(t, *found[0].HasData)
			require.Equal(t, filepath.Join(root, c.dir), found[0].Config.DataDir)
		})
	}
}

// TestDetectChroot: the kernel shows the working directory of a process with another root directory
// as a path of the host.
func TestDetectChroot(t *testing.T) {
	for name, workDir := range map[string]string{"below the root": "/srv/jail/etc", "the root": "/srv/jail"} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				workDir + "/etcd.yml": "name: n1\ndata-dir: data\n", workDir + "/data" + member: "x",
			})
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: []string{"etcd", "--config-file=etcd.yml"}, Root: "/srv/jail", WorkDir: filepath.Join(root, workDir),
			})
			server := detectOne(t, root)
			require.Empty(t, server.Problems)
			require.Equal(t, "n1", server.Config.Name)
			require.True(t, *server.HasData)
		})
	}
	root := hosttest.New(t, hosttest.Files{"/srv/jail/2/etcd.yml": "name: n1\n", "/srv/jail2/a": ""})
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd", "--config-file=etcd.yml"}, Root: "/srv/jail", WorkDir: filepath.Join(root, "/srv/jail2"),
	})
	require.NotEmpty(t, detectOne(t, root).Problems, "the directory is beside the root, not in /2 below it")
}

func TestDetectUnreadableProcess(t *testing.T) {
	root := hosttest.New(t, nil)
	hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd"}})
	makeUnreadable(t, root, "/proc/812/cmdline")
	findings := detect(t, root)
	require.Empty(t, findings.Found)
	require.Len(t, findings.Unknown, 1)
	require.Contains(t, findings.Unknown[0], "process 812: ")
}
