package etcddetect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

func TestAliasAndInstance(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/lib/systemd/system/etcd.service":      service("EnvironmentFile=-/etc/default/%p", "ExecStart=/usr/bin/etcd"),
		"/lib/systemd/system/etcd@.service":     service("ExecStart=/usr/bin/etcd --data-dir=/srv/%i"),
		"/etc/systemd/system/etcd2.service":     "-> /lib/systemd/system/etcd.service",
		"/etc/systemd/system/etcd@blue.service": "-> /lib/systemd/system/etcd@.service",
		"/etc/default/etcd":                     "ETCD_DATA_DIR=/srv/etcd\n",
		"/srv/etcd" + member:                    "x", "/srv/blue" + member: "x",
		"/etc/systemd/system/etcd-green.service": "-> /nowhere/etcd-green.service",
	})
	findings := detect(t, root)
	require.Empty(t, findings.Unknown)
	var units []string
	for _, s := range findings.Found {
		units = append(units, s.Unit)
	}
	require.Equal(t, []string{"etcd.service", "etcd@blue.service"}, units, "an instance is a unit of its own")
}
