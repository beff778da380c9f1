package etcddetect_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

// TestStoppedUnit runs on a host with the data of a stopped member and a unit that names its
// directory in some way. If the way is not supported, the unit is unknown.
func TestStoppedUnit(t *testing.T) {
	const image = "quay.io/coreos/etcd:v3.5.12 "
	exec := func(command string) string { return service("ExecStart=" + command) }
	for name, c := range map[string]struct {
		unit string
		// dir is the data directory.
		dir     string
		more    hosttest.Files
		unknown string
	}{
		"state directory by a specifier": {
			unit: service("StateDirectory=main", "ExecStart=/usr/bin/etcd --data-dir=%S/main"), dir: "/var/lib/main",
		},
		"state directory by its variable": {
			unit: service("StateDirectory=main", "ExecStart=/usr/bin/etcd --data-dir=${STATE_DIRECTORY}"), dir: "/var/lib/main",
		},
		"unresolved specifier": {
			unit: exec("/usr/bin/etcd --data-dir=/data/%b"), dir: "/data/1", unknown: "its data directory depends on %b",
		},
		"machine ID that is not there": {
			unit: exec("/usr/bin/etcd --data-dir=/data/%m"), dir: "/data/1", unknown: "its data directory depends on %m",
		},
		"percent sign": {unit: exec("/usr/bin/etcd --data-dir=/data/100%%b"), dir: "/data/100%b"},
		"unset variable": {
			unit: exec("/usr/bin/etcd --data-dir=${DIR}/etcd"), dir: "/data/etcd",
			unknown: "its data directory depends on $DIR, which its files do not set; set its data directory",
		},
		"configuration file in the working directory": {
			unit: service("WorkingDirectory=/etc/etcd", "ExecStart=/usr/bin/etcd --config-file etcd.yml"), dir: "/data/etcd",
			more: hosttest.Files{"/etc/etcd/etcd.yml": "data-dir: /data/etcd\n"},
		},
		"unset configuration file": {
			unit: exec("/usr/bin/etcd --config-file ${FILE}"), dir: "/data/etcd", unknown: "depends on $FILE",
		},
		"environment files by a pattern": {
			unit: service("EnvironmentFile=/etc/etcd.d/*.env", "ExecStart=/usr/bin/etcd"), dir: "/data/b",
			more: hosttest.Files{"/etc/etcd.d/a.env": "ETCD_DATA_DIR=/data/a\n", "/etc/etcd.d/b.env": "ETCD_DATA_DIR=/data/b\n"},
		},
		"arguments on several lines": {
			unit: service("EnvironmentFile=-/etc/default/etcd", "ExecStart=/usr/bin/etcd $DAEMON_ARGS"), dir: "/data/etcd",
			more: hosttest.Files{"/etc/default/etcd": "DAEMON_ARGS=\"--name n1\n --data-dir /data/etcd\"\n"},
		},
		"unreadable environment files": {
			unit: service("EnvironmentFile=-/etc/etcd.d/*.env", "ExecStart=/usr/bin/etcd"), dir: "/data/etcd",
			more: hosttest.Files{"/etc/etcd.d": hosttest.Loop}, unknown: "environment files /etc/etcd.d/*.env: ",
		},
		"RootDirectory": {
			unit: service("RootDirectory=/srv/root", "ExecStart=/usr/bin/etcd --data-dir /data"), dir: "/srv/root/data",
			unknown: "it has another root directory (RootDirectory=)",
		},
		"chroot": {
			unit: exec("/usr/sbin/chroot /srv/root /usr/bin/etcd --data-dir /data"), dir: "/srv/root/data",
			unknown: "it has another root directory (chroot)",
		},
		"BindPaths": {
			unit: service("BindPaths=-/srv/etcd:/var/lib/etcd:rbind", "ExecStart=/usr/bin/etcd --data-dir /var/lib/etcd/main"),
			dir:  "/srv/etcd/main",
		},
		"home directory": {
			unit: service("User=etcd", "WorkingDirectory=~", "ExecStart=/usr/bin/etcd"), dir: "/home/etcd/default.etcd",
			unknown: "its user's home directory",
		},
		"no directory": {
			unit: service("EnvironmentFile=-/etc/etcd.env", "ExecStart=/usr/bin/etcd"), dir: "/data/etcd",
			unknown: "its files do not set a data directory",
		},
		"default in the working directory": {
			unit: service("WorkingDirectory=/data", "ExecStart=/usr/sbin/etcd --name n1"), dir: "/data/n1.etcd",
		},
		"env":     {unit: exec("/usr/bin/env ETCD_DATA_DIR=/data/etcd /opt/etcd/etcd"), dir: "/data/etcd"},
		"wrapper": {unit: exec("/usr/bin/numactl -N 0 /usr/sbin/etcd --data-dir /data/etcd"), dir: "/data/etcd"},
		"shell with export": {
			unit: exec("/bin/sh -c 'export ETCD_DATA_DIR=/data/etcd; exec /opt/etcd/etcd'"), dir: "/data/etcd",
		},
		"shell with cd": {
			unit: exec("/bin/sh -ec 'cd /data && exec etcd --data-dir etcd'"), dir: "/data/etcd",
			unknown: "a shell runs before it, and its data directory depends on the working directory",
		},
		"shell with a sourced file": {
			unit: service("Environment=ETCD_DATA_DIR=/old", "ExecStart=/bin/bash -c '. /etc/etcd.env;/usr/bin/etcd'"),
			dir:  "/data/etcd", more: hosttest.Files{"/etc/etcd.env": "ETCD_DATA_DIR=/data/etcd\n"},
			unknown: "a shell runs before it and may set a data directory other than /old",
		},
		"shell with a substitution": {
			unit: exec("/bin/sh -c 'etcd --data-dir=$(cat /etc/dir)'"), dir: "/data/etcd",
			unknown: "its data directory depends on output",
		},
		"container with a variable": {
			unit: exec("/bin/docker run --name etcd -v=/srv/e:/data:z -e ETCD_DATA_DIR=/data/etcd " + image), dir: "/srv/e/etcd",
		},
		"ctr with a name after the image": {
			unit: exec("/bin/ctr run --mount type=bind,src=/srv/e,dst=/data " + image + "main --data-dir=/data"), dir: "/srv/e",
		},
		"docker volume": {
			unit: exec("/usr/bin/docker run --name etcd -v etcd-data:/data " + image + "/usr/local/bin/etcd --data-dir /data"),
			dir:  "/var/lib/docker/volumes/etcd-data/_data",
		},
		"podman volume with sudo": {
			unit: exec("sudo podman run --mount type=volume,source=etcd-data,target=/data " + image + "etcd --data-dir /data"),
			dir:  "/var/lib/containers/storage/volumes/etcd-data/_data",
		},
		"volume in another place": {
			unit: exec("/usr/bin/docker run -v etcd-data:/data " + image + "etcd --data-dir /data"),
			dir:  "/mnt/docker/volumes/etcd-data/_data",
			unknown: "its data is in a volume of the container engine, and the volume is not at " +
				"/var/lib/docker/volumes/etcd-data/_data",
		},
		"data in the container": {
			unit: exec("/usr/bin/docker run " + image + "etcd --data-dir /data"), dir: "/var/lib/docker/overlay2/1/diff/data",
			unknown: "its data is in the container",
		},
		"drop-in for all services": {
			unit: exec("/usr/bin/etcd --data-dir=${DIR}"), dir: "/data/n1",
			more: hosttest.Files{"/etc/systemd/system/service.d/x.conf": service("Environment=DIR=/data/n1")},
		},
		"masked by an empty file": {
			dir: "/srv/etcd", more: hosttest.Files{
				"/usr/lib/systemd/system/etcd.service": exec("/usr/bin/etcd --data-dir /srv/etcd"),
			},
		},
		"comment in a command": {
			unit: exec("/usr/bin/etcd \\\n  --name n1 \\\n# --old \\\n  --data-dir /srv/etcd"), dir: "/srv/etcd",
			more: hosttest.Files{
				"/etc/systemd/system/etcd-backup.service": exec("/bin/bash -c 'echo " + strings.Repeat("x", 3000) + "'"),
			},
		},
		"invalid unit file": {
			unit: "[Service] Environment=ETCD_PASSWORD=x\nExecStart=/usr/bin/etcd\n", dir: "/data/etcd",
			unknown: "systemd unit etcd.service: unit file " + unitFile + ": line 1: the section header",
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := hosttest.Files{unitFile: c.unit, c.dir + member: "x"}
			for file, text := range c.more {
				host[file] = text
			}
			if c.unknown != "" {
				requireStopped(t, stoppedCase{host: host, unknown: []string{c.unknown}})
				return
			}
			where := "data directory " + c.dir + " of systemd unit etcd.service, which does not run"
			requireStopped(t, stoppedCase{host: host, where: []string{where}})
		})
	}
}

