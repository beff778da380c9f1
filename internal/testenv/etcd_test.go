package testenv_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func TestEtcdClusterLivesLikeOneOfKubespray(t *testing.T) {
	roots := t.TempDir()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{
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
		"etcd1": etcd.Member(1).ID(), "etcd2": second.ID(), "etcd3": etcd.Member(3).ID(), "etcd4": learner.ID(), voter.PeerURL: voter.ID(),
	}, ids)
	require.NoError(t, voter.Start(ctx))

	require.NoError(t, etcd.RemoveMember(ctx, second))
	select {
	case <-second.Done():
	case <-ctx.Done():
		require.Fail(t, "a removed member went on")
	}
	ids, err = etcd.MemberIDs(ctx)
	require.NoError(t, err)
	require.Len(t, ids, 4)
	require.NotContains(t, ids, "etcd2")
}

func TestTwoEtcdsDoNotMeet(t *testing.T) {
	one, two := testenv.NewPlainEtcd(t), testenv.NewPlainEtcd(t)
	require.NotEqual(t, one.Member(1).ClientURL, two.Member(1).ClientURL)
	for _, etcd := range []*testenv.Etcd{one, two} {
		ids, err := etcd.MemberIDs(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]uint64{"etcd1": etcd.Member(1).ID()}, ids)
	}
}

func TestEtcdThatCannotStartSaysWhy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := testenv.StartEtcd(ctx, testenv.EtcdOptions{
		Dir: t.TempDir(), Settings: map[string]string{"ETCD_LISTEN_PEER_URLS": "http://example.com:2380"},
	})
	require.ErrorContains(t, err, "starting etcd: etcd1 ended (exit status 1)")
	require.ErrorContains(t, err, "expected IP in URL")
}
