package etcddetect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsServerName(t *testing.T) {
	for _, name := range []string{
		"etcd", "etcd2", "etcd3", "etcd-3.5", "etcd_3.5.12", "etcdv3", "etcd-v3.5.12", "etcd-v3.6.0-rc.1",
		"etcd-v3.5.12-linux-amd64", "etcd-linux-arm64", "etcd-x86_64", "etcd-v3.5.21-k3s1",
	} {
		require.True(t, isServerName(name), name)
	}
	for _, name := range []string{
		"", "etc", "etcdctl", "etcdutl", "etcd_exporter", "etcd-backup", "etcd-v3-backup", "etcd-defrag", "etcd.service",
		"etcd-20240102.db", "etcd-v3.5.12.tar.gz", "etcd-vault", "etcd-main", "etcd-k3s", "etcdv", "myetcd", "etcd-io",
		"etcdhelper-1",
	} {
		require.False(t, isServerName(name), name)
	}
}
