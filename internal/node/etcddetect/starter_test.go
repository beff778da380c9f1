package etcddetect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestStarters has hosts without data of etcd, and what may start it.
func TestStarters(t *testing.T) {
	unit := func(name, command string) hosttest.Files {
		return hosttest.Files{"/etc/systemd/system/" + name: "[Service]\nExecStart=" + command}
	}
	pod := func(name, text string) hosttest.Files {
		return hosttest.Files{"/etc/kubernetes/manifests/" + name: "spec:\n  " + text}
	}
	instance := func(template, name, command string) hosttest.Files {
		link := "/etc/systemd/system/multi-user.target.wants/" + template + "@" + name + ".service"
		return with(unit(template+"@.service", "/usr/bin/"+command), link, "-> ../x")
	}
	timer := func(line string) hosttest.Files {
		return hosttest.Files{"/etc/systemd/system/etcd.timer": "[Timer]\n" + line}
	}
	const opaque = " may start etcd, and does not tell where its data is; set its data directory to an absolute path"
	for name, c := range map[string]struct {
		files   hosttest.Files
		unknown string
	}{
		"docker start":   {unit("container-etcd.service", "/usr/bin/docker start -a etcd"), opaque},
		"podman start":   {unit("etcd.service", "/usr/bin/podman start etcd"), opaque},
		"compose":        {unit("etcd.service", "/usr/local/bin/docker-compose -f /opt/etcd/c.yml up etcd"), opaque},
		"compose plugin": {unit("etcd.service", "/usr/bin/docker compose -f /opt/etcd/c.yml up"), opaque},
		"script":         {unit("etcd-member.service", "/opt/etcd/start.sh"), opaque},
		"options of a server": {unit("etcd.service",
			"/opt/etcd/start.sh --log-level=info --metrics=basic /var/log/etcd"), opaque},
		"shell": {unit("etcd.service", "/bin/bash /opt/etcd/start.sh"), opaque},
		"several commands": {
			unit("etcd.service", "/usr/bin/docker start etcd\nExecStart=/usr/bin/sleep 5\nType=oneshot"), opaque,
		},
		"replaced command": {
			with(unit("etcd.service", "/opt/start"), "/etc/systemd/system/etcd.service.d/x.conf",
				"[Service]\nExecStart=\nExecStart=/usr/bin/true"), "",
		},
		"snap":    {unit("snap.x.etcd.service", "/usr/bin/snap run etcd"), opaque},
		"version": {unit("etcd-3.5.service", "/opt/start"), opaque},
		"instance of another template": {
			instance("docker-compose", "etcd", "docker compose up"), "systemd unit docker-compose@etcd.service" + opaque,
		},
		"kube file of podman": {
			instance("podman-kube", "-etc-etcd.yaml", "podman kube play --replace %I"),
			"systemd unit podman-kube@-etc-etcd.yaml.service" + opaque,
		},
		"timer": {timer("Unit=store.service"), "systemd unit etcd.timer" + opaque},
		"path":  {hosttest.Files{"/etc/systemd/system/etcd.path": "[Path]\nUnit=store.service"}, "etcd.path" + opaque},
		"socket": {
			hosttest.Files{"/etc/systemd/system/etcd.socket": "[Socket]\nService=store.service"}, "etcd.socket" + opaque,
		},
		"timer of a backup":       {timer("Unit=backup.service"), ""},
		"timer of a unit of etcd": {timer("Unit=etcd-main.service"), ""},
		"timer without a unit":    {timer("OnCalendar=daily"), ""},
		"dinit":                   {hosttest.Files{"/etc/dinit.d/etcd": "x"}, "service /etc/dinit.d/etcd" + opaque},
		"Monit":                   {hosttest.Files{"/etc/monit/conf.d/etcd": "x"}, "service /etc/monit/conf.d/etcd" + opaque},
		"Upstart":                 {hosttest.Files{"/etc/init/etcd.conf": "x"}, "service /etc/init/etcd.conf" + opaque},
		"OpenRC":                  {hosttest.Files{"/etc/init.d/etcd": "x"}, "service /etc/init.d/etcd" + opaque},
		"runit":                   {hosttest.Files{"/etc/service/etcd/run": "x"}, "service /etc/service/etcd" + opaque},
		"supervisord": {
			hosttest.Files{"/etc/supervisor/conf.d/etcd.conf": "x"},
			"/etc/supervisor/conf.d/etcd.conf" + opaque,
		},
		"supervisord with a directory": {hosttest.Files{
			"/etc/supervisor/conf.d/etcd.conf": "[program:etcd]\ncommand=/usr/bin/etcd --data-dir=/data\n",
		}, ""},
		"unit of Flatcar on a worker": {unit("etcd-member.service",
			"/usr/lib/flatcar/etcd-wrapper $OPTS\nExecStartPre=-/usr/bin/docker rm -f e\n"+
				"Environment=ETCD_DATA_DIR=/var/lib/etcd"), ""},
		"container with a directory": {unit("etcd.service", "/usr/bin/docker run -v /data:/d etcd:v3.5 --data-dir=/d"), ""},
		"variable with a directory": {
			unit("etcd.service", "/usr/bin/etcd --data-dir=${ETCD_DATA_DIR}\nEnvironment=ETCD_DATA_DIR=/data"), "",
		},
		"another variable": {unit("etcd.service", "/usr/bin/etcd --data-dir=${D}\nEnvironment=D=/data"), opaque},
		"missing configuration file": {
			unit("etcd.service", "/usr/bin/etcd --config-file=/etc/etcd.yml\nEnvironment=ETCD_DATA_DIR=/data"),
			"systemd unit etcd.service (reading the configuration file /etc/etcd.yml: no such file or directory)" + opaque,
		},
		"configuration file without a directory": {with(
			unit("etcd.service", "/usr/bin/etcd --config-file=/etc/etcd.yml\nEnvironment=ETCD_DATA_DIR=/data"),
			"/etc/etcd.yml", "name: a",
		), opaque},
		"variable with two values": {unit("etcd.service",
			"/bin/sh -c 'DATA_DIR=/data/$(hostname); DATA_DIR=/data; etcd --data-dir=$DATA_DIR'"), opaque},
		"image": {unit("my-etcdserver.service",
			"/usr/bin/podman run -v x:/d quay.io/coreos/etcd:v3.5 --data-dir=/d"), opaque},
		"static pod without data": {pod("etcd.yaml", "command: [etcd, --data-dir=/data/x]\n  hostPath: {path: /data}"), ""},
		"static pod with another path": {
			pod("etcd.yaml", "command: [etcd, --data-dir=/data]\n  hostPath: {path: /srv}"),
			"static pod etcd.yaml" + opaque,
		},
		"static pod of another name": {
			pod("my-etcd.json", `"args": ["--data-dir=/data"]`), "static pod my-etcd.json" + opaque,
		},
		"static pod that cannot be read": {
			hosttest.Files{"/etc/kubernetes/manifests/master.yaml": hosttest.Loop},
			"the static pod /etc/kubernetes/manifests/master.yaml: too many levels of symbolic links",
		},
		"directory beside static pods": {hosttest.Files{"/etc/kubernetes/manifests/etcd/etcd.yaml": "x"}, ""},
		"link beside static pods": {hosttest.Files{
			"/etc/kubernetes/manifests/old": "-> ../old", "/etc/kubernetes/old/etcd.yaml": "x",
		}, ""},
		"file of an editor":       {pod(".etcd.yaml.swp", strings.Repeat("x", 1<<20)), ""},
		"half of a static pod":    {pod("etcd.yaml", "comm"), "static pod etcd.yaml" + opaque},
		"static pod of a manager": {pod("etcd-main.manifest", "command: [/etcd-manager]"), ""},
		"static pod of a client":  {pod("etcd-client.yaml", "command: [x, --etcd-servers=y, --data-dir=/data]"), ""},
		"supervised backup":       {hosttest.Files{"/etc/init.d/etcd-backup": "x", "/etc/init.d/ssh": "x"}, ""},
		"backup":                  {unit("etcd-backup.service", "/opt/etcd/save.sh"), ""},
		"script of a backup":      {unit("etcd.service", "/opt/etcd-backup/run.sh"), ""},
		"etcdctl":                 {unit("etcd-x.service", "/usr/bin/sudo -u etcd /usr/local/bin/etcdctl defrag"), ""},
		"backup, another user":    {unit("etcd-x.service", "/sbin/runuser -u etcd -- /opt/etcd-backup/run.sh"), ""},
		"backup by su":            {unit("etcd-x.service", "/bin/su etcd -c '/opt/etcd-backup/run.sh'"), ""},
		"network": {unit("etcd-x.service",
			"/usr/bin/docker run --network etcd registry.example/etcdkeeper:v1"), ""},
		"program of system":   {unit("etcd-x.service", "/usr/bin/rsync -a --groupmap etcd /a /b"), ""},
		"old files":           {unit("etcd-x.service", "/usr/bin/find /srv/etcd -mtime +7 -delete"), ""},
		"firewall":            {unit("etcd-x.service", "/sbin/iptables -A INPUT -p tcp --dport 2379 -j DROP"), ""},
		"logs":                {unit("etcd-x.service", "/usr/bin/crictl ps --name etcd"), ""},
		"another name":        {unit("store.service", "/opt/start.sh"), ""},
		"snap of a worker":    {unit("snap.k8s.etcd.service", "/usr/bin/snap run k8s.etcd"), ""},
		"exporter":            {unit("etcd_exporter.service", "/usr/local/bin/etcd_exporter"), ""},
		"server without data": {unit("etcd.service", "/usr/bin/etcd --data-dir=/data"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			findings := New(hostfs.Root(hosttest.New(t, c.files)), nil).Detect()
			require.Empty(t, findings.Found)
			if c.unknown == "" {
				require.Empty(t, findings.Unknown)
				return
			}
			require.Len(t, findings.Unknown, 1)
			require.Contains(t, findings.Unknown[0], c.unknown)
		})
	}
}

