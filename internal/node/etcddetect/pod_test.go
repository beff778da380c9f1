package etcddetect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/node/etcddetect"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const ordinaryPod = "process 812 is etcd in an ordinary pod"

func TestOrdinaryPod(t *testing.T) {
	const (
		podFile = "/etc/kubernetes/manifests/etcd.yaml"
		pod     = "spec: {containers: [{command: [etcd, --name=n1, --initial-advertise-peer-urls=https://10.0.0.1:2380, " +
			"--data-dir=/var/lib/etcd]}], volumes: [{hostPath: {path: /var/lib/etcd}}]}"
		data = "/var/lib/etcd/member/wal/0.wal"
	)
	impostor := []string{"etcd", "--name=n1", "--initial-advertise-peer-urls=https://10.0.0.1:2380"}
	unit := service("ExecStart=/usr/local/bin/" + strings.Join(impostor, " ") + " --data-dir=/var/lib/etcd")
	for name, c := range map[string]struct {
		host  hosttest.Files
		line  []string
		where []string
		// isOther is set for a process that is not known as etcd.
		isOther bool
	}{
		"own data": {line: []string{"etcd", "--data-dir=/data"}},
		"path of the host's data": {
			host: hosttest.Files{data: "x"}, line: []string{"etcd", "--data-dir=/var/lib/etcd"},
			where: []string{"data directory /var/lib/etcd, with no server running on it"},
		},
		"unreadable directory": {line: []string{"etcd", "--data-dir=/loop"}},
		"unreadable settings":  {line: []string{"etcd", "--config-file=/loop"}},
		"path that leads nowhere on the host": {
			host: hosttest.Files{"/data": hosttest.Loop}, line: []string{"etcd", "--data-dir=/data"},
		},
		"settings at a path that leads nowhere on the host": {
			host: hosttest.Files{"/etc/etcd.yml": hosttest.Loop, "/data": hosttest.Loop},
			line: []string{"etcd", "--config-file=/etc/etcd.yml"},
		},
		"device of the host": {line: []string{"etcd", "--data-dir=/null"}},
		"impostor of a static pod": {
			host: hosttest.Files{podFile: pod, data: "x"}, line: impostor,
			where: []string{"data directory /var/lib/etcd of static pod etcd.yaml, with no server running on it"},
		},
		"impostor of a unit": {
			host: hosttest.Files{unitFile: unit, data: "x"}, line: impostor,
			where: []string{"data directory /var/lib/etcd of systemd unit etcd.service, with no server running on it"},
		},
		"k3s": {
			host: hosttest.Files{
				"/proc/locks": hosttest.Locks, "/proc/812/fd/8": "-> /data/member/snap/db",
				"/proc/812/fd/9": "-> /data/member/wal/0000000000000000-0000000000000000.wal",
			},
			line: []string{"k3s", "server"},
		},
		"k3s whose open files cannot be read": {
			host: hosttest.Files{"/proc/locks": hosttest.Locks, "/proc/812/fd": hosttest.Loop},
			line: []string{"k3s", "server"}, isOther: true,
		},
		"impostor without the member": {host: hosttest.Files{podFile: pod}, line: impostor},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			hosttest.Add(t, root, hosttest.Files{
				"/containers/c1/data/member/wal/0.wal": "x", "/containers/c1" + data: "x", "/containers/c1/loop": hosttest.Loop,
				"/containers/c1/etc/etcd.yml": "data-dir: /data\n",
			})
			hosttest.Add(t, root, hosttest.Files{"/null": ""})
			require.NoError(t, os.Link(filepath.Join(root, "null"), filepath.Join(root, "containers/c1/null")))
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: c.line, Comm: c.line[0], Exe: "/bin/" + c.line[0], Root: "/containers/c1",
				Cgroup: podCgroup("besteffort", hosttest.PodUID),
			})
			findings := detect(t, root)
			require.Empty(t, findings.Unknown)
			var where []string
			for _, s := range findings.Found {
				where = append(where, s.Where)
			}
			require.Equal(t, c.where, where)
			require.Equal(t, !c.isOther, strings.Contains(strings.Join(findings.Notes, "\n"), ordinaryPod))
		})
	}
}

