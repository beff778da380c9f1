package host_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAStoppedMemberIsNotMissed is the host of a stopped member whose unit names its data in some way. Wherever that is not
// understood, the host is unknown.
func TestAStoppedMemberIsNotMissed(t *testing.T) {
	const unit, data = "/etc/systemd/system/etcd.service", "/member/snap/db"
	service := func(text string) string { return "[Service]\n" + text + "\n" }
	for name, c := range map[string]struct {
		host    files
		where   string
		unknown string
	}{
		"a specifier for the state directory": {
			host:  files{unit: service("StateDirectory=etcd-main\nExecStart=/usr/bin/etcd --data-dir=%S/etcd-main"), "/var/lib/etcd-main" + data: "x"},
			where: "data directory /var/lib/etcd-main of systemd unit etcd.service, which does not run",
		},
		"the state directory's variable": {
			host:  files{unit: service("StateDirectory=etcd-main\nExecStart=/usr/bin/etcd --data-dir=${STATE_DIRECTORY}"), "/var/lib/etcd-main" + data: "x"},
			where: "data directory /var/lib/etcd-main of systemd unit etcd.service, which does not run",
		},
		"a specifier that only systemd knows": {
			host:    files{unit: service("ExecStart=/usr/bin/etcd --data-dir=/data/%b"), "/data/1" + data: "x"},
			unknown: "where its data is depends on %b",
		},
		"a percent sign": {
			host:  files{unit: service("ExecStart=/usr/bin/etcd --data-dir=/data/100%%b"), "/data/100%b" + data: "x"},
			where: "data directory /data/100%b of systemd unit etcd.service, which does not run",
		},
		"a variable that nothing sets": {
			host:    files{unit: service("ExecStart=/usr/bin/etcd --data-dir=${DIR}/etcd"), "/data/etcd" + data: "x"},
			unknown: "where its data is depends on $DIR, which its files do not tell; name its data directory",
		},
		"a configuration file that a variable names": {
			host:    files{unit: service("ExecStart=/usr/bin/etcd --config-file ${FILE}"), "/data/etcd" + data: "x"},
			unknown: "depends on $FILE",
		},
		"environment files by a pattern": {
			host:  files{unit: service("EnvironmentFile=/etc/etcd.d/*.env\nExecStart=/usr/bin/etcd"), "/etc/etcd.d/a.env": "ETCD_DATA_DIR=/data/a\n", "/etc/etcd.d/b.env": "ETCD_DATA_DIR=/data/b\n", "/data/b" + data: "x"},
			where: "data directory /data/b of systemd unit etcd.service, which does not run",
		},
		"environment files in a directory that cannot be listed": {
			host:    files{unit: service("EnvironmentFile=-/etc/etcd.d/*.env\nExecStart=/usr/bin/etcd"), "/etc/etcd.d": loop},
			unknown: "environment files /etc/etcd.d/*.env: ",
		},
		"a root directory": {
			host:    files{unit: service("RootDirectory=/srv/root\nExecStart=/usr/bin/etcd --data-dir /data"), "/srv/root/data" + data: "x"},
			unknown: "it has a root directory of its own (RootDirectory=)",
		},
		"chroot": {
			host:    files{unit: service("ExecStart=/usr/sbin/chroot /srv/root /usr/bin/etcd --data-dir /data"), "/srv/root/data" + data: "x"},
			unknown: "it has a root directory of its own (chroot)",
		},
		"a directory under another name": {
			host:  files{unit: service("BindPaths=-/srv/etcd:/var/lib/etcd:rbind\nExecStart=/usr/bin/etcd --data-dir /var/lib/etcd/main"), "/srv/etcd/main" + data: "x"},
			where: "data directory /srv/etcd/main of systemd unit etcd.service, which does not run",
		},
		"the home directory": {
			host:    files{unit: service("User=etcd\nWorkingDirectory=~\nExecStart=/usr/bin/etcd"), "/home/etcd/default.etcd" + data: "x"},
			unknown: "its user's home directory",
		},
		"no directory at all": {
			host:    files{unit: service("EnvironmentFile=-/etc/etcd.env\nExecStart=/usr/bin/etcd"), "/data/etcd" + data: "x"},
			unknown: "its files name no data directory",
		},
		"etcd's own directory in the working directory": {
			host:  files{unit: service("WorkingDirectory=/data\nExecStart=/usr/sbin/etcd --name n1"), "/data/n1.etcd" + data: "x"},
			where: "data directory /data/n1.etcd of systemd unit etcd.service, which does not run",
		},
		"env": {
			host:  files{unit: service("ExecStart=/usr/bin/env ETCD_DATA_DIR=/data/etcd /opt/etcd/etcd"), "/data/etcd" + data: "x"},
			where: "data directory /data/etcd of systemd unit etcd.service, which does not run",
		},
		"a wrapper": {
			host:  files{unit: service("ExecStart=/usr/bin/numactl -N 0 /usr/sbin/etcd --data-dir /data/etcd"), "/data/etcd" + data: "x"},
			where: "data directory /data/etcd of systemd unit etcd.service, which does not run",
		},
		"a shell that exports": {
			host:  files{unit: service("ExecStart=/bin/sh -c 'export ETCD_DATA_DIR=/data/etcd; exec /opt/etcd/etcd'"), "/data/etcd" + data: "x"},
			where: "data directory /data/etcd of systemd unit etcd.service, which does not run",
		},
		"a shell that goes elsewhere": {
			host:    files{unit: service("ExecStart=/bin/sh -ec 'cd /data && exec etcd --data-dir etcd'"), "/data/etcd" + data: "x"},
			unknown: "a shell runs before it, and its data directory depends on the working directory",
		},
		"a shell that reads variables": {
			host:    files{unit: service("Environment=ETCD_DATA_DIR=/old\nExecStart=/bin/bash -c '. /etc/etcd.env;/usr/bin/etcd'"), "/etc/etcd.env": "ETCD_DATA_DIR=/data/etcd\n", "/data/etcd" + data: "x"},
			unknown: "a shell runs before it and may set another data directory than /old",
		},
		"a shell that asks a command": {
			host:    files{unit: service("ExecStart=/bin/sh -c 'etcd --data-dir=$(cat /etc/dir)'"), "/data/etcd" + data: "x"},
			unknown: "where its data is depends on output",
		},
		"a container's variable": {
			host:  files{unit: service("ExecStart=/usr/bin/docker run --name etcd -v=/srv/e:/data:z -e ETCD_DATA_DIR=/data/etcd quay.io/coreos/etcd:v3.5.12"), "/srv/e/etcd" + data: "x"},
			where: "data directory /srv/e/etcd of systemd unit etcd.service, which does not run",
		},
		"a container of ctr's, which has its name after the image": {
			host:  files{unit: service("ExecStart=/usr/bin/ctr run --mount type=bind,src=/srv/e,dst=/data quay.io/coreos/etcd:v3.5.12 main --data-dir=/data"), "/srv/e" + data: "x"},
			where: "data directory /srv/e of systemd unit etcd.service, which does not run",
		},
		"a container's volume": {
			host:  files{unit: service("ExecStart=/usr/bin/docker run --name etcd -v etcd-data:/data quay.io/coreos/etcd:v3.5.12 /usr/local/bin/etcd --data-dir /data"), "/var/lib/docker/volumes/etcd-data/_data" + data: "x"},
			where: "data directory /var/lib/docker/volumes/etcd-data/_data of systemd unit etcd.service, which does not run",
		},
		"podman's volume, by root's sudo": {
			host:  files{unit: service("ExecStart=/usr/bin/sudo podman run --mount type=volume,source=etcd-data,target=/data quay.io/coreos/etcd:v3.5.12 etcd --data-dir /data"), "/var/lib/containers/storage/volumes/etcd-data/_data" + data: "x"},
			where: "data directory /var/lib/containers/storage/volumes/etcd-data/_data of systemd unit etcd.service, which does not run",
		},
		"a container's volume that is elsewhere": {
			host:    files{unit: service("ExecStart=/usr/bin/docker run -v etcd-data:/data quay.io/coreos/etcd:v3.5.12 etcd --data-dir /data"), "/mnt/docker/volumes/etcd-data/_data" + data: "x"},
			unknown: "its data is in a volume of the container engine's, which is not at /var/lib/docker/volumes/etcd-data/_data",
		},
		"a container's own data": {
			host:    files{unit: service("ExecStart=/usr/bin/docker run quay.io/coreos/etcd:v3.5.12 etcd --data-dir /data"), "/var/lib/docker/overlay2/1/diff/data" + data: "x"},
			unknown: "its data is in the container",
		},
		"a drop-in for a part of the name": {
			host:  files{"/etc/systemd/system/etcd-main.service": service("ExecStart=/usr/bin/etcd --data-dir=${DIR}"), "/etc/systemd/system/etcd-.service.d/x.conf": service("Environment=DIR=/data/n1"), "/data/n1" + data: "x"},
			where: "data directory /data/n1 of systemd unit etcd-main.service, which does not run",
		},
		"a drop-in for all services": {
			host:  files{unit: service("ExecStart=/usr/bin/etcd --data-dir=${DIR}"), "/etc/systemd/system/service.d/x.conf": service("Environment=DIR=/data/n1"), "/data/n1" + data: "x"},
			where: "data directory /data/n1 of systemd unit etcd.service, which does not run",
		},
		"masked by an empty file": {
			host:  files{unit: "", "/usr/lib/systemd/system/etcd.service": service("ExecStart=/usr/bin/etcd --data-dir /srv/etcd"), "/srv/etcd" + data: "x"},
			where: "data directory /srv/etcd of systemd unit etcd.service, which does not run",
		},
		"a long line and a comment in a command": {
			host: files{
				"/etc/systemd/system/etcd-backup.service": service("ExecStart=/bin/bash -c 'echo " + strings.Repeat("x", 3000) + "'"),
				unit: service("ExecStart=/usr/bin/etcd \\\n  --name n1 \\\n# --old \\\n  --data-dir /srv/etcd"), "/srv/etcd" + data: "x",
			},
			where: "data directory /srv/etcd of systemd unit etcd.service, which does not run",
		},
		"a file that systemd refuses": {
			host:    files{unit: "[Service] Environment=ETCD_PASSWORD=x\nExecStart=/usr/bin/etcd\n", "/data/etcd" + data: "x"},
			unknown: "systemd unit etcd.service: unit file " + unit + ": line 1: it begins a section and",
		},
		"a script with etcd's variables": {
			host:  files{unit: service("EnvironmentFile=/etc/etcd.env\nExecStart=/opt/etcd/start.sh"), "/etc/etcd.env": "ETCD_DATA_DIR=/data/etcd\n", "/data/etcd" + data: "x"},
			where: "data directory /data/etcd, which ETCD_DATA_DIR of systemd unit etcd.service names",
		},
		"a script whose data cannot be looked at": {
			host:    files{unit: service("Environment=ETCD_DATA_DIR=/data/etcd\nExecStart=/opt/etcd/start.sh"), "/data/etcd": loop},
			unknown: "systemd unit etcd.service: the data directory /data/etcd: ",
		},
	} {
		t.Run(name, func(t *testing.T) { requireStopped(t, c.host, c.where, c.unknown) })
	}
}

