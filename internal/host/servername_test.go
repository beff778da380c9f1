package host

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsServerName(t *testing.T) {
	for _, name := range []string{
		"etcd", "etcd2", "etcd3", "etcd-3.5", "etcd_3.5.12", "etcdv3", "etcd-v3.5.12", "etcd-v3.6.0-rc.1", "etcd-v3.5.12-linux-amd64",
		"etcd-linux-arm64", "etcd-x86_64", "etcd-v3.5.21-k3s1",
	} {
		require.True(t, isServerName(name), name)
	}
	for _, name := range []string{
		"", "etc", "etcdctl", "etcdutl", "etcd_exporter", "etcd-backup", "etcd-v3-backup", "etcd-defrag", "etcd.service", "etcd-20240102.db",
		"etcd-v3.5.12.tar.gz", "etcd-vault", "etcd-main", "etcd-k3s", "etcdv", "myetcd", "etcd-io", "etcdhelper-1",
	} {
		require.False(t, isServerName(name), name)
	}
}

// A word with a version is the program only where nothing else is called so.
func TestAVersionInACommand(t *testing.T) {
	for line, want := range map[string]bool{
		"/usr/local/bin/etcd-v3.5.12 --name=a":                       true,
		"/opt/etcd/etcd-v3.5.12 --name=a":                            true,
		"/usr/bin/nice /usr/local/bin/etcd-v3.5.12 --name=a":         true,
		"/usr/bin/docker run registry.example/etcd-amd64:3.5 --name": true,
		"/usr/local/bin/etcdctl snapshot save etcd-20240102":         false,
		"/usr/bin/docker run --network etcd-1 redis":                 false,
		"/usr/bin/restic backup --tag etcd-3.5 /var/lib/etcd":        false,
		"/usr/bin/tar --create --file /srv/etcd-3.5 /var/lib/etcd":   false,
	} {
		require.Equal(t, want, serverCommand(strings.Fields(line), nil).server, line)
	}
}
