package etcddetect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

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
		"removed, another user":     "/sbin/runuser -u etcd -- /usr/bin/etcd --data-dir=/data/gone",
		"removed, user with a text": "/bin/su etcd -s /bin/sh -c '/usr/bin/etcd --data-dir=/data/gone'",
		"removed, with a container": "/usr/bin/docker run -v /data/gone:/data " + image + "--data-dir=/data",
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"etcd-x.service", "etcd-x@.service"} {
				unit := service("EnvironmentFile=-/etc/etcd-x.env", "ExecStart="+command)
				findings := detect(t, hosttest.New(t, hosttest.Files{"/etc/systemd/system/" + file: unit}))
				require.Empty(t, findings.Found)
				require.Empty(t, findings.Unknown)
				for _, note := range findings.Notes {
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
