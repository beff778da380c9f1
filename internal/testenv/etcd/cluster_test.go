package etcd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

func TestClusterLifecycle(t *testing.T) {
	roots := t.TempDir()
	etcd := etcd.New(t, etcd.Options{
		Members: 3, TLS: true,
		HostRoot: func(i int) string { return filepath.Join(roots, strconv.Itoa(i)) },
		BootID:   func(i int) string { return fmt.Sprintf("boot-%d", i) },
	})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()

	second := etcd.Member(2)
	env, err := os.ReadFile(filepath.Join(roots, "2", "etc/etcd.env"))
	require.NoError(t, err)
	require.Contains(t, string(env), "ETCD_NAME=etcd2\n")
	require.Contains(t, string(env), "ETCD_DATA_DIR=/var/lib/etcd\n")
	require.Contains(t, string(env), "ETCD_ADVERTISE_CLIENT_URLS=https://"+second.IP+":2379\n")
	require.Contains(t, string(env), "ETCDCTL_CERT=/etc/ssl/etcd/ssl/admin-etcd-2.pem\n")
	require.FileExists(t, filepath.Join(roots, "2/etc/ssl/etcd/ssl/admin-etcd-2.pem"))
	require.FileExists(t, filepath.Join(roots, "2/etc/systemd/system/etcd.service"))
	require.DirExists(t, filepath.Join(roots, "2/var/lib/etcd/member/wal"))
	boot, err := os.ReadFile(filepath.Join(roots, "2/proc/sys/kernel/random/boot_id"))
	require.NoError(t, err)
	require.Equal(t, "boot-2\n", string(boot))

	shown := filepath.Join(roots, "2/proc", strconv.Itoa(second.PID()), "comm")
	comm, err := os.ReadFile(shown)
	require.NoError(t, err)
	require.Equal(t, "etcd\n", string(comm))
	require.NoError(t, second.Kill())
	require.NoFileExists(t, shown)
	require.Zero(t, second.PID())
	require.NoError(t, second.Start(ctx))

	learner, err := etcd.AddLearner(ctx)
	require.NoError(t, err)
	require.Equal(t, "etcd4", learner.Name)
	require.NoError(t, etcd.Promote(ctx, learner))
	voter, err := etcd.AddVoterUnstarted(ctx)
	require.NoError(t, err)
	ids, err := etcd.MemberIDs(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{
		"etcd1": etcd.Member(1).ID(), "etcd2": second.ID(), "etcd3": etcd.Member(3).ID(), "etcd4": learner.ID(),
		voter.PeerURL: voter.ID(),
	}, ids)
	require.NoError(t, voter.Start(ctx))

	require.NoError(t, etcd.RemoveMember(ctx, second))
	select {
	case <-second.Done():
	case <-ctx.Done():
		require.Fail(t, "the removed member still runs")
	}
	ids, err = etcd.MemberIDs(ctx)
	require.NoError(t, err)
	require.Len(t, ids, 4)
	require.NotContains(t, ids, "etcd2")
}

func TestSeparateClusters(t *testing.T) {
	one, two := etcd.NewPlain(t), etcd.NewPlain(t)
	require.NotEqual(t, one.Member(1).ClientURL, two.Member(1).ClientURL)
	for _, etcd := range []*etcd.Cluster{one, two} {
		ids, err := etcd.MemberIDs(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]uint64{"etcd1": etcd.Member(1).ID()}, ids)
	}
}

func TestStartError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := etcd.Start(ctx, etcd.Options{
		Dir: t.TempDir(), Settings: map[string]string{"ETCD_LISTEN_PEER_URLS": "http://example.com:2380"},
	})
	require.ErrorContains(t, err, "starting etcd: etcd1 ended (exit status 1)")
	require.ErrorContains(t, err, "expected IP in URL")
}

func TestTwoClustersOnOneHost(t *testing.T) {
	net, err := loopback.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, net.Close()) })
	host := t.TempDir()
	opts := etcd.Options{TLS: true, IP: net.IP, HostRoot: func(int) string { return host }}
	first := etcd.New(t, opts)
	opts.Events = true
	second := etcd.New(t, opts)
	require.NotEqual(t, first.Member(1).ID(), second.Member(1).ID())
	for _, path := range []string{
		"etc/etcd.env", "etc/systemd/system/etcd.service", "var/lib/etcd/member", "etc/ssl/etcd/ssl/ca.pem",
		"etc/etcd-events.env", "etc/systemd/system/etcd-events.service", "var/lib/etcd-events/member",
		"etc/ssl/etcd-events/ssl/ca.pem",
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

func TestVersions(t *testing.T) {
	t.Setenv(etcd.VersionVariable, "v3.3")
	_, err := etcd.Start(t.Context(), etcd.Options{Dir: t.TempDir()})
	require.EqualError(t, err, `HOLDFAST_ETCD is "v3.3", want one of [v3.4 v3.5 v3.6 v3.7]`)
	m := etcd.NewPlain(t).Member(1) // the etcd of a kube-apiserver does not depend on the variable
	require.Equal(t, etcd.V37, m.Version())
	agreed, err := m.ClusterVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, etcd.V37, agreed)

	t.Setenv(etcd.VersionVariable, "")
	v, err := etcd.SelectedVersion()
	require.NoError(t, err)
	require.Equal(t, etcd.V37, v)

	t.Setenv(process.ServersVariable, t.TempDir())
	_, err = etcd.Version("v3.3").Binary()
	require.EqualError(t, err, `finding etcd v3.3: there is no bin/etcd-v3.3/etcd; run "make bin/etcd-v3.3/etcd"`)
}