// requireStopped requires that a host shows one stopped member, or that one thing about it is unknown.
func requireStopped(t *testing.T, host files, where, unknown string) {
	t.Helper()
	look := at(t, layOut(t, host)).Look(t.Context())
	if unknown != "" {
		require.Empty(t, look.Found)
		require.Len(t, look.Unknown, 1, "%q", look.Unknown)
		require.Contains(t, look.Unknown[0], unknown)
		return
	}
	require.Empty(t, look.Unknown)
	require.Len(t, look.Found, 1, "%q", look.Notes)
	require.Equal(t, where, look.Found[0].Where)
	require.DirExists(t, look.Found[0].Config.DataDir+"/member")
}

func TestAStoppedInstanceIsNotMissed(t *testing.T) {
	const template, data = "/etc/systemd/system/etcd@.service", "/data/n1/member/snap/db"
	plain := "[Service]\nExecStart=/usr/bin/etcd --data-dir=/data/%i\n"
	drop := "[Service]\nEnvironment=DIR=/data/n1\n"
	const where = "data directory /data/n1 of systemd unit etcd@n1.service, which does not run"
	for name, c := range map[string]struct {
		host    files
		where   string
		unknown string
	}{
		"by its data":                  {host: files{template: plain, data: "x", "/data/other/a": ""}, where: where},
		"by a link that starts it":     {host: files{template: plain, data: "x", "/etc/systemd/system/multi-user.target.wants/etcd@n1.service": "-> " + template}, where: where},
		"by its drop-in":               {host: files{template: "[Service]\nExecStart=/usr/bin/etcd --data-dir=${DIR}\n", data: "x", "/etc/systemd/system/etcd@n1.service.d/x.conf": drop}, where: where},
		"by its settings":              {host: files{template: "[Service]\nEnvironmentFile=/etc/etcd/%i.env\nExecStart=/usr/bin/etcd\n", data: "x", "/etc/etcd/n1.env": "ETCD_DATA_DIR=/data/n1\n"}, where: where},
		"by its configuration":         {host: files{template: "[Service]\nExecStart=/usr/bin/etcd --config-file=/etc/etcd/%i/etcd.yml\n", data: "x", "/etc/etcd/n1/etcd.yml": "data-dir: /data/n1\n"}, where: where},
		"by its working directory":     {host: files{template: "[Service]\nWorkingDirectory=/data/%i\nExecStart=/usr/bin/etcd --data-dir=.\n", data: "x"}, where: where},
		"with a template's drop-in":    {host: files{template: "[Service]\nExecStart=/usr/bin/etcd\n", "/run/systemd/system/etcd@.service.d/x.conf": "[Service]\nEnvironment=ETCD_DATA_DIR=/data/%i\n", data: "x"}, where: where},
		"that needs what nothing sets": {host: files{template: "[Service]\nExecStart=/usr/bin/etcd --data-dir=${DIR}\n", data: "x", "/etc/systemd/system/multi-user.target.requires/etcd@n1.service": "-> " + template}, unknown: "systemd unit etcd@n1.service: where its data is depends on $DIR"},
		"in what cannot be listed":     {host: files{template: plain, "/data": loop}, unknown: "the instances of systemd unit etcd@.service: "},
		"whose links cannot be listed": {host: files{template: plain, "/etc/systemd/system/multi-user.target.wants": loop}, unknown: "the unit files: "},
	} {
		t.Run(name, func(t *testing.T) { requireStopped(t, c.host, c.where, c.unknown) })
	}
}

