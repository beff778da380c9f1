// Package hostfs reads the file system of a host that is mounted somewhere in the agent's
// own.
//
// Paths are resolved below the mount point, including symbolic links, in one step with opening
// them. Reading never blocks on a pipe or a device, and never takes more memory than a
// configuration file needs.
package hostfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// maxFileSize is the most that is read of a file, in bytes. Configurations have a few
	// kibibytes, bundles of certificate authorities a few hundred.
	maxFileSize = 1 << 20
	// maxNames is the most paths that match a pattern. A directory of certificates has a few dozen.
	maxNames = 4096
	// maxTries is how often a path is opened if the kernel cannot rule out that a directory on
	// it has moved (openat2(2), EAGAIN), and how often a directory is watched that seems to move.
	maxTries = 10
)

// A Root is a directory whose contents are resolved as if it were the root directory: the
// mounted root of the host, or the root of a process in another mount namespace.
//
// Symbolic links are resolved below it. /var/lib/etcd is often an absolute link to a separate
// disk. Followed in the agent's own root, the link leads nowhere, and a member would look
// absent.
type Root string

// Resolve returns the agent's path for a path below the root. A path that does not exist is
// not an error. It is for messages, and for programs that take a path: a link may change before
// the path is opened.
func (r Root) Resolve(name string) (string, error) {
	name = filepath.Clean("/" + name)
	if r == "/" {
		return name, nil
	}
	at, err := securejoin.SecureJoin(string(r), name)
	if err != nil {
		return "", fmt.Errorf("resolving %q: %w", name, Reason(err))
	}
	return at, nil
}

// Open opens a path below the root for reading. Nothing can replace a part of the path by a link
// between its resolution and the opening.
func (r Root) Open(name string) (*os.File, error) { return r.open(name, os.O_RDONLY|unix.O_NONBLOCK) }

func (r Root) open(name string, flags int) (*os.File, error) {
	name, flags = filepath.Clean("/"+name), flags|unix.O_CLOEXEC
	if r == "/" {
		return os.OpenFile(name, flags, 0)
	}
	root, err := os.OpenFile(string(r), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // nothing was written
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(root.Fd()), name, &how)
	for try := 0; (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)) && try < maxTries; try++ {
		fd, err = unix.Openat2(int(root.Fd()), name, &how)
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), filepath.Join(string(r), name)), nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		// The kernel is older than Linux 5.6, or a seccomp profile refuses the call.
		return openStepwise(root, name, flags)
	}
	return nil, &fs.PathError{Op: "open", Path: filepath.Join(string(r), name), Err: err}
}

// openStepwise opens each directory of the path in turn.
func openStepwise(root *os.File, name string, flags int) (*os.File, error) {
	handle, err := pathrs.OpenatInRoot(root, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = handle.Close() }() // nothing was written
	return pathrs.Reopen(handle, flags)
}

// ReadFile returns the content of a small regular file below the root.
func (r Root) ReadFile(name string) ([]byte, error) { return readFile(r.Open(name)) }

