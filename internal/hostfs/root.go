// Package hostfs reads the file system of a host that is mounted somewhere in the agent's
// own.
//
// Paths are resolved below the mount point, including symbolic links. Reading never blocks on
// a pipe or a device, and never takes more memory than a configuration file needs.
package hostfs

import (
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

	"golang.org/x/sys/unix"
)

const (
	// MaxFileSize is the most that is read of a file, in bytes. Configurations have a few
	// kibibytes, bundles of certificate authorities a few hundred.
	MaxFileSize = 1 << 20
	// maxNames is the most names that are read of a directory. A directory of certificates
	// has a few dozen.
	maxNames = 4096
	// maxLinks is the most symbolic links that Resolve follows. Linux has the same limit
	// (path_resolution(7)).
	maxLinks = 40
)

// A Root is a directory whose contents are resolved as if it were the root directory: the
// mounted root of the host, or the root of a process in another mount namespace.
//
// Symbolic links are resolved below it. /var/lib/etcd is often an absolute link to a separate
// disk. Followed in the agent's own root, the link leads nowhere, and a member would look
// absent.
type Root string

// Resolve returns the agent's path for a path below the root. A path that does not exist is
// not an error.
func (r Root) Resolve(name string) (string, error) {
	rest := strings.Split(filepath.Clean("/"+name), "/")[1:]
	if r == "/" {
		return filepath.Clean("/" + name), nil
	}
	at, links := string(r), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at != string(r) {
				at = filepath.Dir(at)
			}
			continue
		}
		next := filepath.Join(at, part)
		target, err := os.Readlink(next)
		switch {
		case errors.Is(err, syscall.EINVAL): // not a link
			at = next
			continue
		case IsAbsent(err):
			if slices.Contains(rest, "..") {
				return next, nil // the kernel does not resolve ".." below a missing directory either
			}
			return filepath.Join(append([]string{next}, rest...)...), nil
		case err != nil:
			return "", fmt.Errorf("resolving %q: %w", name, Reason(err))
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolving %q: %w", name, syscall.ELOOP)
		}
		if filepath.IsAbs(target) {
			at = string(r)
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

// ReadFile returns the content of a small regular file below the root.
func (r Root) ReadFile(name string) ([]byte, error) {
	at, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	return ReadFile(at)
}

// ReadNames returns the sorted names in a directory below the root.
func (r Root) ReadNames(dir string) ([]string, error) {
	at, err := r.Resolve(dir)
	if err != nil {
		return nil, err
	}
	return ReadNames(at)
}

// ReadDir returns the sorted entries of a directory below the root. A missing directory is
// empty.
func (r Root) ReadDir(dir string) ([]os.DirEntry, error) {
	at, err := r.Resolve(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(at)
	if IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, Reason(err))
	}
	return entries, nil
}

// Glob returns the sorted paths below the root that match a pattern. A path without wildcards
// is returned even if it does not exist.
func (r Root) Glob(pattern string) ([]string, error) {
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}, nil
	}
	dirs, err := r.Glob(path.Dir(pattern))
	if err != nil {
		return nil, err
	}
	base := path.Base(pattern)
	var all []string
	for _, dir := range dirs {
		entries, err := r.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			hidden := strings.HasPrefix(entry.Name(), ".") && !strings.HasPrefix(base, ".")
			if !hidden && MatchesAny([]string{base}, entry.Name()) {
				all = append(all, path.Join(dir, entry.Name()))
			}
		}
	}
	return all, nil
}

// Stat returns information about a path below the root. It follows symbolic links.
func (r Root) Stat(name string) (fs.FileInfo, error) {
	at, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	return os.Stat(at)
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
	data, err := ReadFile(r.Proc("sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// ReadFile returns the content of a small regular file. Its errors are of type *fs.PathError.
// The path may be chosen by an untrusted party: a pipe does not block the caller, and a large
// or endless file does not fill the memory.
func ReadFile(name string) ([]byte, error) {
	refused := func(why string) error { return &fs.PathError{Op: "read", Path: name, Err: errors.New(why)} }
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refused("not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(content) > MaxFileSize {
		return nil, refused("larger than a mebibyte")
	}
	return content, nil
}

// ReadNames returns the sorted names in a directory. On an error it returns the names that
// were read before the error.
func ReadNames(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	names, err := f.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.Sort(names)
	return names, err
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
