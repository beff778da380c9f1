//go:build etcdversions

package etcddetect

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestRealProxy runs a v2 proxy of the last versions of etcd that have one, beside a member. The
// proxy is no member while it runs, and its data is none afterwards.
func TestRealProxy(t *testing.T) {
	for _, version := range []etcd.Version{etcd.V34, etcd.V35} {
		t.Run(string(version), func(t *testing.T) {
			cluster, err := etcd.Start(t.Context(), etcd.Options{Dir: t.TempDir(), Version: version})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, cluster.Stop()) })
			member := cluster.Member(1)
			program, err := version.Binary()
			require.NoError(t, err)
			data := filepath.Join(t.TempDir(), "etcd-proxy")
			command := exec.Command(program, "--proxy=on", "--data-dir="+data,
				"--listen-client-urls=http://127.0.0.1:0", "--initial-cluster="+member.Name+"="+member.PeerURL)
			require.NoError(t, command.Start())
			t.Cleanup(func() { _ = command.Process.Kill() }) // it has ended

			isNoted := func(note string) bool { return strings.Contains(note, "is a v2 proxy and no member") }
			require.Eventually(t, func() bool {
				notes := New("/", nil).Detect().Notes
				return len(notes) > 0 && isNoted(strings.Join(notes, "\n"))
			}, time.Minute, 100*time.Millisecond)
			_, isServer := serverOf(t, command.Process.Pid)
			require.False(t, isServer)
			_, isServer = serverOf(t, member.PID())
			require.True(t, isServer)

			require.FileExists(t, filepath.Join(data, "proxy", "cluster"))
			require.NoError(t, command.Process.Kill())
			_ = command.Wait() // killed
			root := hosttest.New(t, hosttest.Files{"/etc/systemd/system/etcd.service": serviceOf(
				"ExecStart=/usr/bin/etcd --proxy=on --data-dir=" + data)})
			require.NoError(t, os.CopyFS(filepath.Join(root, data), os.DirFS(data)))
			findings := New(hostfs.Root(root), nil).Detect()
			require.Empty(t, findings.Found)
			require.Empty(t, findings.Unknown)
		})
	}
}