// ReadNames returns the sorted names in a directory below the root that are wanted. It ends after
// more than 4096 of them. A directory can have millions of others, which take no memory.
func (r Root) ReadNames(dir string, isWanted func(name string) bool) ([]string, error) {
	f, err := r.open(dir, os.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	var all []string
	for len(all) <= maxNames {
		names, err := f.Readdirnames(maxNames)
		all = append(all, slices.DeleteFunc(names, func(name string) bool { return !isWanted(name) })...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return all, nil
}

// ReadDir returns the sorted entries of a directory below the root. A missing directory is
// empty.
func (r Root) ReadDir(dir string) ([]os.DirEntry, error) {
	f, err := r.open(dir, os.O_RDONLY|unix.O_DIRECTORY)
	var entries []os.DirEntry
	if err == nil {
		defer func() { _ = f.Close() }() // nothing was written
		entries, err = f.ReadDir(-1)
	}
	if IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, Reason(err))
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Glob returns the sorted paths below the root that match a pattern. A path without wildcards is
// returned even if it does not exist. A wildcard matches no path that is left out, and none below
// such a path. More than 4096 matches are an error, so that a pattern does not search a disk.
func (r Root) Glob(pattern string, isLeftOut func(name string) bool) ([]string, error) {
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}, nil
	}
	dirs, err := r.Glob(path.Dir(pattern), isLeftOut)
	if err != nil {
		return nil, err
	}
	base := path.Base(pattern)
	var all []string
	for _, dir := range dirs {
		names, err := r.ReadNames(dir, func(name string) bool {
			hidden := strings.HasPrefix(name, ".") && !strings.HasPrefix(base, ".")
			return !hidden && MatchesAny([]string{base}, name) && !isLeftOut(path.Join(dir, name))
		})
		if err != nil && !IsAbsent(err) {
			return nil, fmt.Errorf("listing %s: %w", dir, Reason(err))
		}
		for _, name := range names {
			all = append(all, path.Join(dir, name))
		}
		if len(all) > maxNames {
			return nil, fmt.Errorf("more than %d paths match", maxNames)
		}
	}
	return all, nil
}

// Stat returns information about a path below the root. It follows symbolic links.
func (r Root) Stat(name string) (fs.FileInfo, error) {
	f, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return f.Stat()
}

// Split returns the root directory of an agent's path from Resolve or Find, and the path below it.
// The root directory is that of a process, or r. An agent's path is opened below its root
// directory only: a part of it may have been replaced by a link, which then leads nowhere else.
// The zero Root is the agent's own.
func (r Root) Split(agentPath string) (root Root, name string) {
	r = cmp.Or(r, "/")
	if rest, ok := strings.CutPrefix(agentPath, r.Proc("")+"/"); ok {
		pid, below, _ := strings.Cut(rest, "/")
		if name, ok := strings.CutPrefix(below+"/", "root/"); ok {
			return Root(r.Proc(pid + "/root")), "/" + strings.TrimSuffix(name, "/")
		}
	}
	return r, r.HostPath(agentPath)
}

// IsSameFile reports whether a path below the root is the same file as one below another root.
func (r Root) IsSameFile(name string, other Root, otherName string) bool {
	info, err := r.Stat(name)
	if err != nil {
		return false
	}
	otherInfo, err := other.Stat(otherName)
	return err == nil && os.SameFile(info, otherInfo)
}

// HostPath returns the host's own path for a path of the agent, for messages.
func (r Root) HostPath(at string) string {
	if rest, ok := strings.CutPrefix(at, string(r)+"/"); ok && r != "/" {
		return "/" + rest
	}
	return at
}

// Proc returns the agent's path for a path in the host's process table. The path is not
// resolved below the root: the kernel resolves links in /proc, and their text leads
// elsewhere.
func (r Root) Proc(name string) string {
	return filepath.Join(string(r), "proc", name)
}

// BootID returns the host's boot ID, or "" if it cannot be read.
func (r Root) BootID() string {
	data, err := r.ReadFile("proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Start returns when the first process of the host began, in clock ticks since the boot of the
// kernel, or 0 if that cannot be read. A host can be a container, as in kind, which restarts
// without its kernel.
func (r Root) Start() uint64 {
	table, err := procfs.NewFS(r.Proc(""))
	if err != nil {
		return 0
	}
	first, err := table.Proc(1)
	if err != nil {
		return 0
	}
	stat, err := first.Stat()
	if err != nil {
		return 0
	}
	return stat.Starttime
}

// ReadFile returns the content of a small regular file of the agent itself. Its errors are of type
// *fs.PathError. A pipe does not block the caller, and a large or endless file does not fill the
// memory. Root.ReadFile is for files of the host.
func ReadFile(name string) ([]byte, error) {
	return readFile(os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0))
}

func readFile(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return ReadSmall(f)
}

// ReadSmall returns the content of an open file as ReadFile does.
func ReadSmall(f *os.File) ([]byte, error) {
	refused := func(why string) error { return &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New(why)} }
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refused("not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFileSize {
		return nil, refused("larger than a mebibyte")
	}
	return content, nil
}

// IsBelow reports whether a clean path is a directory or is below it.
func IsBelow(name, dir string) bool {
	return strings.HasPrefix(name+"/", strings.TrimSuffix(dir, "/")+"/")
}

// IsAbsent reports whether err proves that a file does not exist. Any other error proves
// nothing.
func IsAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Reason returns err without the agent's path. The message around it names the host's path.
func Reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// MatchesAny reports whether a name matches one of the patterns of package path.
func MatchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

// Mounts are the mounts of a process's namespace and of the host's.
type Mounts struct{ inside, host []*procfs.MountInfo }

// Mounts reads both mount tables. It returns no mounts if the host does not show them. Files
// of containers are then known by the container's paths alone.
func (r Root) Mounts(pid int) Mounts {
	table, err := procfs.NewFS(r.Proc(""))
	if err != nil {
		return Mounts{}
	}
	read := func(pid int) (mounts []*procfs.MountInfo) {
		if proc, err := table.Proc(pid); err == nil {
			mounts, _ = proc.MountInfo()
		}
		return mounts
	}
	return Mounts{inside: read(pid), host: read(1)}
}

// Find returns the agent's path for a file that a process names. files is the root directory
// of the process. Find prefers the path of the same file on the host, because that path
// outlives the process. A process with the same mounts as the agent names it by the agent's path.
func (r Root) Find(files Root, mounts Mounts, serverPath string) (agentPath string, err error) {
	inside, err := files.Resolve(serverPath)
	if err != nil {
		return "", err
	}
	found, err := files.Stat(serverPath)
	if IsAbsent(err) {
		if candidate, err := r.Resolve(serverPath); err == nil && r.IsSameFile("/", files, "/") {
			return candidate, nil
		}
		return inside, nil
	}
	if err != nil {
		return "", err
	}
	names := []string{serverPath, r.HostPath(serverPath)}
	if outside, ok := mounts.outside(strings.TrimPrefix(inside, string(files))); ok {
		names = append(names, outside)
	}
	for _, name := range names {
		if info, err := r.Stat(name); err == nil && os.SameFile(info, found) {
			return r.Resolve(name)
		}
	}
	return inside, nil
}

// outside returns the host's path for a path of the process's namespace without links. The
// caller must check that it is the same file: another mount may cover it.
func (m Mounts) outside(inside string) (string, bool) {
	mountPoint := func(i *procfs.MountInfo) string { return i.MountPoint }
	mount, rest := deepestMount(m.inside, inside, mountPoint)
	if mount == nil {
		return "", false
	}
	var same []*procfs.MountInfo
	for _, host := range m.host {
		if host.MajorMinorVer == mount.MajorMinorVer {
			same = append(same, host)
		}
	}
	source := path.Join(UnescapeMount(mount.Root), rest)
	host, rest := deepestMount(same, source, func(i *procfs.MountInfo) string { return i.Root })
	if host == nil {
		return "", false
	}
	return path.Join(UnescapeMount(host.MountPoint), rest), true
}

// deepestMount returns the mount whose directory is the longest one that contains the path,
// and the rest of the path. Of equal mounts it returns the last.
func deepestMount(all []*procfs.MountInfo, name string, dir func(*procfs.MountInfo) string) (
	found *procfs.MountInfo, rest string,
) {
	longest := -1
	for _, mount := range all {
		at := strings.TrimSuffix(UnescapeMount(dir(mount)), "/")
		if left, ok := strings.CutPrefix(name+"/", at+"/"); ok && len(at) >= longest {
			found, rest, longest = mount, left, len(at)
		}
	}
	return found, rest
}

// UnescapeMount replaces the kernel's escapes for blanks and backslashes in mountinfo
// (proc_pid_mountinfo(5)).
func UnescapeMount(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
