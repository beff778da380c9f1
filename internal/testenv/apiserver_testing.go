package testenv

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// NewAPIServer starts a kube-apiserver for a test and stops it when the test ends. If the test has failed, the ends of
// the logs of the server and of its etcd are in its output.
func NewAPIServer(t testing.TB) *APIServer {
	t.Helper()
	return NewEmulatingAPIServer(t, "")
}

// NewEmulatingAPIServer is NewAPIServer that behaves as an older version does: see APIServerOptions.EmulatedVersion.
func NewEmulatingAPIServer(t testing.TB, version string) *APIServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	server, err := StartAPIServer(ctx, APIServerOptions{
		Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), EmulatedVersion: version,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of kube-apiserver:\n%s", server.LogTail(30))
			t.Logf("the end of the log of its etcd:\n%s", server.etcd.Member(1).LogTail(15))
		}
		require.NoError(t, server.Stop(context.WithoutCancel(t.Context())))
	})
	return server
}

// NewInstalledAPIServer is NewAPIServer with the shipped manifests in effect.
func NewInstalledAPIServer(t testing.TB) *APIServer {
	t.Helper()
	server := NewAPIServer(t)
	root, err := RepositoryRoot()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, server.Apply(ctx, filepath.Join(root, "manifests")))
	return server
}
