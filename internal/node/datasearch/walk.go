package datasearch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

const (
	// maxDepth is how deep a walk goes. Each level has an open directory and a buffer.
	maxDepth = 100
	// bufferSize is the size of the part of a directory that is read at once, in bytes.
	bufferSize = 8 << 10
	// maxFound is the most directories of logs that are kept, and of containers. A host has one or
	// two, and some copies.
	maxFound = 256
)

// A walker reads directories, and nothing else: no file is opened, no link followed, no mount
// crossed.
type walker struct {
	Result         // what was found so far
	root           hostfs.Root
	maxDirectories int
	// isPaced makes the walk pause. used is the CPU time of the thread at the last pause, or at the
	// begin: the thread has made earlier searches.
	isPaced bool
	used    time.Duration

	// mounts are never entered from above.
	mounts Mounts
	// unread is how many directories could not be read, and firstUnread the first with the reason.
	unread      int
	firstUnread string
	// limit is the limit that ended the walk, or "".
	limit string
	// recordsAccess is set where the kernel does not permit to open a directory without a record
	// of the access, and hasNoOpenat2 where it has no openat2(2), or a seccomp profile refuses it.
	recordsAccess, hasNoOpenat2 bool
}

// walkMounts walks each mount. It ends early when ctx does, or at a limit.
func (w *walker) walkMounts(ctx context.Context, mounts []mount) {
	if w.mounts.Err != nil {
		w.addUnread("the mount table", w.mounts.Err)
		return // a walk without it could enter anything
	}
	for _, m := range mounts {
		fd, err := unix.Open(m.dir, openFlags, 0)
		if hostfs.IsAbsent(err) {
			continue // A file was mounted, as container engines do in /etc, or the mount has ended.
		}
		if err != nil {
			w.addUnread(m.dir, err)
			continue
		}
		w.walk(ctx, fd, m.dir, 0)
	}
}

// walk reads an open directory and those below it, and closes it.
func (w *walker) walk(ctx context.Context, fd int, dir string, depth int) {
	defer func() { _ = unix.Close(fd) }() // nothing was written
	w.Directories++
	if w.Directories > w.maxDirectories {
		w.limit = fmt.Sprintf("it ended after %d directories, which is its limit (--data-search-max-directories)",
			w.maxDirectories)
		return
	}
	if w.isPaced {
		w.pace(ctx)
	}
	hasLog := false
	buf := make([]byte, bufferSize)
	for ctx.Err() == nil && w.limit == "" {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !hostfs.IsAbsent(err) {
			w.addUnread(dir, err)
		}
		if err != nil || n <= 0 {
			return
		}
		for rest := buf[:n]; len(rest) > 0 && ctx.Err() == nil && w.limit == ""; {
			var e dirent
			e, rest = nextDirent(rest)
			if IsLogFile(e.name) && !hasLog {
				hasLog = true
				w.add(&w.LogDirs, dir, "a log of etcd")
			}
			if string(e.name) == "config.v2.json" { // The root directory of docker can have any name.
				w.addContainers(filepath.Dir(dir))
			}
			if e.mayBeDir() {
				w.enter(ctx, fd, dir, string(e.name), depth)
			}
		}
	}
}

// enter walks a directory in an open one, unless it is left out.
func (w *walker) enter(ctx context.Context, parent int, dir, name string, depth int) {
	at := filepath.Join(dir, name)
	above := filepath.Base(dir)
	if above == "storage" && strings.HasSuffix(name, "-containers") { // of podman
		w.addContainers(at)
	}
	_, isMount := w.mounts.last[at]
	if isMount || isStore(above, name) || slices.Contains(stores(), w.root.HostPath(at)) {
		return
	}
	if depth == maxDepth {
		w.addUnread(at, errors.New("it is too deep"))
		return
	}
	fd, err := w.open(parent, name)
	switch {
	case err == nil:
		w.walk(ctx, fd, at, depth+1)
	case hostfs.IsAbsent(err), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		// It is no directory, was removed or replaced, or something has been mounted on it.
	default:
		w.addUnread(at, err)
	}
}

