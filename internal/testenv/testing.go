package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startTimeout is how long servers may take to be ready in a test; they need a second or two on an idle machine.
const startTimeout = 60 * time.Second

// NewEtcd starts an etcd cluster for a test, in a directory of the test unless the options name one, and stops it when the
// test ends. If the test has failed, the ends of the members' logs are in its output.
func NewEtcd(t testing.TB, opts EtcdOptions) *Etcd {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	etcd, err := StartEtcd(ctx, opts)
	require.NoError(t, err)
	stopAtEnd(t, etcd)
	return etcd
}

// NewPlainEtcd starts one member without TLS for a kube-apiserver under test, and stops it when the test ends.
func NewPlainEtcd(t testing.TB) *Etcd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	etcd, err := StartPlainEtcd(ctx, t.TempDir())
	require.NoError(t, err)
	stopAtEnd(t, etcd)
	return etcd
}

func stopAtEnd(t testing.TB, etcd *Etcd) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			for _, member := range etcd.Members() {
				t.Logf("the end of the log of %s:\n%s", member.Name, member.LogTail(15))
			}
		}
		require.NoError(t, etcd.Stop())
	})
}

// FreePort returns a TCP port of 127.0.0.1 that nobody else is given while the test runs.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := ReservePort()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Release()) })
	return port.Number
}
