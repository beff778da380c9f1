package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// startTimeout limits the start of an API server in a test. It takes about three seconds on an
// idle machine.
const startTimeout = 3 * time.Minute

// bornHeldMinor is the first minor version that serves MutatingAdmissionPolicy v1.
const bornHeldMinor = 36

// New starts a kube-apiserver for a test and stops it when the test ends. If the test fails,
// its output contains the end of the logs of the server and its etcd.
func New(t testing.TB) *Server {
	t.Helper()
	return NewWith(t, Options{})
}

// NewWith starts a server like New, with options. It sets Options.Dir and Options.Log.
func NewWith(t testing.TB, opts Options) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	opts.Dir, opts.Log = t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil))
	server, err := Start(ctx, opts)
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
// held if the server supports that.
func NewInstalled(t testing.TB) *Server {
	t.Helper()
	server := New(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, server.Install(ctx))
	return server
}

// NewOlder starts a server like New, without MutatingAdmissionPolicy v1. A server that has it
// emulates the oldest version that it can, three minor versions before its own.
func NewOlder(t testing.TB) *Server {
	t.Helper()
	opts := Options{}
	if minor := Minor(t); minor >= bornHeldMinor {
		opts.EmulatedVersion = fmt.Sprintf("1.%d", minor-3)
	}
	return NewWith(t, opts)
}

// Minor returns the minor version of the kube-apiserver that the tests start, such as 36.
func Minor(t testing.TB) int {
	t.Helper()
	binary, err := process.Binary("kube-apiserver")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), binary, "--version").Output()
	require.NoError(t, err)
	version, err := utilversion.ParseGeneric(strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes "))
	require.NoError(t, err)
	return int(version.Minor())
}

// RequireBornHeld skips a test that needs a policy for nodes that are born held, if the API server
// is older than that policy.
func RequireBornHeld(t testing.TB, server *Server) {
	t.Helper()
	if !server.BornHeld() {
		t.Skip("SKIPPED: this version of Kubernetes does not serve MutatingAdmissionPolicy v1")
	}
}

// InstallMachines calls the method of the server.
func InstallMachines(t testing.TB, server *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	require.NoError(t, server.InstallMachines(ctx))
}