func TestStoppedUnitNames(t *testing.T) {
	for name, c := range map[string]stoppedCase{
		"drop-in for a prefix of the name": {
			host: hosttest.Files{
				"/etc/systemd/system/etcd-main.service":      service("ExecStart=/usr/bin/etcd --data-dir=${DIR}"),
				"/etc/systemd/system/etcd-.service.d/x.conf": service("Environment=DIR=/data/n1"), "/data/n1" + member: "x",
			},
			where: []string{"data directory /data/n1 of systemd unit etcd-main.service, which does not run"},
		},
		"script with etcd's variables": {
			host: hosttest.Files{
				unitFile:        service("EnvironmentFile=/etc/etcd.env", "ExecStart=/opt/etcd/start.sh"),
				"/etc/etcd.env": "ETCD_DATA_DIR=/data/etcd\n", "/data/etcd" + member: "x",
			},
			where: []string{"data directory /data/etcd, named by ETCD_DATA_DIR of systemd unit etcd.service"},
		},
		"script with unreadable data": {
			host: hosttest.Files{
				unitFile:     service("Environment=ETCD_DATA_DIR=/data/etcd", "ExecStart=/opt/etcd/start.sh"),
				"/data/etcd": hosttest.Loop,
			},
			unknown: []string{"systemd unit etcd.service: the data directory /data/etcd: "},
		},
	} {
		t.Run(name, func(t *testing.T) { requireStopped(t, c) })
	}
}

