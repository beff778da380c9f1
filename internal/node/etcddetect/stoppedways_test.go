package etcddetect

import (
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

const (
	etcdUnit = "/etc/systemd/system/etcd.service"
	template = "/etc/systemd/system/etcd@.service"
	k3sUnit  = "/etc/systemd/system/k3s.service"
	k3sEtcd  = "/srv/k3s/server/db/etcd"
)

// serviceOf returns a unit file.
func serviceOf(lines ...string) string { return "[Service]\n" + strings.Join(lines, "\n") + "\n" }

// A stoppedWay is a way in which the files of a host name the data directory of a stopped member.
type stoppedWay struct {
	files hosttest.Files
	dir   string
	// isMentioned is set if the texts lead to the directory. Otherwise the host is unknown until the
	// local disks have been searched.
	isMentioned bool
}

// stoppedWays returns the ways in which units name a data directory: plain paths, and the grammar
// of systemd, of shells, of container engines and of k3s.
func stoppedWays() map[string]stoppedWay {
	const image = "quay.io/coreos/etcd:v3.5.12 "
	ways := map[string]stoppedWay{}
	add := func(name, dir string, isMentioned bool, files hosttest.Files) {
		ways[name] = stoppedWay{files, dir, isMentioned}
	}
	unit := func(name, dir string, isMentioned bool, lines ...string) {
		add(name, dir, isMentioned, hosttest.Files{etcdUnit: serviceOf(lines...)})
	}
	for name, exec := range map[string]string{
		"flag":               "/usr/bin/etcd --data-dir /data/etcd",
		"env":                "/usr/bin/env ETCD_DATA_DIR=/data/etcd /opt/etcd/etcd",
		"wrapper":            "/usr/bin/numactl -N 0 /usr/sbin/etcd --data-dir /data/etcd",
		"export":             "/bin/sh -c 'export ETCD_DATA_DIR=/data/etcd; exec /opt/etcd/etcd'",
		"cd":                 "/bin/sh -ec 'cd /data && exec etcd --data-dir etcd'",
		"runuser":            "/sbin/runuser -u etcd -- /usr/bin/etcd --data-dir=/data/etcd",
		"su":                 "/bin/su etcd -s /bin/sh -c '/usr/bin/etcd --data-dir=/data/etcd'",
		"sg":                 "/usr/bin/sg etcd -c '/usr/bin/etcd --data-dir=/data/etcd'",
		"sudo":               "/usr/bin/sudo -E -u etcd -- /usr/bin/etcd --data-dir=/data/etcd",
		"setpriv":            "/usr/bin/setpriv --reuid etcd --clear-groups -- /usr/bin/etcd --data-dir=/data/etcd",
		"start-stop-daemon":  "/sbin/start-stop-daemon --start --chuid etcd --exec /usr/bin/etcd -- --data-dir=/data/etcd",
		"comment":            "/usr/bin/etcd \\\n  --name n1 \\\n# --old \\\n  --data-dir /data/etcd",
		"volume":             "/bin/docker run --name etcd -v=/data:/d:z -e ETCD_DATA_DIR=/d/etcd " + image,
		"volume at a parent": "/bin/docker run -v /data:/d " + image + "--data-dir=/d/etcd",
		"mount":              "/bin/ctr run --mount type=bind,src=/data/etcd,dst=/d " + image + "main --data-dir=/d",
	} {
		unit(name, "/data/etcd", true, "ExecStart="+exec)
	}
	for name, exec := range map[string]string{
		"unset variable":           "/usr/bin/etcd --data-dir=${DIR}/etcd",
		"variable in the path":     "/usr/bin/etcd --data-dir=/data/${DIR}",
		"unset configuration file": "/usr/bin/etcd --config-file ${FILE}",
		"substitution":             "/bin/sh -c 'etcd --data-dir=$(cat /etc/dir)'",
		"escaped blank":            `/usr/bin/etcd --data-dir=/data\x2fetcd`,
		"colon":                    "/usr/bin/etcd --data-dir=/mnt/pci-0000:00:1f.2/etcd",
		"comma":                    "/usr/bin/etcd --data-dir /mnt/a,b/etcd",
		"relative directory":       "/usr/bin/etcd --data-dir=data",
		"no directory":             "/usr/bin/etcd",
		"chroot":                   "/usr/sbin/chroot /srv/root /usr/bin/etcd --data-dir /d",
		"named volume":             "/usr/bin/docker run -v etcd-data:/d " + image + "/usr/local/bin/etcd --data-dir /d",
		"volume of podman":         "sudo podman run --mount type=volume,source=x,target=/d " + image + "etcd --data-dir /d",
		"volume of a backup":       "/usr/bin/docker run -v etcd-backup:/d " + image + "--data-dir /d",
		"in the container":         "/usr/bin/docker run " + image + "etcd --data-dir /d",
		"container of before":      "/usr/bin/docker start -a etcd",
		"script that is not there": "/opt/etcd/start.sh",
		"name of a tool":           "/usr/bin/etcd --name snapshot --data-dir=${DIR}",
	} {
		unit(name, "/mnt/x/data", false, "ExecStart="+exec)
	}
	unit("state directory", "/var/lib/main", false, "StateDirectory=main", "ExecStart=/usr/bin/etcd --data-dir=%S/main")
	unit("variable of systemd", "/var/lib/main", false, "StateDirectory=main",
		"ExecStart=/usr/bin/etcd --data-dir=${STATE_DIRECTORY}")
	unit("root directory", "/srv/root/d", false, "RootDirectory=/srv/root", "ExecStart=/usr/bin/etcd --data-dir /d")
	unit("home directory", "/home/etcd/default.etcd", false, "WorkingDirectory=~", "ExecStart=/usr/bin/etcd")
	unit("missing environment file", "/data/etcd", false, "EnvironmentFile=-/etc/etcd.env", "ExecStart=/usr/bin/etcd")
	unit("specifier", "/data/1", true, "ExecStart=/usr/bin/etcd --data-dir=/data/%b")
	unit("machine ID that is not there", "/data/1", true, "ExecStart=/usr/bin/etcd --data-dir=/data/%m")
	unit("percent sign", "/data/100%b", true, "ExecStart=/usr/bin/etcd --data-dir=/data/100%%b")
	unit("variable of the unit", "/data/1", true, "Environment=A=/data/1",
		"ExecStart=/bin/sh -c 'D=x; etcd --name=$$D --data-dir=$${A}'")
	unit("blank", "/data/a b", true, `Environment="ETCD_DATA_DIR=/data/a b"`, "ExecStart=/usr/bin/etcd")
	unit("default directory", "/data/n1.etcd", true, "WorkingDirectory=/data", "ExecStart=/usr/sbin/etcd --name n1")
	unit("bind", "/srv/etcd/main", true, "BindPaths=-/srv/etcd:/var/lib/etcd:rbind",
		"ExecStart=/usr/bin/etcd --data-dir /var/lib/etcd/main")
	unit("engine that follows the log", "/data/etcd", true,
		"ExecStartPre=/usr/bin/docker run -d -v /data/etcd:/d "+image, "ExecStart=docker logs -f etcd")
	unit("engine that follows the log of a named volume", "/mnt/x/data", false,
		"ExecStartPre=/usr/bin/docker run -d -v v:/d "+image, "ExecStart=docker logs -f etcd")
	add("configuration file in the working directory", "/data/etcd", false, hosttest.Files{
		etcdUnit:             serviceOf("WorkingDirectory=/etc/etcd", "ExecStart=/usr/bin/etcd --config-file etcd.yml"),
		"/etc/etcd/etcd.yml": "data-dir: /data/etcd\n",
	})
	add("configuration file in a volume", "/data/etcd", true, hosttest.Files{
		etcdUnit:          serviceOf("ExecStart=docker run -v /etc/x:/c -v /data:/d " + image + "--config-file=/c/etcd.yml"),
		"/etc/x/etcd.yml": "data-dir: /d/etcd\n",
	})
	add("environment files by a pattern", "/data/b", true, hosttest.Files{
		etcdUnit:            serviceOf("EnvironmentFile=/etc/etcd.d/*.env", "ExecStart=/usr/bin/etcd"),
		"/etc/etcd.d/a.env": "ETCD_DATA_DIR=/data/a\n", "/etc/etcd.d/b.env": "ETCD_DATA_DIR=/data/b\n",
	})
	add("unreadable environment files", "/data/b", false, hosttest.Files{
		etcdUnit: serviceOf("EnvironmentFile=-/etc/etcd.d/*.env", "ExecStart=/usr/bin/etcd"), "/etc/etcd.d": hosttest.Loop,
	})
	add("arguments on several lines", "/data/etcd", true, hosttest.Files{
		etcdUnit:            serviceOf("EnvironmentFile=-/etc/default/etcd", "ExecStart=/usr/bin/etcd $DAEMON_ARGS"),
		"/etc/default/etcd": "DAEMON_ARGS=\"--name n1\n --data-dir /data/etcd\"\n",
	})
	add("sourced file", "/data/etcd", true, hosttest.Files{
		etcdUnit: serviceOf("Environment=ETCD_DATA_DIR=/old",
			"ExecStart=/bin/bash -c '. /etc/etcd.env;/usr/bin/etcd'"),
		"/etc/etcd.env": "ETCD_DATA_DIR=/data/etcd\n",
	})
	add("script with a file", "/data/etcd", true, hosttest.Files{
		etcdUnit:          serviceOf("ExecStart=/opt/etcd/start"),
		"/opt/etcd/start": "#!/bin/sh\n. /etc/x.env\nexec etcd\n", "/etc/x.env": "ETCD_DATA_DIR=/data/etcd\n",
	})
	add("drop-in for a prefix of the name", "/data/n1", true, hosttest.Files{
		"/etc/systemd/system/etcd-main.service":      serviceOf("ExecStart=/usr/bin/etcd --data-dir=${DIR}"),
		"/etc/systemd/system/etcd-.service.d/x.conf": serviceOf("Environment=DIR=/data/n1"),
	})
	add("drop-in for all services", "/data/n1", true, hosttest.Files{
		etcdUnit:                               serviceOf("ExecStart=/usr/bin/etcd --data-dir=${DIR}"),
		"/etc/systemd/system/service.d/x.conf": serviceOf("Environment=DIR=/data/n1"),
	})
	add("mask", "/srv/etcd", true, hosttest.Files{
		etcdUnit: "", "/usr/lib/systemd/system/etcd.service": serviceOf("ExecStart=/usr/bin/etcd --data-dir /srv/etcd"),
	})
	add("configuration file of a snap", "/data/etcd", true, hosttest.Files{
		"/etc/systemd/system/snap.etcd.etcd.service": serviceOf("ExecStart=/usr/bin/snap run etcd"),
		"/var/snap/etcd/common/etcd.conf.yml":        "data-dir: /data/etcd\n",
	})
	add("section that systemd does not read", "/data/etcd", false, hosttest.Files{
		etcdUnit: "[Service] Environment=ETCD_PASSWORD=x\nExecStart=/usr/bin/etcd\n",
	})
	for _, dir := range []string{"/run/systemd/generator", "/etc/systemd/system"} {
		add("disk that is not mounted, "+dir, "/mnt/x/data", false, hosttest.Files{
			etcdUnit:                         serviceOf("ExecStart=/usr/bin/etcd --data-dir=/srv/etcd-disk/data"),
			dir + "/srv-etcd\\x2ddisk.mount": "[Mount]\n",
		})
	}
	add("link to a disk that is not mounted", "/mnt/x/data", false, hosttest.Files{
		etcdUnit:    serviceOf("ExecStart=/usr/bin/etcd --data-dir=/opt/etcd/data"),
		"/opt/etcd": "-> /srv/disk/etcd", "/run/systemd/generator/srv-disk.mount": "[Mount]\n",
	})
	add("disk below the directory of k3s that is not mounted", "/mnt/x/data", false, hosttest.Files{
		k3sUnit:            serviceOf("ExecStart=/usr/local/bin/k3s server --data-dir=/srv/k3s"),
		"/srv/k3s/agent/x": "x",
		"/etc/systemd/system/srv-k3s-server-db.mount": "[Mount]\n",
	})
	addTemplates(add)
	addPrograms(add)
	return ways
}

// addTemplates adds the ways of templates.
func addTemplates(add func(name, dir string, isMentioned bool, files hosttest.Files)) {
	const dropIn = "/etc/systemd/system/etcd@n1.service.d/x.conf"
	plain := serviceOf("ExecStart=/usr/bin/etcd --data-dir=/data/%i")
	byVariable := serviceOf("ExecStart=/usr/bin/etcd --data-dir=${DIR}")
	link := "/etc/systemd/system/multi-user.target.wants/etcd@n1.service"
	byFile := func(line string) string { return serviceOf(line, "ExecStart=/usr/bin/etcd") }
	for name, files := range map[string]hosttest.Files{
		"template":             {template: plain},
		"template, unescaped":  {template: serviceOf("ExecStart=/usr/bin/etcd --data-dir=/data/%I")},
		"template with a link": {template: plain, link: "-> " + template},
		"template with a file": {
			template: byFile("EnvironmentFile=/etc/etcd/%i.env"), "/etc/etcd/n1.env": "ETCD_DATA_DIR=/data/n1\n",
		},
		"template with a configuration file": {
			template:                serviceOf("ExecStart=/usr/bin/etcd --config-file=/etc/etcd/%i/etcd.yml"),
			"/etc/etcd/n1/etcd.yml": "data-dir: /data/n1\n",
		},
		"template with a working directory": {
			template: serviceOf("WorkingDirectory=/data/%i", "ExecStart=/usr/bin/etcd --data-dir=."),
		},
		"template with a drop-in": {
			template: byFile(""), "/run/systemd/system/etcd@.service.d/x.conf": serviceOf("Environment=ETCD_DATA_DIR=/data/%i"),
		},
		"instance with a drop-in": {template: byVariable, dropIn: serviceOf("Environment=DIR=/data/n1")},
	} {
		add(name, "/data/n1", true, files)
	}
	add("instance with an unset variable", "/data/n1", false, hosttest.Files{template: byVariable, link: "-> " + template})
}

// addPrograms adds the ways of k3s and RKE2.
func addPrograms(add func(name, dir string, isMentioned bool, files hosttest.Files)) {
	k3s := func(flags string) string { return serviceOf("ExecStart=/usr/local/bin/k3s server " + flags) }
	for name, files := range map[string]hosttest.Files{
		"k3s, flag":          {k3sUnit: k3s("--data-dir /srv/k3s")},
		"k3s, short flag":    {k3sUnit: k3s("-d /srv/k3s")},
		"k3s, settings file": {k3sUnit: k3s("-c=/etc/k3s.yaml"), "/etc/k3s.yaml.d/10.YAML": "d: /srv/k3s\n"},
		"k3s, file in a variable": {
			k3sUnit:         serviceOf("Environment=K3S_CONFIG_FILE=/etc/k3s.yaml", "ExecStart=/usr/local/bin/k3s server"),
			"/etc/k3s.yaml": "data-dir: /srv/k3s\n",
		},
		"k3s, default file": {"/etc/rancher/k3s/config.yaml": "data-dir: /srv/k3s\n"},
		"k3s, drop-in":      {"/etc/rancher/k3s/config.yaml.d/10.yaml": "data-dir: /srv/k3s\n"},
		"k3s, variable":     {k3sUnit: serviceOf("Environment=K3S_DATA_DIR=/srv/k3s", "ExecStart=/opt/start.sh")},
		"k3s, argument":     {k3sUnit: k3s("--etcd-arg=data-dir=" + k3sEtcd)},
		"k3s, argument of before": {
			"/var/lib/rancher/k3s/server/db/etcd/config": "name: n1\ndata-dir: " + k3sEtcd + "\n",
		},
		"RKE2, variable": {
			"/usr/local/lib/systemd/system/rke2-server.service": serviceOf("EnvironmentFile=-/etc/default/%N",
				"ExecStart=/usr/local/bin/rke2 server"),
			"/etc/default/rke2-server": "RKE2_DATA_DIR=/srv/k3s\n",
		},
	} {
		add(name, k3sEtcd, true, files)
	}
	for name, flags := range map[string]string{
		"k3s, network": "--config=https://example.com/k3s", "k3s, home directory": "--data-dir ~/k3s",
		"k3s, unset variable": "--data-dir=${WHERE} --config=${WHAT}",
	} {
		add(name, "/mnt/k3s/server/db/etcd", false, hosttest.Files{k3sUnit: k3s(flags)})
	}
}

// TestStoppedWays has a stopped member for each way. The host is never without etcd: its directory
// is found, or the host is unknown. A search of the local disks finds each.
func TestStoppedWays(t *testing.T) {
	const segment = "/member/wal/0000000000000000-0000000000000000.wal"
	head := string(walHead(t))
	for name, way := range stoppedWays() {
		t.Run(name, func(t *testing.T) {
			files := hosttest.Files{way.dir + segment: head}
			maps.Copy(files, way.files)
			root := hosttest.New(t, files)
			findings := New(hostfs.Root(root), nil).Detect()
			if way.isMentioned {
				require.Empty(t, findings.Unknown)
				require.Len(t, findings.Found, 1)
				require.Contains(t, findings.Found[0].Where, way.dir)
				require.Equal(t, path.Join(root, way.dir), findings.Found[0].Config.DataDir)
				require.NotNil(t, findings.Found[0].Stored)
			} else {
				require.Empty(t, findings.Found)
				require.Len(t, findings.Unknown, 1)
				require.Contains(t, findings.Unknown[0], "may start etcd, and does not tell where its data is")
			}
			findings = detectWithSearch(t, root)
			require.Equal(t, way.isMentioned, len(findings.Data) == 0)
			for _, data := range findings.Data {
				require.Equal(t, way.dir, data.Dir)
				require.NotEmpty(t, data.Starter)
			}
		})
	}
}
