package host_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
