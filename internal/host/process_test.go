package host_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// shown is a process as a process table shows it. Containers, pods and foreign hosts cannot be had in a test; all that
// is read of them are these files.
type shown struct {
	comm, exe, cgroup string
	line              []string
	env               map[string]string
	// root is the process's root directory on the host.
	root string
}

// process puts a process into the host's process table.
func process(t *testing.T, root string, pid int, p shown) {
	t.Helper()
	var env []string
	for name, value := range p.env {
		env = append(env, name+"="+value+"\x00")
	}
	if p.comm == "" {
		p.comm = "etcd"
	}
	if p.exe == "" {
		p.exe = "/usr/local/bin/etcd"
	}
	if p.cgroup == "" {
		p.cgroup = "/"
	}
	add(t, root, files{
		fmt.Sprintf("/proc/%d/comm", pid):    p.comm + "\n",
		fmt.Sprintf("/proc/%d/cmdline", pid): strings.Join(p.line, "\x00") + "\x00",
		fmt.Sprintf("/proc/%d/exe", pid):     "-> " + p.exe,
		fmt.Sprintf("/proc/%d/cwd", pid):     "-> /var/lib",
		fmt.Sprintf("/proc/%d/root", pid):    "-> " + filepath.Join(root, p.root),
		fmt.Sprintf("/proc/%d/cgroup", pid):  "0::" + p.cgroup + "\n",
		fmt.Sprintf("/proc/%d/environ", pid): strings.Join(env, ""),
	})
}

// podID is the UID of a pod of the API server's, as systemd's names of groups have it.
const podID = "12345678_1234_1234_1234_123456789abc"

