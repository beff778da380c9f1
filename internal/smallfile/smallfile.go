// Package smallfile reads files whose path somebody else may have chosen.
package smallfile

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Max is the most that is read of a file, in bytes: configurations are a few kibibytes, bundles of authorities a few hundred.
const Max = 1 << 20

// Read returns the content of a small regular file. Errors are *fs.PathErrors. Neither can a pipe make the caller wait, nor
// a large or endless file fill its memory.
func Read(path string) ([]byte, error) {
	refused := func(why string) error { return &fs.PathError{Op: "read", Path: path, Err: errors.New(why)} }
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
	content, err := io.ReadAll(io.LimitReader(f, Max+1))
	if err != nil {
		return nil, err
	}
	if len(content) > Max {
		return nil, refused("larger than a mebibyte")
	}
	return content, nil
}
