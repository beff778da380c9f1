package nodenet

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// findPlugin looks up a CNI plugin as the runtime does: the first directory that has it
// counts.
func (n Network) findPlugin(name string) (readiness.Presence, string) {
	if name == "" || strings.ContainsRune(name, '/') {
		return readiness.Absent, fmt.Sprintf("%q is not a valid name of a program", name)
	}
	var unread error
	for _, dir := range n.CNIBinDirs {
		file := filepath.Join(dir, name)
		switch problem, err := n.checkProgram(file); {
		case hostfs.IsAbsent(err):
		case err != nil:
			unread = errors.Join(unread, fmt.Errorf("reading %s: %w", file, hostfs.Reason(err)))
		case problem != "":
			return readiness.Absent, file + " " + problem
		default:
			return readiness.Present, ""
		}
	}
	if unread != nil {
		return readiness.Unknown, unread.Error()
	}
	return readiness.Absent, ""
}

// checkProgram returns the reason why a program cannot run, or "". Programs are unpacked
// or copied from beginning to end under their final name (kubespray's unarchive, cp in an
// init container).
func (n Network) checkProgram(file string) (problem string, err error) {
	f, err := n.Root.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return "is not executable", nil
	case info.Size() == 0:
		return "is empty", nil
	}
	return programProblem(f, info.Size())
}

// programProblem returns the reason why a program is incomplete, or "". The kernel runs
// scripts, which are accepted as complete, and ELF files, whose tables and all that they
// describe must be within the file (elf(5)). An error is one of reading, not of the format.
func programProblem(r io.ReaderAt, size int64) (problem string, err error) {
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
	program, err := elf.NewFile(r)
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return "", err
	case err != nil:
		return "is not a complete ELF program", nil
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
		return fmt.Sprintf("is an incomplete ELF program: it has %d of %d bytes", size, end), nil
	}
	return "", nil
}