// TestNames has names that say etcd, or those of tools for it, and programs that may start another
// one.
func TestNames(t *testing.T) {
	unit := func(name, command string) hosttest.Files {
		return hosttest.Files{"/etc/systemd/system/" + name + ".service": serviceOf("ExecStart=" + command)}
	}
	starters := map[string]hosttest.Files{
		"s6-rc":                  {"/etc/s6-rc/source/etcd/run": "x"},
		"local service":          {"/etc/local.d/etcd.start": "x"},
		"unit of all users":      {"/etc/systemd/user/etcd.service": serviceOf("ExecStart=/usr/bin/podman start etcd")},
		"quadlet of all users":   {"/etc/containers/systemd/users/etcd.container": "[Container]\nImage=x/y\n"},
		"container in all cases": {"/var/lib/docker/containers/1/config.v2.json": `{"Name":"/Etcd-Blog","Path":"/run"}`},
	}
	for _, name := range []string{
		"etcd-catalog", "etcd@checkout", "etcd-uncertain", "etcd-watchtower", "myetcd", "etcdserver",
	} {
		starters[name] = unit(name, "/opt/start")
	}
	for _, command := range []string{
		"/usr/bin/start-etcd", "/usr/bin/python3 /opt/x.py", "/usr/bin/flock /run/x /opt/x", "/usr/bin/make -C /opt up",
		"/usr/bin/systemd-run --scope /opt/x", "/usr/bin/screen -Dm /opt/x", "/usr/bin/runc run x",
		"/usr/bin/find /srv -name run -exec {} +", "/usr/bin/tar -cf /x --checkpoint-action=exec=/opt/x /y",
		"/sbin/ip netns exec x /opt/x", "/usr/bin/lxc-start -n x", "/usr/bin/machinectl start x",
		"/usr/bin/docker stack deploy -c /opt/x.yml x",
	} {
		starters[command] = unit("etcd", command)
	}
	starters["server with the name of a tool"] = unit("etcd-backup", "/usr/bin/chpst -u etcd /usr/bin/etcd $OPTS")
	for name, files := range starters {
		t.Run(name, func(t *testing.T) {
			require.Len(t, detectWithSearch(t, hosttest.New(t, files)).Unknown, 1)
		})
	}
	for _, name := range []string{
		"etcd-logs", "etcd-logrotate", "etcd-certs-renewal", "etcd-healthcheck", "etcd-setup", "etcd-watcher",
		"etcd_snapshotter",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, unit(name, "/opt/start"))
			require.Empty(t, New(hostfs.Root(root), nil).Detect().Unknown)
		})
	}
}