// TestOrdinaryUnitsAreNoDoubt are units of hosts that hold no member: none may keep a host unknown for ever.
func TestOrdinaryUnitsAreNoDoubt(t *testing.T) {
	for name, command := range map[string]string{
		"a restart":                  "/usr/bin/systemctl restart etcd",
		"a restart by a shell":       "/bin/sh -c 'systemctl stop etcd && tar -C /var/lib -cf /backup.tar etcd'",
		"a backup":                   "/usr/bin/etcdctl --endpoints=${ENDPOINTS} snapshot save ${BACKUP_DIR}/%b.db",
		"a backup by a shell":        "/bin/bash -c 'cd /backup; . /etc/etcd.env; etcdctl snapshot save $(date +%%F).db'",
		"a backup in a container":    "/usr/bin/docker run --rm -v backup:/backup quay.io/coreos/etcd:v3.5.12 etcdctl snapshot save /backup/db",
		"a backup by an entry point": "/usr/bin/podman run --rm --entrypoint=/usr/local/bin/etcdctl quay.io/coreos/etcd:v3.5.12 --endpoints=x snapshot save /b",
		"a backup by ctr":            "/usr/bin/ctr run --rm quay.io/coreos/etcd:v3.5.12 backup /usr/local/bin/etcdctl defrag",
		"a command in a container":   "/usr/bin/docker exec etcd etcdctl defrag",
		"a shell in a container":     "/usr/bin/docker run quay.io/coreos/etcd:v3.5.12 sh -c 'etcdutl defrag --data-dir /data'",
		"its logs":                   "/usr/bin/journalctl -fu etcd",
		"a gateway":                  "/usr/bin/etcd gateway start --endpoints=192.0.2.12:2379",
		"a gateway in a container":   "/usr/bin/docker run quay.io/coreos/etcd:v3.5.12 etcd grpc-proxy start",
		"a program of one's own":     "/opt/etcd/backup.sh ${NOTHING}",
		"a member that was removed":  "/usr/bin/etcd --data-dir=/data/gone",
		"one in a container":         "/usr/bin/docker run -v /data/gone:/data quay.io/coreos/etcd:v3.5.12 --data-dir=/data",
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"etcd-x.service", "etcd-x@.service"} {
				look := at(t, layOut(t, files{"/etc/systemd/system/" + file: "[Service]\nEnvironmentFile=-/etc/etcd-x.env\nExecStart=" + command + "\n"})).Look(t.Context())
				require.Empty(t, look.Found)
				require.Empty(t, look.Unknown)
				for _, note := range look.Notes[1:] { // after that systemd was not asked
					require.Contains(t, note, "/data/gone holds no member")
				}
			}
		})
	}
	look := at(t, layOut(t, files{"/usr/lib/systemd/system/etcd@.service": "[Service]\nExecStart=/usr/bin/etcd --data-dir=/data/%i\n"})).Look(t.Context())
	require.Empty(t, look.Unknown, "a template that a package brings along")
	look = at(t, layOut(t, files{
		"/etc/systemd/system/etcd-backup.service": "[Service]\nEnvironmentFile=/etc/etcd.env\nExecStart=/opt/backup.sh\n",
		"/etc/systemd/system/etcd.service":        "[Service]\nEnvironmentFile=/etc/etcd.env\nExecStart=/usr/bin/etcd\n",
		"/etc/etcd.env":                           "ETCD_DATA_DIR=/var/lib/etcd\n", "/var/lib/etcd/member/snap/db": "x",
	})).Look(t.Context())
	require.Len(t, look.Found, 1)
	require.Equal(t, "etcd.service", look.Found[0].Unit, "not the backup, which has its variables")
}
