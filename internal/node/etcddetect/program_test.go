package etcddetect

import (
	"maps"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestRunningProgram has k3s, which hides its arguments. Its open files tell where its data is, and
// whether it contains etcd at all.
func TestRunningProgram(t *testing.T) {
	const config, defaultConfig = k3sEtcd + "/config", "/var/lib/rancher/k3s/server/db/etcd/config"
	settings := "name: n1\ndata-dir: " + k3sEtcd + "\n"
	open := hosttest.Files{
		"/proc/812/fd/7": "-> socket:[1]", "/proc/812/fd/8": "-> " + k3sEtcd + "/member/snap/db",
		"/proc/812/fd/9": "-> " + k3sEtcd + "/member/wal/0000000000000000-0000000000000000.wal",
	}
	for name, c := range map[string]struct {
		files         hosttest.Files
		name, unknown string
		isFound       bool
	}{
		"etcd":            {files: with(maps.Clone(open), config, settings), isFound: true, name: "n1"},
		"moved by a flag": {files: with(maps.Clone(open), defaultConfig, settings), isFound: true, name: "n1"},
		"old settings":    {files: with(maps.Clone(open), defaultConfig, "name: n2\ndata-dir: /x\n"), isFound: true},
		"SQLite":          {files: hosttest.Files{"/proc/812/fd/7": "-> /var/lib/rancher/k3s/server/db/state.db"}},
		"copies a database": {files: hosttest.Files{
			"/proc/812/fd/7": "-> " + k3sEtcd + "/member/snap/db",
		}},
		"unreadable files": {
			files:   hosttest.Files{"/proc/812/fd": hosttest.Loop},
			unknown: "process 812, k3s, may contain etcd: its open files: too many levels of symbolic links",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.files)
			hosttest.Add(t, root, hosttest.Files{"/proc/locks": hosttest.Locks})
			if c.isFound {
				hosttest.Add(t, root, hosttest.Files{k3sEtcd + "/member/snap/db": "x"})
			}
			hosttest.AddProcess(t, root, 812, hosttest.Process{
				Comm: "k3s-server", Exe: "/usr/local/bin/k3s", Line: []string{"/usr/local/bin/k3s server"},
			})
			findings := New(hostfs.Root(root), nil).Detect()
			if !c.isFound {
				require.Empty(t, findings.Found)
				require.Equal(t, nonempty(c.unknown), append([]string{}, findings.Unknown...))
				return
			}
			require.Empty(t, findings.Unknown)
			require.Len(t, findings.Found, 1)
			found := findings.Found[0]
			require.Equal(t, 812, found.PID)
			require.True(t, found.IsLocked)
			require.Empty(t, found.Problems)
			require.Equal(t, c.name, found.Config.Name)
			require.Equal(t, path.Join(root, k3sEtcd), found.Config.DataDir)
		})
	}
}

// TestStartingProgram has a k3s that has not opened its database yet. Its data is that of a member.
func TestStartingProgram(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{
		"/var/lib/rancher/k3s/server/db/etcd/member/snap/db": "x", "/proc/812/fd/7": "x",
	})
	hosttest.AddProcess(t, root, 812, hosttest.Process{Comm: "k3s-server", Exe: "/bin/k3s", Line: []string{"k3s server"}})
	findings := New(hostfs.Root(root), nil).Detect()
	require.Len(t, findings.Found, 1)
	require.True(t, *findings.Found[0].HasData)
}
