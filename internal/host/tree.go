package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/smallfile"
)

// tree is a directory whose contents are looked up as if it were the root directory. The host's root is one, and so is
// the root of a process in another mount namespace. Symbolic links in it, absolute ones above all, lead to places in it:
// /var/lib/etcd is often a link to a disk of its own, and following it in the agent's own root would find nothing there
// and take a member for absent.
type tree string

// maxLinks keeps a look short, as it does Linux's own (path_resolution(7)).
const maxLinks = 40

// locate returns the path by which the agent opens path in the tree. What does not exist is no error here.
func (t tree) locate(path string) (string, error) {
	rest := strings.Split(filepath.Clean("/"+path), "/")[1:]
	if t == "/" {
		return filepath.Clean("/" + path), nil
	}
	at, links := string(t), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if at != string(t) {
				at = filepath.Dir(at)
			}
			continue
		}
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		switch {
		case errors.Is(err, syscall.EINVAL): // not a link
			at = next
			continue
		case absent(err):
			if slices.Contains(rest, "..") {
				return next, nil // what is not there has nothing beside it either: this way is as closed as the whole
			}
			return filepath.Join(append([]string{next}, rest...)...), nil
		case err != nil:
			return "", fmt.Errorf("following %q: %w", path, plain(err))
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("following %q: %w", path, syscall.ELOOP)
		}
		if filepath.IsAbs(target) {
			at = string(t)
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

// read returns the content of a small regular file of the tree. It never blocks on a pipe or a device.
func (t tree) read(path string) ([]byte, error) {
	at, err := t.locate(path)
	if err != nil {
		return nil, err
	}
	return smallfile.Read(at)
}

// names returns the names in a directory of the tree, sorted.
func (t tree) names(dir string) ([]string, error) {
	at, err := t.locate(dir)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	names, err := f.Readdirnames(mostNames)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.Sort(names)
	return names, err
}

// stat returns what is at path, links followed.
func (t tree) stat(path string) (fs.FileInfo, error) {
	at, err := t.locate(path)
	if err != nil {
		return nil, err
	}
	return os.Stat(at)
}

// host returns the host's own name for a path of the agent's, for people.
func (t tree) host(at string) string {
	if rest, ok := strings.CutPrefix(at, string(t)+"/"); ok && t != "/" {
		return "/" + rest
	}
	return at
}

// constError is an error that is a constant.
type constError string

func (e constError) Error() string { return string(e) }

// absent says that err proves that there is no such file. Every other error proves nothing.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// plain returns the reason in err without the agent's path, which the message around it names as the host does.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