// A container that may write its cgroups can run systemd, or name a cgroup as a unit of the host.
func TestOrdinaryPodWithUnits(t *testing.T) {
	const evil = "/containers/c1/evil/"
	for name, inner := range map[string]string{
		"no unit": "", "unit": "/system.slice/etcd.service", "unit of the host": "/etcd.service", "any unit": "/x.service",
		"static pod": "/kubepods/pod0123456789abcdef0123456789abcdef/system.slice/etcd.service",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/containers/c1/data/member/wal/0.wal": "x", evil + "ca.pem": "x", evil + "cert.pem": "x", evil + "key.pem": "x",
				unitFile: service("ExecStart=/usr/local/bin/etcd --data-dir=/var/lib/etcd"),
			})
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: []string{
					"etcd", "--data-dir=/data", "--listen-client-urls=https://10.9.9.9:2379",
					"--cert-file=/evil/cert.pem", "--key-file=/evil/key.pem", "--trusted-ca-file=/evil/ca.pem",
				},
				Root: "/containers/c1", Cgroup: podCgroup("besteffort", hosttest.PodUID) + inner,
			})
			findings := detect(t, root)
			require.Empty(t, findings.Unknown)
			for _, found := range findings.Found {
				require.Zero(t, found.PID, "%+v", found)
			}
			require.Contains(t, strings.Join(findings.Notes, "\n"), ordinaryPod)
		})
	}
}

// A volume of a pod, and the files of its container, have a path of the host too. A pod can make
// that path with a link.
func TestOrdinaryPodNamesItsOwnFiles(t *testing.T) {
	const kubelet, containerd = "/var/lib/kubelet/pods/", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/"
	const volume = "/volumes/kubernetes.io~empty-dir/data"
	uid := strings.ReplaceAll(hosttest.PodUID, "_", "-")
	for name, c := range map[string]struct {
		dir    string
		isHost bool
	}{
		"volume":                {kubelet + uid + volume, false},
		"files":                 {containerd + hosttest.ContainerID + "/rootfs/data", false},
		"link to a volume":      {"/link", false},
		"directory of the host": {"/srv/etcd", true},
		"volume of another pod": {kubelet + strings.ReplaceAll(uid, "1", "2") + volume, true},
	} {
		t.Run(name, func(t *testing.T) {
			data := c.dir
			if data == "/link" {
				data = kubelet + uid + volume
			}
			root := hosttest.New(t, hosttest.Files{data + "/member/wal/0.wal": "x", "/link": "-> " + data})
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Line: []string{"etcd", "--data-dir=" + c.dir}, Cgroup: podCgroup("besteffort", hosttest.PodUID),
			})
			findings := detect(t, root)
			require.Empty(t, findings.Unknown)
			require.Len(t, findings.Found, map[bool]int{true: 1}[c.isHost])
		})
	}
}

// TestLogIsPipe: a static pod can have any files. A pipe in place of the log must not stop the
// scan.
func TestLogIsPipe(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/containers/c1/data/member/wal/0.wal": "x"})
	pipe := filepath.Join(root, "containers/c1/data/member/wal/1.wal")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = writer.Close() }() // nothing to lose
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd", "--data-dir=/data"}, Root: "/containers/c1",
		Cgroup: podCgroup("besteffort", "0123456789abcdef0123456789abcdef"),
	})
	require.Nil(t, detectOne(t, root).Stored)
}

// The agent has 128 MiB, and an ordinary pod can have any files, arguments and variables.
func TestOrdinaryPodMemory(t *testing.T) {
	bomb := "a: &a " + strings.Repeat("x", 50<<10) + "\nb: [" + strings.Repeat("*a,", 3000) + "*a]\n"
	variables := map[string]string{}
	for i := range 8 {
		variables[fmt.Sprintf("ETCD_NAME%d", i)] = strings.Repeat("x", 120<<10)
	}
	longName := "--name=" + strings.Repeat("x", 900<<10)
	manyArguments := slices.Concat([]string{"etcd", "--data-dir=/data"}, make([]string, 230_000), []string{"x"})
	for name, c := range map[string]struct {
		process hosttest.Process
		count   int
	}{
		"configuration file": {hosttest.Process{Line: []string{"etcd", "--config-file=/bomb.yaml"}}, 1},
		"configuration file in a variable": {
			hosttest.Process{Line: []string{"etcd"}, Env: map[string]string{"ETCD_CONFIG_FILE": "/bomb.yaml"}}, 1,
		},
		"variables":      {hosttest.Process{Line: []string{"etcd", "--data-dir=/data"}, Env: variables}, 60},
		"arguments":      {hosttest.Process{Line: []string{"etcd", "--data-dir=/data", longName}}, 60},
		"many arguments": {hosttest.Process{Line: manyArguments}, 60},
		"long command":   {hosttest.Process{Line: []string{strings.Repeat("/", 900<<10) + "etcd", "--data-dir=/data"}}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/containers/c1/bomb.yaml": bomb, "/containers/c1/data/member/wal/0.wal": "x",
			})
			c.process.Root, c.process.Cgroup = "/containers/c1", podCgroup("besteffort", hosttest.PodUID)
			for i := range c.count {
				hosttest.AddProcess(t, root, 4000+i, c.process)
			}
			d := etcddetect.New(hostfs.Root(root), nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			findings := d.Detect()
			runtime.ReadMemStats(&after)
			require.Empty(t, findings.Found)
			require.Empty(t, findings.Unknown)
			require.Less(t, len(findings.Notes), 12, "fewer notes than processes")
			if c.count == 1 {
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "bytes allocated")
				return
			}
			require.Less(t, int64(after.HeapInuse)-int64(before.HeapInuse), int64(40<<20), "bytes in use, %d processes", c.count)
		})
	}
}