func TestStoppedInstance(t *testing.T) {
	const template, wants = "/etc/systemd/system/etcd@.service", "/etc/systemd/system/multi-user.target."
	plain := service("ExecStart=/usr/bin/etcd --data-dir=/data/%i")
	byVariable := service("ExecStart=/usr/bin/etcd --data-dir=${DIR}")
	for name, c := range map[string]struct {
		template string
		more     hosttest.Files
		unknown  string
	}{
		"by its data":            {template: plain, more: hosttest.Files{"/data/other/a": ""}},
		"by its data, unescaped": {template: service("ExecStart=/usr/bin/etcd --data-dir=/data/%I")},
		"by its environment file, unescaped": {
			template: service("EnvironmentFile=/etc/etcd/%I.env", "ExecStart=/usr/bin/etcd"),
			more:     hosttest.Files{"/etc/etcd/n1.env": "ETCD_DATA_DIR=/data/n1\n"},
		},
		"by a link": {template: plain, more: hosttest.Files{wants + "wants/etcd@n1.service": "-> " + template}},
		"by a drop-in": {template: byVariable, more: hosttest.Files{
			"/etc/systemd/system/etcd@n1.service.d/x.conf": service("Environment=DIR=/data/n1"),
		}},
		"by its environment file": {
			template: service("EnvironmentFile=/etc/etcd/%i.env", "ExecStart=/usr/bin/etcd"),
			more:     hosttest.Files{"/etc/etcd/n1.env": "ETCD_DATA_DIR=/data/n1\n"},
		},
		"by its configuration file": {
			template: service("ExecStart=/usr/bin/etcd --config-file=/etc/etcd/%i/etcd.yml"),
			more:     hosttest.Files{"/etc/etcd/n1/etcd.yml": "data-dir: /data/n1\n"},
		},
		"by its working directory": {template: service("WorkingDirectory=/data/%i", "ExecStart=/usr/bin/etcd --data-dir=.")},
		"drop-in for the template": {
			template: service("ExecStart=/usr/bin/etcd"),
			more: hosttest.Files{
				"/run/systemd/system/etcd@.service.d/x.conf": service("Environment=ETCD_DATA_DIR=/data/%i"),
			},
		},
		"unset variable": {
			template: byVariable,
			more:     hosttest.Files{wants + "requires/etcd@n1.service": "-> " + template, "/data/n1" + member: "x"},
			unknown:  "systemd unit etcd@n1.service: its data directory depends on $DIR",
		},
		"unreadable directory": {
			template: plain, more: hosttest.Files{"/data": hosttest.Loop},
			unknown: "the instances of systemd unit etcd@.service: ",
		},
		"unreadable links": {
			template: plain, more: hosttest.Files{wants + "wants": hosttest.Loop}, unknown: "the unit files: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := stoppedCase{host: hosttest.Files{template: c.template}}
			for file, text := range c.more {
				want.host[file] = text
			}
			if c.unknown != "" {
				want.unknown = []string{c.unknown}
			} else {
				want.host["/data/n1"+member] = "x"
				want.where = []string{"data directory /data/n1 of systemd unit etcd@n1.service, which does not run"}
			}
			requireStopped(t, want)
		})
	}
}