// TestServices has stopped members of other supervisors than systemd.
func TestServices(t *testing.T) {
	const text = "command = /usr/bin/etcd --data-dir=/data/etcd\n"
	for service, file := range map[string]string{
		"/etc/init.d/etcd": "/etc/init.d/etcd", "/etc/init.d/etcd-main": "/etc/conf.d/etcd-main",
		"/etc/service/etcd":                   "/etc/service/etcd/run",
		"/etc/supervisor/conf.d/my-etcd.conf": "/etc/supervisor/conf.d/my-etcd.conf",
	} {
		t.Run(service, func(t *testing.T) {
			files := hosttest.Files{"/data/etcd/member/snap/db": "x", file: text}
			if strings.HasPrefix(service, "/etc/init.d/") && file != service {
				files[service] = "#!/sbin/openrc-run\n"
			}
			root := hosttest.New(t, files)
			findings := New(hostfs.Root(root), nil).Detect()
			require.Empty(t, findings.Unknown)
			require.Len(t, findings.Found, 1)
			require.Equal(t, "data directory /data/etcd of service "+service+", with no server running on it",
				findings.Found[0].Where)
			require.Empty(t, findings.Found[0].Unit)
			hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd", "--data-dir=/data/etcd"}})
			findings = New(hostfs.Root(root), nil).Detect()
			require.Len(t, findings.Found, 1)
			require.Equal(t, "etcd process 812", findings.Found[0].Where)
		})
	}
}

