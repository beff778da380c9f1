package host

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// executable looks for a CNI plugin as the runtime does: the first directory that has it.
func (h *Host) executable(name string) (readiness.Presence, string) {
	if name == "" || strings.ContainsRune(name, '/') {
		return readiness.Absent, fmt.Sprintf("%q is not a program's name", name)
	}
	var unread error
	for _, dir := range h.opts.CNIBinDirs {
		file := filepath.Join(dir, name)
		info, err := h.root.stat(file)
		switch {
		case absent(err):
			continue
		case err != nil:
			unread = errors.Join(unread, fmt.Errorf("looking at %s: %w", file, plain(err)))
			continue
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			return readiness.Absent, file + " is not executable"
		case info.Size() == 0:
			return readiness.Absent, file + " is empty"
		}
		switch why, err := h.half(file); {
		case err != nil:
			unread = errors.Join(unread, fmt.Errorf("looking at %s: %w", file, plain(err)))
		case why != "":
			return readiness.Absent, file + " " + why
		default:
			return readiness.Present, ""
		}
	}
	if unread != nil {
		return readiness.Unknown, unread.Error()
	}
	return readiness.Absent, ""
}

// half says why a program is not there whole: what unpacks or copies it writes it from its beginning to its end, under its own
// name (kubespray's unarchive, cp in an init container).
func (h *Host) half(file string) (why string, err error) {
	at, err := h.root.locate(file)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	return halfProgram(f, info.Size())
}

// halfProgram tells it by what the kernel runs: a script, which is believed to be whole, or ELF, whose tables and all that they
// describe lie within the file (elf(5)). An error is one of reading, not of what was read.
func halfProgram(r io.ReaderAt, size int64) (why string, err error) {
	magic := make([]byte, len(elf.ELFMAG))
	n, err := r.ReadAt(magic, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	switch {
	case bytes.HasPrefix(magic[:n], []byte("#!")):
		return "", nil
	case !bytes.Equal(magic[:n], []byte(elf.ELFMAG)):
		return "is neither an ELF program nor a script", nil
	}
	kept := &keptError{ReaderAt: r}
	program, err := elf.NewFile(kept)
	if err != nil {
		return "is not a whole ELF program", kept.err
	}
	end := uint64(0)
	for _, p := range program.Progs {
		if p.Type != elf.PT_NULL {
			end = max(end, p.Off+p.Filesz)
		}
	}
	for _, s := range program.Sections {
		if s.Type != elf.SHT_NOBITS && s.Type != elf.SHT_NULL {
			end = max(end, s.Offset+s.FileSize)
		}
	}
	if end > uint64(max(size, 0)) {
		return fmt.Sprintf("is not a whole ELF program: it has %d of %d bytes", size, end), nil
	}
	return "", nil
}

// keptError keeps an error of the disk, which the parser does not tell from one of the format.
type keptError struct {
	io.ReaderAt
	err error
}

func (k *keptError) ReadAt(p []byte, at int64) (int, error) {
	n, err := k.ReaderAt.ReadAt(p, at)
	if err != nil && !errors.Is(err, io.EOF) && at >= 0 {
		k.err = err
	}
	return n, err
}