// TestStoppedInstanceIsEscaped: systemd reads a dash in the name of an instance as a slash.
func TestStoppedInstanceIsEscaped(t *testing.T) {
	requireStopped(t, stoppedCase{
		host: hosttest.Files{
			"/etc/systemd/system/etcd@.service": service("ExecStart=/usr/bin/etcd --data-dir=/data/%I"),
			"/data/a-b" + member:                "x",
		},
		where: []string{`data directory /data/a-b of systemd unit etcd@a\x2db.service, which does not run`},
	})
}

// TestUnitWithoutMember has units of hosts without a member. None of them may keep a host
// unknown.
func TestUnitWithoutMember(t *testing.T) {
	const image = "quay.io/coreos/etcd:v3.5.12 "
	for name, command := range map[string]string{
		"restart":                   "/usr/bin/systemctl restart etcd",
		"restart in a shell":        "/bin/sh -c 'systemctl stop etcd && tar -C /var/lib -cf /backup.tar etcd'",
		"backup":                    "/usr/bin/etcdctl --endpoints=${ENDPOINTS} snapshot save ${BACKUP_DIR}/%b.db",
		"backup in a shell":         "/bin/bash -c 'cd /backup; . /etc/etcd.env; etcdctl snapshot save $(date +%%F).db'",
		"backup in a container":     "/bin/docker run --rm -v backup:/backup " + image + "etcdctl snapshot save /backup/db",
		"backup by an entry point":  "/bin/podman run --entrypoint=/bin/etcdctl " + image + "--endpoints=x snapshot save /b",
		"backup with ctr":           "/usr/bin/ctr run --rm " + image + "backup /usr/local/bin/etcdctl defrag",
		"command in a container":    "/usr/bin/docker exec etcd etcdctl defrag",
		"shell in a container":      "/usr/bin/docker run " + image + "sh -c 'etcdutl defrag --data-dir /data'",
		"logs":                      "/usr/bin/journalctl -fu etcd",
		"gateway":                   "/usr/bin/etcd gateway start --endpoints=192.0.2.12:2379",
		"gateway in a container":    "/usr/bin/docker run " + image + "etcd grpc-proxy start",
		"script":                    "/opt/etcd/backup.sh ${NOTHING}",
		"removed member":            "/usr/bin/etcd --data-dir=/data/gone",
		"removed, with a container": "/usr/bin/docker run -v /data/gone:/data " + image + "--data-dir=/data",
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"etcd-x.service", "etcd-x@.service"} {
				unit := service("EnvironmentFile=-/etc/etcd-x.env", "ExecStart="+command)
				findings := detect(t, hosttest.New(t, hosttest.Files{"/etc/systemd/system/" + file: unit}))
				require.Empty(t, findings.Found)
				require.Empty(t, findings.Unknown)
				for _, note := range findings.Notes[1:] { // the first is about systemd
					require.Contains(t, note, "/data/gone holds no member")
				}
			}
		})
	}
	t.Run("packaged template", func(t *testing.T) {
		unit := service("ExecStart=/usr/bin/etcd --data-dir=/data/%i")
		require.Empty(t, detect(t, hosttest.New(t, hosttest.Files{"/usr/lib/systemd/system/etcd@.service": unit})).Unknown)
	})
	t.Run("backup with the variables of a member", func(t *testing.T) {
		s := detectOne(t, hosttest.New(t, hosttest.Files{
			"/etc/systemd/system/etcd-backup.service": service("EnvironmentFile=/etc/etcd.env", "ExecStart=/opt/backup.sh"),
			unitFile:        service("EnvironmentFile=/etc/etcd.env", "ExecStart=/usr/bin/etcd"),
			"/etc/etcd.env": "ETCD_DATA_DIR=/var/lib/etcd\n", "/var/lib/etcd" + member: "x",
		}))
		require.Equal(t, "etcd.service", s.Unit)
	})
}