// TestStaticPodWithOtherPath has a static pod whose data has another path in it. It is recognized
// by its manifest, also among many ordinary pods with the same settings.
func TestStaticPodWithOtherPath(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/etc/kubernetes/manifests/store.json": `{"spec": {"containers": [{"command": ["etcd", "--data-dir=/data"]}],
			"volumes": [{"hostPath": {"path": "/containers/c1/data"}}]}}`,
		"/containers/c1/data/member/wal/0.wal": "x", "/containers/c2/data/member/wal/0.wal": "x",
	})
	pod := hosttest.Process{
		Line: []string{"etcd", "--data-dir=/data"}, Root: "/containers/c2", Cgroup: podCgroup("besteffort", hosttest.PodUID),
	}
	for i := range 20 {
		hosttest.AddProcess(t, root, 1000+i, pod)
	}
	pod.Root = "/containers/c1"
	hosttest.AddProcess(t, root, 2000, pod)
	server := detectOne(t, root)
	require.Equal(t, "static pod store.json", server.Where)
	require.Equal(t, evidence.StaticPod, server.Source)
	require.Equal(t, 2000, server.PID)
	hosttest.Remove(t, root, "/proc/2000")
	const stopped = "data directory /containers/c1/data of static pod store.json, with no server running on it"
	require.Equal(t, stopped, detectOne(t, root).Where)
}

// TestStaticPodWithClient has etcd and a client of it, kube-apiserver, in one stopped static pod.
func TestStaticPodWithClient(t *testing.T) {
	server := detectOne(t, hosttest.New(t, hosttest.Files{
		"/etc/kubernetes/manifests/master.yaml": "containers:\n- command: [etcd, --data-dir=/data]\n" +
			"- command: [kube-apiserver, --etcd-servers=https://127.0.0.1:2379]\nvolumes:\n- hostPath: {path: /data}\n",
		"/data/member/wal/0.wal": "x",
	}))
	require.Equal(t, "data directory /data of static pod master.yaml, with no server running on it", server.Where)
}

// The files of an ordinary pod can have any content, so they must not be opened.
func TestOrdinaryPodFilesAreNotOpened(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/containers/c1/etc/etcd.yml": "data-dir: /data\n", "/containers/c1/data/member/wal/0.wal": "x",
	})
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd", "--config-file=/etc/etcd.yml"}, Root: "/containers/c1",
		Cgroup: "/kubepods/burstable/pod" + hosttest.PodUID + "/" + hosttest.ContainerID,
	})
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(watch)) }()
	file := filepath.Join(root, "containers/c1/etc/etcd.yml")
	_, err = unix.InotifyAddWatch(watch, file, unix.IN_OPEN)
	require.NoError(t, err)
	findings := detect(t, root)
	require.Empty(t, findings.Found)
	require.Contains(t, strings.Join(findings.Notes, "\n"), ordinaryPod)
	_, err = unix.Read(watch, make([]byte, 4096))
	require.ErrorIs(t, err, unix.EAGAIN, "the file is not opened")
	_, err = os.ReadFile(file)
	require.NoError(t, err)
	_, err = unix.Read(watch, make([]byte, 4096))
	require.NoError(t, err, "the watch reports an opened file")
}