// openFlags open a directory and never wait. They follow no link.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

// open opens a directory in an open one. The kernel refuses one on which something has been mounted
// since the walk began. Where it permits that, the access is not recorded on the disk.
func (w *walker) open(parent int, name string) (int, error) {
	flags := openFlags
	if !w.recordsAccess {
		flags |= unix.O_NOATIME
	}
	var fd int
	var err error
	if w.hasNoOpenat2 {
		fd, err = unix.Openat(parent, name, flags, 0)
	} else {
		fd, err = unix.Openat2(parent, name, &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV})
	}
	switch {
	case errors.Is(err, unix.EPERM) && !w.recordsAccess:
		w.recordsAccess = true // O_NOATIME requires CAP_FOWNER
	case (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)) && !w.hasNoOpenat2:
		w.hasNoOpenat2 = true
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
	default:
		return fd, err
	}
	return w.open(parent, name)
}

// pace pauses four times as long as the thread has used the CPU since the last pause, so that a
// search takes at most a fifth of one CPU.
func (w *walker) pace(ctx context.Context) {
	const least, factor = 5 * time.Millisecond, 4
	used := threadCPU()
	if busy := used - w.used; busy >= least {
		_ = loop.Wait(ctx, factor*busy, nil) // the walk checks ctx
		w.used = used
	}
}

// threadCPU returns the CPU time of this thread since its start, or 0 if it is not known.
func threadCPU() time.Duration {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// add adds a directory to a list, and ends the walk if the list is full.
func (w *walker) add(list *[]string, dir, content string) {
	if len(*list) == maxFound {
		w.limit = fmt.Sprintf("it ended after %d directories with %s", maxFound, content)
		return
	}
	*list = append(*list, w.root.HostPath(dir))
}

func (w *walker) addContainers(dir string) {
	if !slices.Contains(w.ContainerDirs, w.root.HostPath(dir)) {
		w.add(&w.ContainerDirs, dir, "the containers of an engine")
	}
}

func (w *walker) addUnread(dir string, err error) {
	if w.unread++; w.unread == 1 {
		w.firstUnread = fmt.Sprintf("%s: %v", w.root.HostPath(dir), err)
	}
}

// incomplete returns why the walk may have missed data, or "".
func (w *walker) incomplete() string {
	switch {
	case w.limit != "":
		return w.limit
	case w.unread > 1:
		return fmt.Sprintf("%d directories could not be read, such as %s", w.unread, w.firstUnread)
	case w.unread == 1:
		return "a directory could not be read, " + w.firstUnread
	}
	return ""
}

// A dirent is an entry of a directory. Its name is valid until the buffer is read into again.
type dirent struct {
	name []byte
	kind byte
}

// nextDirent returns the first entry of a buffer of getdents64(2), and the rest of the buffer.
func nextDirent(buf []byte) (e dirent, rest []byte) {
	const lengthAt, kindAt, nameAt = 16, 18, 19
	length := min(int(binary.NativeEndian.Uint16(buf[lengthAt:])), len(buf))
	name, _, _ := bytes.Cut(buf[nameAt:length], []byte{0})
	return dirent{name: name, kind: buf[kindAt]}, buf[length:]
}

// mayBeDir reports whether an entry may be a directory below the one that is read. Some file
// systems do not tell the kind, and then only opening it does.
func (e dirent) mayBeDir() bool {
	isOwn := string(e.name) == "." || string(e.name) == ".."
	return !isOwn && (e.kind == unix.DT_DIR || e.kind == unix.DT_UNKNOWN)
}

// IsLogFile reports whether a file has the name of a segment of etcd's write-ahead log: its
// sequence number and its first index, in 16 hexadecimal digits each (etcd,
// server/storage/wal/util.go, walName).
func IsLogFile[T string | []byte](name T) bool {
	const length = 16 + 1 + 16 + len(".wal")
	return len(name) == length && logPattern.Match([]byte(name))
}

var logPattern = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}\.wal$`)
