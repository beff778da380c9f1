package hostfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("small"), []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(in("full"), make([]byte, maxFileSize), 0o600))
	require.NoError(t, os.WriteFile(in("large"), nil, 0o600))
	require.NoError(t, os.Truncate(in("large"), 400<<20)) // sparse
	require.NoError(t, syscall.Mkfifo(in("pipe"), 0o600))

	content, err := ReadFile(in("small"))
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	content, err = ReadFile(in("full"))
	require.NoError(t, err)
	require.Len(t, content, maxFileSize)
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
		"/../../a": "/a", "/abs/../x": "/x", "/gone": "/nowhere/x", "/a/missing/../../abs": "/a/b", "/out": "/x",
	} {
		at, err := Root(root).Resolve(path)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, want), at, path)
	}
	_, err := Root(root).Resolve("/self/x")
	require.ErrorContains(t, err, "too many levels")
}

// openers are the two ways in which a Root opens a path: with openat2, and without.
func openers() map[string]func(root, name string) (*os.File, error) {
	return map[string]func(root, name string) (*os.File, error){
		"openat2": func(root, name string) (*os.File, error) { return Root(root).Open(name) },
		"stepwise": func(root, name string) (*os.File, error) {
			dir, err := os.OpenFile(root, unix.O_PATH, 0)
			if err != nil {
				return nil, err
			}
			defer func() { _ = dir.Close() }() // nothing was written
			return openStepwise(dir, filepath.Clean("/"+name), os.O_RDONLY|unix.O_NONBLOCK)
		},
	}
}

func TestSplit(t *testing.T) {
	for name, c := range map[string]struct{ root, path, wantRoot, want string }{
		"host":               {"/host", "/host/etc/ca.pem", "/host", "/etc/ca.pem"},
		"process":            {"/host", "/host/proc/812/root/etc/ca.pem", "/host/proc/812/root", "/etc/ca.pem"},
		"root of a process":  {"/host", "/host/proc/812/root", "/host/proc/812/root", "/"},
		"process table":      {"/host", "/host/proc/812/rootless", "/host", "/proc/812/rootless"},
		"not below":          {"/host", "/etc/ca.pem", "/host", "/etc/ca.pem"},
		"no prefix":          {"/", "/etc/ca.pem", "/", "/etc/ca.pem"},
		"no prefix, process": {"/", "/proc/812/root/etc/ca.pem", "/proc/812/root", "/etc/ca.pem"},
		"zero":               {"", "/etc/ca.pem", "/", "/etc/ca.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			root, below := Root(c.root).Split(c.path)
			require.Equal(t, c.wantRoot, string(root))
			require.Equal(t, c.want, below)
		})
	}
}

func TestOpen(t *testing.T) {
	parent := t.TempDir()
	root := filepath.Join(parent, "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "a/b/file"), []byte("inside"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(parent, "file"), []byte("outside"), 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	for link, target := range map[string]string{
		"abs": "/a/b", "up": "../../../../a/b", "self": "self", "gone": "/nowhere/../a/b/file", "out": "../file",
		"outside": filepath.Join(parent, "file"),
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for how, open := range openers() {
		for name, want := range map[string]error{
			"/a/b/file": nil, "a/./b//file": nil, "/abs/file": nil, "/up/file": nil, "/../../a/b/file": nil,
			"/pipe": nil, "/": nil,
			"/gone": fs.ErrNotExist, "/out": fs.ErrNotExist, "/outside": fs.ErrNotExist, "/a/b/file/x": syscall.ENOTDIR,
			"/self/x": syscall.ELOOP, "/a/\x00": syscall.EINVAL,
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				f, err := open(root, name)
				require.ErrorIs(t, err, want)
				if err != nil {
					var path *fs.PathError
					require.ErrorAs(t, err, &path)
					return
				}
				defer func() { require.NoError(t, f.Close()) }()
				if strings.HasSuffix(name, "file") {
					content, err := ReadSmall(f)
					require.NoError(t, err)
					require.Equal(t, "inside", string(content))
				}
			})
		}
	}
	info, err := Root(root).Stat("/abs")
	require.NoError(t, err)
	require.True(t, info.IsDir())
	names, err := Root(root).ReadNames("/up", func(string) bool { return true })
	require.NoError(t, err)
	require.Equal(t, []string{"file"}, names)
	_, err = Root(filepath.Join(root, "missing")).ReadFile("/a")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestHugeDirectory: a pattern keeps no names in memory that it does not match. The agent has
// 128 MiB, and /tmp can have millions of files.
func TestHugeDirectory(t *testing.T) {
	const count = 12_000
	root := t.TempDir()
	for i := range count {
		require.NoError(t, os.Symlink("x", filepath.Join(root, fmt.Sprintf("%0200d", i))))
	}
	inUse := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before, looked := inUse(), 0
	all, err := Root(root).Glob("/*", func(string) bool {
		if looked++; looked == count {
			require.Less(t, inUse()-before, int64(2<<20), "bytes in use at the last name")
		}
		return true
	})
	require.NoError(t, err)
	require.Empty(t, all)
	require.Equal(t, count, looked)
}

// TestOpenRace replaces a directory by a link that leads out of the root, again and again, as
// the owner of a container can. A path is resolved below the root in any case.
func TestOpenRace(t *testing.T) {
	parent := t.TempDir()
	root := filepath.Join(parent, "root")
	for _, dir := range []string{"root/real", "outside"} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, dir), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(parent, dir, "file"), []byte(dir), 0o600))
	}
	require.NoError(t, os.Symlink(filepath.Join(parent, "outside"), filepath.Join(root, "link")))
	at, link := filepath.Join(root, "real"), filepath.Join(root, "link")
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				stopped <- err
				return
			}
		}
	}()
	inside := 0
	for range 20_000 {
		if content, err := Root(root).ReadFile("/real/file"); err == nil {
			require.Equal(t, "root/real", string(content))
			inside++
		}
	}
	close(stop)
	require.NoError(t, <-stopped)
	require.NotZero(t, inside)
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
			f, err := Root(root).Open(p)
			if err != nil {
				continue
			}
			at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.True(t, strings.HasPrefix(at+"/", root+"/"), "%q opens %q", p, at)
		}
	})
}

// TestStart: the host is a container, which began an hour after its kernel.
func TestStart(t *testing.T) {
	first := "1 (systemd) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 360050" + strings.Repeat(" 0", 30)
	root := t.TempDir()
	require.Zero(t, Root(root).Start(), "no process")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/1"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/1/stat"), []byte(first), 0o600))
	require.Equal(t, uint64(360050), Root(root).Start())
}
