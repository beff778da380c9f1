package etcddetect

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// maxOpenFiles is the most open files of a process that are read. etcd opens its database and its
// log first, and the kernel lists them by their numbers.
const maxOpenFiles = 1 << 16

// An openDatabase is the database of an etcd server that a process has open. Both are the server's
// paths.
type openDatabase struct {
	dataDir, logDir string
}

// lockHolders returns the processes that hold a lock of flock(2) for writing, in whatever
// namespaces they are. etcd holds one on its database while it runs (bbolt, db.go, Open). Each
// line has a number, the kind, its effect, the mode and the process (proc(5)). One with an arrow
// waits for the lock before it. The kernel shows no locks of some file systems, so a process
// whose name is etcd's counts without one. A kernel without locks has no such file, and runs no
// etcd.
func (d *Detector) lockHolders() (map[int]bool, error) {
	file, err := d.root.Open("proc/locks")
	if hostfs.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	holders, lines := map[int]bool{}, bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || fields[1] != "FLOCK" || fields[3] != "WRITE" {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			holders[pid] = true
		}
	}
	return holders, lines.Err()
}

// openDatabaseOf returns the database that a process has open. It is empty if the process is no
// etcd server: other programs have databases of the same kind, and tools for etcd open its
// database, but only a server also has its log open. The paths are valid in the root directory of
// the process.
func (d *Detector) openDatabaseOf(pid int) (open openDatabase, err error) {
	process := path.Join("proc", strconv.Itoa(pid))
	table, err := d.root.Open(path.Join(process, "fd"))
	if err != nil {
		return open, err
	}
	defer func() { _ = table.Close() }() // nothing was written
	names, err := table.Readdirnames(maxOpenFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return open, err
	}
	for _, name := range names {
		file, err := os.Readlink(path.Join(string(d.root), process, "fd", name))
		if hostfs.IsAbsent(err) {
			continue // it was closed
		}
		if err != nil {
			return openDatabase{}, err
		}
		file = strings.TrimSuffix(file, deletedSuffix)
		if dir, ok := strings.CutSuffix(file, "/member/snap/db"); ok && filepath.IsAbs(dir) {
			open.dataDir = dir
		}
		if datasearch.IsLogFile(path.Base(file)) {
			open.logDir = path.Dir(file)
		}
		if open.dataDir != "" && open.logDir != "" {
			rootDir, _ := os.Readlink(path.Join(string(d.root), process, "root"))
			return openDatabase{insideRoot(rootDir, open.dataDir), insideRoot(rootDir, open.logDir)}, nil
		}
	}
	return openDatabase{}, nil
}
