package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAnOrdinaryPodIsNoPartOfTheHost(t *testing.T) {
	const (
		manifest = "spec: {containers: [{command: [etcd, --name=n1, --initial-advertise-peer-urls=https://10.0.0.1:2380, --data-dir=/var/lib/etcd]}]}"
		unit     = "[Service]\nExecStart=/usr/local/bin/etcd --name=n1 --initial-advertise-peer-urls=https://10.0.0.1:2380 --data-dir=/var/lib/etcd\n"
		stopped  = "/var/lib/etcd/member/wal/0.wal"
	)
	pretender := []string{"etcd", "--name=n1", "--initial-advertise-peer-urls=https://10.0.0.1:2380"}
	for name, c := range map[string]struct {
		host  files
		line  []string
		where []string
	}{
		"data of its own":                   {line: []string{"etcd", "--data-dir=/data"}},
		"the name of the host's directory":  {host: files{stopped: "x"}, line: []string{"etcd", "--data-dir=/var/lib/etcd"}, where: []string{"data directory /var/lib/etcd, with no server running on it"}},
		"a directory that cannot be read":   {line: []string{"etcd", "--data-dir=/loop"}},
		"settings that cannot be read":      {line: []string{"etcd", "--config-file=/loop"}},
		"pretends to be the static pod":     {host: files{"/etc/kubernetes/manifests/etcd.yaml": manifest, stopped: "x"}, line: pretender, where: []string{"data directory /var/lib/etcd of static pod etcd.yaml, which does not run"}},
		"pretends to be the unit's server":  {host: files{"/etc/systemd/system/etcd.service": unit, stopped: "x"}, line: pretender, where: []string{"data directory /var/lib/etcd of systemd unit etcd.service, which does not run"}},
		"a k3s with garbled settings":       {line: []string{"k3s", "server"}},
		"pretends where there is no member": {host: files{"/etc/kubernetes/manifests/etcd.yaml": manifest}, line: pretender},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, c.host)
			add(t, root, files{
				"/containers/c1/data/member/wal/0.wal": "x", "/containers/c1/var/lib/etcd/member/wal/0.wal": "x", "/containers/c1/loop": loop,
				"/containers/c1/etc/rancher/k3s/config.yaml": "\t[", "/containers/c1/var/lib/rancher/k3s/server/db/etcd/config": "{}",
			})
			process(t, root, 812, shown{
				line: c.line, comm: c.line[0], exe: "/bin/" + c.line[0], root: "/containers/c1",
				cgroup: "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + podID + ".slice/cri-containerd-" + containerID + ".scope",
			})
			look := at(t, root).Look(t.Context())
			require.Empty(t, look.Unknown)
			var where []string
			for _, s := range look.Found {
				where = append(where, s.Where)
			}
			require.Equal(t, c.where, where)
			require.Contains(t, strings.Join(look.Notes, "\n"), "process 812 is etcd in an ordinary pod")
		})
	}
}

// The agent has 128 MiB, and an ordinary pod may have anything in its files, arguments and variables.
func TestAnOrdinaryPodCostsLittleMemory(t *testing.T) {
	bomb := "a: &a " + strings.Repeat("x", 50<<10) + "\nb: [" + strings.TrimSuffix(strings.Repeat("*a,", 3000), ",") + "]\n"
	variables := map[string]string{}
	for i := range 8 {
		variables[fmt.Sprintf("ETCD_NAME%d", i)] = strings.Repeat("x", 120<<10)
	}
	for name, c := range map[string]struct {
		process shown
		count   int
	}{
		"a configuration file":        {shown{line: []string{"etcd", "--config-file=/bomb.yaml"}}, 1},
		"one that a variable names":   {shown{line: []string{"etcd"}, env: map[string]string{"ETCD_CONFIG_FILE": "/bomb.yaml"}}, 1},
		"the settings of a k3s":       {shown{comm: "k3s-server", exe: "/bin/k3s", line: []string{"k3s", "server"}}, 1},
		"variables of many processes": {shown{line: []string{"etcd", "--data-dir=/data"}, env: variables}, 60},
		"arguments of many processes": {shown{line: []string{"etcd", "--data-dir=/data", "--name=" + strings.Repeat("x", 900<<10)}}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, files{"/containers/c1/bomb.yaml": bomb, "/containers/c1/data/member/wal/0.wal": "x", "/containers/c1/etc/rancher/k3s/config.yaml": bomb})
			c.process.root = "/containers/c1"
			c.process.cgroup = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + podID + ".slice/cri-containerd-" + containerID + ".scope"
			for i := range c.count {
				process(t, root, 4000+i, c.process)
			}
			h := at(t, root)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			look := h.Look(t.Context())
			runtime.ReadMemStats(&after)
			require.Empty(t, look.Found)
			require.Empty(t, look.Unknown)
			require.Less(t, len(look.Notes), 12, "not one for each of many")
			if c.count == 1 {
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "bytes allocated")
				return
			}
			require.Less(t, int64(after.HeapInuse)-int64(before.HeapInuse), int64(40<<20), "bytes in use, of %d MiB that are shown", c.count)
		})
	}
}

// Whatever a file of an ordinary pod has in it, nothing has when nobody opens it.
func TestNoSettingsOfAnOrdinaryPodAreRead(t *testing.T) {
	root := layOut(t, files{"/containers/c1/etc/etcd.yml": "data-dir: /data\n", "/containers/c1/data/member/wal/0.wal": "x"})
	process(t, root, 812, shown{
		line: []string{"etcd", "--config-file=/etc/etcd.yml"}, root: "/containers/c1",
		cgroup: "/kubepods/burstable/pod" + podID + "/" + containerID,
	})
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(watch)) }()
	file := filepath.Join(root, "containers/c1/etc/etcd.yml")
	_, err = unix.InotifyAddWatch(watch, file, unix.IN_OPEN)
	require.NoError(t, err)
	look := at(t, root).Look(t.Context())
	require.Empty(t, look.Found)
	require.Contains(t, strings.Join(look.Notes, "\n"), "process 812 is etcd in an ordinary pod")
	_, err = unix.Read(watch, make([]byte, 4096))
	require.ErrorIs(t, err, unix.EAGAIN, "nobody has opened it")
	_, err = os.ReadFile(file)
	require.NoError(t, err)
	_, err = unix.Read(watch, make([]byte, 4096))
	require.NoError(t, err, "or it would have been seen")
}