const containerID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestAServerByWhatItsProcessShows(t *testing.T) {
	data := files{"/var/lib/etcd/member/wal/0.wal": "x"}
	flags := []string{"etcd", "--name=n1", "--data-dir", "/var/lib/etcd", "--initial-advertise-peer-urls=https://10.0.0.1:2380"}
	for name, c := range map[string]struct {
		host    files
		process shown
		source  protect.Source
		where   string
		unit    string
		pod     bool
		// dir is the data directory that is found, below the root.
		dir      string
		config   func(*testing.T, protect.Config)
		problems []string
	}{
		"flags": {
			host: data, process: shown{line: flags}, source: protect.Process, where: "etcd process 812", dir: "/var/lib/etcd",
			config: func(t *testing.T, c protect.Config) {
				require.Equal(t, "n1", c.Name)
				require.Equal(t, []string{"https://10.0.0.1:2380"}, c.InitialPeerURLs)
				require.Equal(t, []string{"http://localhost:2379"}, c.ListenClientURLs, "etcd's default")
			},
		},
		"flags win over variables": {
			host: data, source: protect.Process, where: "etcd process 812", dir: "/var/lib/etcd",
			process: shown{line: flags, env: map[string]string{"ETCD_NAME": "other", "ETCD_LISTEN_CLIENT_URLS": "https://10.0.0.1:2379,https://127.0.0.1:2379"}},
			config: func(t *testing.T, c protect.Config) {
				require.Equal(t, "n1", c.Name)
				require.Equal(t, []string{"https://10.0.0.1:2379", "https://127.0.0.1:2379"}, c.ListenClientURLs)
			},
		},
		"a configuration file silences both": {
			host: files{
				"/etc/etcd.yml":            "name: 0042\ndata-dir: /srv/etcd\nlisten-client-urls: https://10.0.0.9:2379\n",
				"/srv/etcd/member/snap/db": "x",
			},
			process: shown{line: append(flags, "--config-file=/etc/etcd.yml"), env: map[string]string{"ETCD_ADVERTISE_CLIENT_URLS": "http://10.0.0.8:1"}},
			source:  protect.Process, where: "etcd process 812", dir: "/srv/etcd",
			config: func(t *testing.T, c protect.Config) {
				require.Equal(t, "34", c.Name, "as YAML 1.1 reads it, and so etcd")
				require.Equal(t, []string{"https://10.0.0.9:2379"}, c.ListenClientURLs)
				require.Equal(t, []string{"http://localhost:2379"}, c.AdvertiseClientURLs)
				require.Equal(t, "etcd.yml", filepath.Base(c.File))
			},
		},
		"and so does one that a variable names": {
			host:    files{"/etc/etcd.yml": "name: n2\ndata-dir: /srv/etcd\n", "/srv/etcd/member/snap/db": "x"},
			process: shown{line: flags, env: map[string]string{"ETCD_CONFIG_FILE": "/etc/etcd.yml"}},
			source:  protect.Process, where: "etcd process 812", dir: "/srv/etcd",
			config: func(t *testing.T, c protect.Config) { require.Equal(t, "n2", c.Name) },
		},
		"the default data directory": {
			host: files{"/var/lib/n9.etcd/member/snap/db": "x"}, process: shown{line: []string{"./etcd", "-name", "n9"}},
			source: protect.Process, where: "etcd process 812", dir: "/var/lib/n9.etcd",
		},
		"unit by its cgroup": {
			host: data, process: shown{line: flags, cgroup: "/system.slice/etcd.service"},
			source: protect.SystemdUnit, where: "systemd unit etcd.service", unit: "etcd.service", dir: "/var/lib/etcd",
		},
		"unit of another name": {
			host: data, process: shown{line: flags, cgroup: "/system.slice/k0scontroller.service"},
			source: protect.SystemdUnit, where: "systemd unit k0scontroller.service", unit: "k0scontroller.service", dir: "/var/lib/etcd",
		},
		"container": {
			host:    files{"/containers/c1/data/member/wal/0.wal": "x"},
			process: shown{line: []string{"/usr/local/bin/etcd", "--data-dir=/data"}, cgroup: "/docker/" + containerID, root: "/containers/c1"},
			source:  protect.Container, where: "container, process 812", dir: "/proc/812/root/data",
		},
		"container of a unit, as kubespray's": {
			host: files{
				"/var/lib/etcd/member/wal/0.wal":   "x",
				"/etc/systemd/system/etcd.service": "[Service]\nEnvironmentFile=-/etc/etcd.env\nExecStart=/usr/local/bin/etcd\n",
				"/etc/etcd.env":                    "ETCD_NAME=etcd1\nETCD_DATA_DIR=/var/lib/etcd\n",
			},
			process: shown{line: []string{"/usr/local/bin/etcd"}, env: map[string]string{"ETCD_NAME": "etcd1", "ETCD_DATA_DIR": "/var/lib/etcd"}, cgroup: "/system.slice/docker-" + containerID + ".scope"},
			source:  protect.SystemdUnit, where: "systemd unit etcd.service", unit: "etcd.service", dir: "/var/lib/etcd",
		},
		"container of a unit, known by name and peers": {
			host: files{
				"/containers/c1/data/member/wal/0.wal":    "x",
				"/etc/systemd/system/etcd-member.service": "[Service]\nEnvironmentFile=/etc/etcd/etcd.env\nExecStart=/usr/bin/docker run --name etcd --env-file=/etc/etcd/etcd.env quay.io/coreos/etcd:v3.5.0\n",
				"/etc/etcd/etcd.env":                      "ETCD_NAME=etcd1\nETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.0.0.1:2380\n",
			},
			process: shown{
				line: []string{"etcd"}, cgroup: "/docker/" + containerID, root: "/containers/c1",
				env: map[string]string{"ETCD_NAME": "etcd1", "ETCD_DATA_DIR": "/data", "ETCD_INITIAL_ADVERTISE_PEER_URLS": "https://10.0.0.1:2380"},
			},
			source: protect.SystemdUnit, where: "systemd unit etcd-member.service", unit: "etcd-member.service", dir: "/proc/812/root/data",
		},
		"pod on the host's data": {
			host: data, process: shown{line: flags, cgroup: "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + containerID + ".scope"},
			source: protect.Container, where: "container, process 812", pod: true, dir: "/var/lib/etcd",
		},
		"static pod by its UID": {
			host: files{"/containers/c1/data/member/wal/0.wal": "x"},
			process: shown{
				line: []string{"etcd", "--data-dir=/data"}, root: "/containers/c1",
				cgroup: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/cri-containerd-" + containerID + ".scope",
			},
			source: protect.StaticPod, where: "static pod, process 812", pod: true, dir: "/proc/812/root/data",
		},
		"static pod as the agent's own cgroup namespace shows it": {
			host:    files{"/containers/c1/data/member/wal/0.wal": "x"},
			process: shown{line: []string{"etcd", "--data-dir=/data"}, root: "/containers/c1", cgroup: "/../../pod0123456789abcdef0123456789abcdef/" + containerID},
			source:  protect.StaticPod, where: "static pod, process 812", pod: true, dir: "/proc/812/root/data",
		},
		"static pod of RKE2": {
			host: files{
				"/var/lib/rancher/rke2/server/db/etcd/config":         "name: s1\ndata-dir: /var/lib/rancher/rke2/server/db/etcd\n",
				"/var/lib/rancher/rke2/server/db/etcd/member/snap/db": "x",
				"/var/lib/rancher/rke2/agent/pod-manifests/etcd.yaml": "spec: {containers: [{command: [etcd], args: [--config-file=/var/lib/rancher/rke2/server/db/etcd/config]}]}",
			},
			process: shown{
				line:   []string{"etcd", "--config-file=/var/lib/rancher/rke2/server/db/etcd/config"},
				cgroup: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + podID + ".slice/cri-containerd-" + containerID + ".scope",
			},
			source: protect.StaticPod, where: "static pod etcd.yaml", pod: true, dir: "/var/lib/rancher/rke2/server/db/etcd",
		},
		"static pod": {
			host:    files{"/var/lib/etcd/member/wal/0.wal": "x", "/etc/kubernetes/manifests/etcd.yaml": "spec: {containers: [{command: [etcd, --data-dir=/var/lib/etcd]}]}"},
			process: shown{line: flags, cgroup: "/kubepods/burstable/pod1/" + containerID},
			source:  protect.StaticPod, where: "static pod etcd.yaml", pod: true, dir: "/var/lib/etcd",
		},
		"inside k3s": {
			host: files{
				"/var/lib/rancher/k3s/server/db/etcd/config":         "name: s1\ndata-dir: /var/lib/rancher/k3s/server/db/etcd\nclient-transport-security: {cert-file: /var/lib/rancher/k3s/server/tls/etcd/server-client.crt}\n",
				"/var/lib/rancher/k3s/server/db/etcd/member/snap/db": "x",
			},
			process: shown{comm: "k3s-server", exe: "/var/lib/rancher/k3s/data/1/bin/k3s", line: []string{"/usr/local/bin/k3s", "server"}, cgroup: "/system.slice/k3s.service"},
			source:  protect.SystemdUnit, where: "systemd unit k3s.service", unit: "k3s.service", dir: "/var/lib/rancher/k3s/server/db/etcd",
			config: func(t *testing.T, c protect.Config) { require.Equal(t, "s1", c.Name) },
		},
		"configuration file that does not parse": {
			host: files{"/etc/etcd.yml": "name: ["}, process: shown{line: []string{"etcd", "--config-file", "/etc/etcd.yml"}},
			source: protect.Process, where: "etcd process 812", problems: []string{"parsing the configuration file /etc/etcd.yml"},
		},
		"data directory that cannot be read": {
			host: files{"/var/lib/etcd": loop}, process: shown{line: flags},
			source: protect.Process, where: "etcd process 812", problems: []string{"the data directory /var/lib/etcd: "}, dir: "?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, c.host)
			process(t, root, 812, c.process)
			found, unknown := at(t, root).Etcd(t.Context())
			if c.dir != "?" {
				require.Empty(t, unknown)
			}
			require.Len(t, found, 1)
			s := found[0]
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

func TestWhatIsNoServer(t *testing.T) {
	for name, p := range map[string]shown{
		"gateway":                           {line: []string{"/usr/local/bin/etcd", "gateway", "start"}},
		"proxy":                             {line: []string{"etcd", "grpc-proxy", "start"}},
		"etcdctl":                           {comm: "etcdctl", exe: "/usr/local/bin/etcdctl", line: []string{"etcdctl", "endpoint", "health"}},
		"a shell around it":                 {comm: "etcd", exe: "/usr/bin/bash", line: []string{"/bin/bash", "/usr/local/bin/etcd"}},
		"a shell with -c":                   {comm: "bash", exe: "/usr/bin/bash", line: []string{"/bin/bash", "-c", "exec /usr/bin/etcd"}},
		"docker run":                        {comm: "docker", exe: "/usr/bin/docker", line: []string{"/usr/bin/docker", "run", "quay.io/coreos/etcd:v3"}},
		"an ended one":                      {line: nil},
		"k3s on its own database":           {comm: "k3s-server", exe: "/var/lib/rancher/k3s/data/1/bin/k3s", line: []string{"k3s", "server"}},
		"k3s on its own database elsewhere": {comm: "k3s-server", exe: "/srv/k3s/data/1/bin/k3s", line: []string{"k3s", "server"}},
		"a backup":                          {comm: "etcd-backup", exe: "/usr/local/bin/etcd-backup", line: []string{"etcd-backup"}},
		"an exporter":                       {comm: "etcd_exporter", exe: "/usr/local/bin/etcd_exporter", line: []string{"etcd_exporter"}},
		"k3s agent":                         {comm: "k3s-agent", exe: "/usr/local/bin/k3s", line: []string{"k3s", "agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, files{"/var/lib/rancher/k3s/server/db/state.db": "x", "/srv/k3s/server/db/state.db": "x"})
			process(t, root, 812, p)
			if p.line == nil {
				add(t, root, files{"/proc/813": "-> 999999"}) // and one that has vanished altogether
				truncate(t, root, "/proc/812/cmdline")
			}
			found, unknown := at(t, root).Etcd(t.Context())
			require.Empty(t, unknown)
			require.Empty(t, found)
		})
	}
}

func TestAServerWhoseEnvironmentCannotBeRead(t *testing.T) {
	unitAndData := files{
		"/etc/systemd/system/etcd.service": "[Service]\nEnvironmentFile=-/etc/etcd.env\nExecStart=/usr/local/bin/etcd\n",
		"/etc/etcd.env":                    "ETCD_NAME=etcd1\nETCD_DATA_DIR=/srv/etcd\n",
		"/srv/etcd/member/snap/db":         "x",
	}
	for name, c := range map[string]struct {
		cgroup string
		host   files
		dir    string
	}{
		"its unit's files tell": {cgroup: "/system.slice/etcd.service", host: unitAndData, dir: "/srv/etcd"},
		"nothing else tells":    {cgroup: "/", host: nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, c.host)
			process(t, root, 812, shown{line: []string{"etcd"}, cgroup: c.cgroup})
			replaceByDirectory(t, root, "/proc/812/environ")
			found, _ := at(t, root).Etcd(t.Context())
			require.Len(t, found, 1)
			require.Contains(t, found[0].Problems[0], "the environment of process 812: ")
			if c.dir == "" {
				require.Nil(t, found[0].HasData, "a guess is no knowledge")
				require.Equal(t, protect.Config{}, found[0].Config)
				return
			}
			require.True(t, *found[0].HasData)
			require.Equal(t, filepath.Join(root, c.dir), found[0].Config.DataDir)
		})
	}
}

func TestAProcessThatCannotBeReadIsUnknown(t *testing.T) {
	root := layOut(t, nil)
	process(t, root, 812, shown{line: []string{"etcd"}})
	replaceByDirectory(t, root, "/proc/812/cmdline")
	found, unknown := at(t, root).Etcd(t.Context())
	require.Empty(t, found)
	require.Len(t, unknown, 1)
	require.Contains(t, unknown[0], "process 812: ")
}