// TestSettingsOfLayout has settings of a layout that do not lead to the data of its server.
func TestSettingsOfLayout(t *testing.T) {
	const k3s, snap = "/etc/rancher/k3s/config.yaml", "/var/snap/etcd/common/etcd.conf.yml"
	const advice = "set data-dir in %s to an absolute path on a local disk"
	for name, c := range map[string]struct{ file, text, want string }{
		"k3s on a network":  {k3s, "data-dir: /mnt/nfs/k3s\n", "k3s: " + fmt.Sprintf(advice, k3s)},
		"k3s, unreadable":   {k3s, hosttest.Loop, "k3s: " + k3s + ": too many levels of symbolic links"},
		"snap on a network": {snap, "data-dir: /mnt/nfs/etcd\n", "snap: " + fmt.Sprintf(advice, snap)},
		"snap, relative":    {snap, "data-dir: etcd\n", "snap: " + fmt.Sprintf(advice, snap)},
		"snap, unreadable":  {snap, hosttest.Loop, "snap: " + snap + ": too many levels of symbolic links"},
		"snap, not mounted": {snap, "data-dir: /disk/etcd\n", "snap: nothing is mounted on /disk"},
		"snap, no data":     {snap, "data-dir: /data/etcd\n", ""},
		"snap, default":     {snap, "name: n1\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{c.file: c.text, "/run/systemd/generator/disk.mount": "[Mount]\n"})
			s := New(hostfs.Root(root), nil).newScan()
			s.foreignMount = nfs
			s.addDataDirs()
			if c.want == "" {
				require.Empty(t, s.unknown)
				return
			}
			require.Equal(t, []string{"the data directory of " + c.want}, s.unknown)
		})
	}
}
