package etcdprobe

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// maxFileSize is the most that is read of a file of a credential. Bundles of authorities are a few hundred kibibytes.
const maxFileSize = 1 << 20

// readFile returns the content of a small regular file. Where a credential lies may be chosen by a process that nobody
// trusts: a pipe must not make the question wait, and no file fill the memory.
func readFile(path string) ([]byte, error) {
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
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("larger than a mebibyte")}
	}
	return text, nil
}
