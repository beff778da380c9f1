package etcddetect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/hosttest"
)

// TestStarters has hosts without data of etcd, and what may start it.
func TestStarters(t *testing.T) {
	unit := func(name, command string) hosttest.Files {
		return hosttest.Files{"/etc/systemd/system/" + name: "[Service]\nExecStart=" + command}
	}
	const opaque = "its name says etcd, and its command does not tell where the data is"
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
		"shell":   {unit("etcd.service", "/bin/bash /opt/etcd/start.sh"), opaque},
		"snap":    {unit("snap.x.etcd.service", "/usr/bin/snap run etcd"), opaque},
		"version": {unit("etcd-3.5.service", "/opt/start"), opaque},
		"OpenRC":  {hosttest.Files{"/etc/init.d/etcd": "x"}, "service /etc/init.d/etcd: " + opaque},
		"runit":   {hosttest.Files{"/etc/service/etcd/run": "x"}, "service /etc/service/etcd: " + opaque},
		"supervisord": {
			hosttest.Files{"/etc/supervisor/conf.d/etcd.conf": "x"},
			"/etc/supervisor/conf.d/etcd.conf: " + opaque,
		},
		"supervised backup":    {hosttest.Files{"/etc/init.d/etcd-backup": "x", "/etc/init.d/ssh": "x"}, ""},
		"backup":               {unit("etcd-backup.service", "/opt/etcd/save.sh"), ""},
		"script of a backup":   {unit("etcd.service", "/opt/etcd-backup/run.sh"), ""},
		"etcdctl":              {unit("etcd-x.service", "/usr/bin/sudo -u etcd /usr/local/bin/etcdctl defrag"), ""},
		"backup, another user": {unit("etcd-x.service", "/sbin/runuser -u etcd -- /opt/etcd-backup/run.sh"), ""},
		"backup by su":         {unit("etcd-x.service", "/bin/su etcd -c '/opt/etcd-backup/run.sh'"), ""},
		"network": {unit("etcd-x.service",
			"/usr/bin/docker run --network etcd registry.example/etcdkeeper:v1"), ""},
		"program of system":   {unit("etcd-x.service", "/usr/bin/rsync -a --groupmap etcd /a /b"), ""},
		"logs":                {unit("etcd-x.service", "/usr/bin/crictl ps --name etcd"), ""},
		"another name":        {unit("store.service", "/opt/start.sh"), ""},
		"exporter":            {unit("etcd_exporter.service", "/usr/local/bin/etcd_exporter"), ""},
		"server without data": {unit("etcd.service", "/usr/bin/etcd --data-dir=/data"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			findings := New(hostfs.Root(hosttest.New(t, c.files)), nil).Detect(t.Context())
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

// TestUserChangers has a stopped member whose unit starts it as another user, and no member.
func TestUserChangers(t *testing.T) {
	const data = "/data/etcd"
	for name, command := range map[string]string{
		"runuser":           "/sbin/runuser -u etcd -- /usr/bin/etcd --data-dir=/data/etcd",
		"su":                "/bin/su etcd -s /bin/sh -c '/usr/bin/etcd --data-dir=/data/etcd'",
		"sg":                "/usr/bin/sg etcd -c '/usr/bin/etcd --data-dir=/data/etcd'",
		"sudo":              "/usr/bin/sudo -E -u etcd -- /usr/bin/etcd --data-dir=/data/etcd",
		"setpriv":           "/usr/bin/setpriv --reuid etcd --clear-groups -- /usr/bin/etcd --data-dir=/data/etcd",
		"start-stop-daemon": "/sbin/start-stop-daemon --start --chuid etcd --exec /usr/bin/etcd -- --data-dir=/data/etcd",
		"dollars":           "/bin/sh -c 'D=x; exec /usr/bin/etcd --name=$$D --data-dir=$${ETCD_HOME}'",
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, hosttest.Files{
				"/etc/systemd/system/etcd.service": "[Service]\nEnvironment=ETCD_HOME=/data/etcd\nExecStart=" + command,
			})
			findings := New(hostfs.Root(root), nil).Detect(t.Context())
			require.Empty(t, findings.Found)
			require.Empty(t, findings.Unknown)
			hosttest.Add(t, root, hosttest.Files{data + "/member/snap/db": "x"})
			findings = New(hostfs.Root(root), nil).Detect(t.Context())
			require.Empty(t, findings.Unknown)
			require.Len(t, findings.Found, 1)
		})
	}
}
