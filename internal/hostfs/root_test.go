package hostfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("small"), []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(in("full"), make([]byte, MaxFileSize), 0o600))
	require.NoError(t, os.WriteFile(in("large"), nil, 0o600))
	require.NoError(t, os.Truncate(in("large"), 400<<20)) // sparse
	require.NoError(t, syscall.Mkfifo(in("pipe"), 0o600))

	content, err := ReadFile(in("small"))
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	content, err = ReadFile(in("full"))
	require.NoError(t, err)
	require.Len(t, content, MaxFileSize)
	_, err = ReadFile(in("absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	for name, tc := range map[string]struct{ path, want string }{
		"directory":             {dir, "not a regular file"},
		"pipe without a writer": {in("pipe"), "not a regular file"},
		"device":                {"/dev/zero", "not a regular file"},
		"large file":            {in("large"), "larger than a mebibyte"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFile(tc.path)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, tc.path)
		})
	}
}

func TestResolve(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	for link, target := range map[string]string{
		"abs": "/a/b", "up": "../../../../a", "a/rel": "b", "chain": "abs", "self": "self",
		"gone": "/nowhere/x", "out": "/nowhere/../../../x",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for path, want := range map[string]string{
		"/": "", "/a/b": "/a/b", "a/./b": "/a/b", "/abs/c": "/a/b/c", "/up/b": "/a/b", "/a/rel": "/a/b", "/chain": "/a/b",
		"/../../a": "/a", "/abs/../x": "/x", "/gone": "/nowhere/x", "/a/missing/../../abs": "/a/b", "/out": "/nowhere",
	} {
		at, err := Root(root).Resolve(path)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, want), at, path)
	}
	_, err := Root(root).Resolve("/self/x")
	require.ErrorContains(t, err, "too many levels")
}

func FuzzResolve(f *testing.F) {
	f.Add("/a/b", "../../x")
	f.Add("0", "missing/../..")
	f.Fuzz(func(t *testing.T, path, target string) {
		root := t.TempDir()
		if strings.ContainsRune(path+target, 0) || os.Symlink(target, filepath.Join(root, "link")) != nil {
			return
		}
		for _, p := range []string{path, "/link/" + path, path + "/link"} {
			if at, err := Root(root).Resolve(p); err == nil && at != root {
				require.True(t, strings.HasPrefix(at, root+"/"), "%q resolves to %q", p, at)
			}
		}
	})
}

func FuzzMounts(f *testing.F) {
	f.Add("/var/lib/rancher/etcd", "/var/lib/etcd", "/", "/", "/var/lib/rancher/etcd/member")
	f.Add("/a b", `/c\040d`, "/c", "/mnt", "/a b/../x")
	f.Fuzz(func(t *testing.T, insidePoint, insideRoot, hostRoot, hostPoint, name string) {
		m := Mounts{
			inside: []*procfs.MountInfo{{MajorMinorVer: "1:1", MountPoint: insidePoint, Root: insideRoot}},
			host: []*procfs.MountInfo{
				{MajorMinorVer: "1:1", MountPoint: hostPoint, Root: hostRoot},
				{MajorMinorVer: "1:2", MountPoint: "/wrong", Root: "/"},
			},
		}
		if outside, ok := m.outside(name); ok && filepath.IsAbs(hostPoint) {
			require.True(t, filepath.IsAbs(outside), "%q", outside)
		}
	})
}
