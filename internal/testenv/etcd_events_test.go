package testenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTwoEtcdsOnOneHost(t *testing.T) {
	net, err := HoldLoopback()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, net.Close()) })
	host := t.TempDir()
	opts := EtcdOptions{TLS: true, IP: net.IP, HostRoot: func(int) string { return host }}
	first := NewEtcd(t, opts)
	opts.Events = true
	second := NewEtcd(t, opts)
	require.NotEqual(t, first.Member(1).ID(), second.Member(1).ID())
	for _, path := range []string{
		"etc/etcd.env", "etc/etcd-events.env", "etc/systemd/system/etcd.service", "etc/systemd/system/etcd-events.service",
		"var/lib/etcd/member", "var/lib/etcd-events/member", "etc/ssl/etcd/ssl/ca.pem", "etc/ssl/etcd-events/ssl/ca.pem",
	} {
		_, err := os.Stat(filepath.Join(host, path))
		require.NoError(t, err)
	}

	learner, err := second.AddLearnerUnstarted(t.Context())
	require.NoError(t, err)
	require.False(t, learner.Running())
	ids, err := second.MemberIDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, learner.ID(), ids[learner.PeerURL])
}
