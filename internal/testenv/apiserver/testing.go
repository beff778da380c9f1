package apiserver

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// startTimeout limits the start of an API server in a test. It takes about three seconds on an
// idle machine.
const startTimeout = 60 * time.Second

// New starts a kube-apiserver for a test and stops it when the test ends. If the test fails,
// its output contains the end of the logs of the server and its etcd.
func New(t testing.TB) *Server {
	t.Helper()
	return NewEmulating(t, "")
}

// NewEmulating starts a server like New, with Options.EmulatedVersion.
func NewEmulating(t testing.TB, version string) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	server, err := Start(ctx, Options{
		Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), EmulatedVersion: version,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of kube-apiserver:\n%s", server.LogTail(30))
			t.Logf("end of the log of its etcd:\n%s", server.etcd.Member(1).LogTail(15))
		}
		require.NoError(t, server.Stop(context.WithoutCancel(t.Context())))
	})
	return server
}

// NewInstalled starts a server like New and applies the shipped manifests, with nodes that are born
// held.
func NewInstalled(t testing.TB) *Server {
	t.Helper()
	server := New(t)
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, server.Apply(ctx, filepath.Join(root, "manifests/overlays/born-held")))
	return server
}

// InstallMachines installs definitions of Machine (Cluster API) and NodeClaim (Karpenter) without
// the programs that act on them.
func InstallMachines(t testing.TB, server *Server) {
	t.Helper()
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	dir := filepath.Join(root, "internal/testenv/apiserver/machines")
	_, err = server.Kubectl(ctx, "apply", "--server-side", "-k", dir)
	require.NoError(t, err)
	require.NoError(t, server.waitServed(ctx))
}
