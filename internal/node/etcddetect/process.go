package etcddetect

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// An etcdProcess is a running etcd server.
type etcdProcess struct {
	pid  int
	args []string
	// env is nil if it could not be read.
	env map[string]string
	// workDir is "" if it could not be read.
	workDir string
	owner   cgroupOwner
	// cgroups are the paths of its cgroups, without the separators of UIDs.
	cgroups string
	// root is the server's own root directory, whatever its mount namespace.
	root hostfs.Root
	// database is the database that the process has open. It is known only if the process does not
	// have the name of etcd. databaseErr is why its open files could not be read.
	database    openDatabase
	databaseErr error
	// program is the name of the program in messages.
	program string
	// unread are errors of the kernel's files.
	unread []string
}

// addProcesses adds the servers that run. It reads one process at a time: one process can have
// megabytes of arguments and variables, and any user's pod can have such processes.
func (s *hostScan) addProcesses() {
	dir := s.root.Proc("")
	table, err := procfs.NewFS(dir)
	var processes procfs.Procs
	if err == nil {
		processes, err = table.AllProcs()
	}
	var filter procFilter
	if err == nil {
		filter.table, err = s.root.Open("proc")
	}
	if err != nil {
		s.addUnknown("the process table %s: %v", dir, hostfs.Reason(err))
		return
	}
	defer func() { _ = filter.table.Close() }() // nothing was written
	if len(processes) == 0 && s.root.BootID() == "" {
		s.addUnknown("the process table %s is empty: mount the host's root with all mounts below it", dir)
		return
	}
	holders, err := s.lockHolders()
	if err != nil {
		s.addUnknown("the locks of processes in %s: %v", dir, hostfs.Reason(err))
	}
	sort.Sort(processes)
	for _, proc := range processes {
		exe, comm, called, err := filter.names(proc.PID)
		var p etcdProcess
		ok := slices.ContainsFunc([]string{path.Base(exe), comm, path.Base(called)}, isServerName)
		if ok || err == nil && holders[proc.PID] {
			p, ok, err = s.readProcess(proc, exe, comm, holders[proc.PID])
		}
		switch {
		case hasEnded(err):
		case err != nil:
			s.addUnknown("process %d: %v", proc.PID, hostfs.Reason(err))
		case ok:
			s.addProcess(p)
		}
	}
}

// hasEnded reports whether an error means that the process ended while it was read.
func hasEnded(err error) bool { return hostfs.IsAbsent(err) || errors.Is(err, syscall.ESRCH) }

// hidesProgram reports whether an error means that the path of a program cannot be read, but its
// name and its command can: a process may run a program whose path is longer than PATH_MAX.
func hidesProgram(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENAMETOOLONG)
}

// readProcess reads one process by the names of its program. It may hold a lock. ok is false if it
// is no etcd server.
func (d *Detector) readProcess(proc procfs.Proc, exe, comm string, isHolder bool) (p etcdProcess, ok bool, err error) {
	line, err := proc.CmdLine()
	if err != nil || len(line) == 0 { // a zombie
		return p, false, err
	}
	root := hostfs.Root(d.root.Proc(strconv.Itoa(proc.PID) + "/root"))
	p = etcdProcess{pid: proc.PID, args: line[1:], program: "etcd", root: root}
	if isEtcdProcess(comm, exe, line) {
		return p, true, p.readDetails(proc)
	}
	if !isHolder {
		return p, false, nil
	}
	p.program = path.Base(cmp.Or(exe, comm))
	p.database, p.databaseErr = d.openDatabaseOf(proc.PID)
	if hasEnded(p.databaseErr) || p.databaseErr == nil && p.database == (openDatabase{}) {
		return p, false, nil
	}
	return p, true, p.readDetails(proc)
}

// readDetails reads the working directory, cgroups and environment. It returns an error only
// if the process has ended.
func (p *etcdProcess) readDetails(proc procfs.Proc) error {
	if workDir, err := proc.Cwd(); err == nil {
		rootDir, _ := proc.RootDir()
		p.workDir = insideRoot(rootDir, workDir)
	}
	cgroups, err := proc.Cgroups()
	if hasEnded(err) {
		return err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the cgroup of process %d: %v", p.pid, hostfs.Reason(err)))
	}
	own := ownCgroups()
	for _, cgroup := range cgroups {
		p.owner.add(cgroup.Path, own[cgroup.HierarchyID])
		p.cgroups += strings.NewReplacer("-", "", "_", "").Replace(cgroup.Path) + "\n"
	}
	env, err := proc.Environ()
	if hasEnded(err) {
		return err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the environment of process %d: %v", p.pid, hostfs.Reason(err)))
		return nil
	}
	p.env = map[string]string{}
	for _, variable := range env {
		if name, value, ok := strings.Cut(variable, "="); ok && strings.HasPrefix(name, "ETCD") {
			// A substring would keep the whole text in memory.
			p.env[strings.Clone(name)] = strings.Clone(value)
		}
	}
	return nil
}

// insideRoot returns the server's path for one that the kernel shows. After chroot(2), the kernel
// shows paths of the host, also that of the root directory, which is "" if it could not be read.
func insideRoot(rootDir, name string) string {
	if below, ok := strings.CutPrefix(name+"/", strings.TrimSuffix(rootDir, "/")+"/"); ok {
		return path.Clean("/" + below)
	}
	return name
}

// ownCgroups returns the agent's own cgroups by the IDs of their hierarchies, as far as they can be
// read.
func ownCgroups() map[int]string {
	own := map[int]string{}
	if self, err := procfs.Self(); err == nil {
		cgroups, _ := self.Cgroups()
		for _, cgroup := range cgroups {
			own[cgroup.HierarchyID] = cgroup.Path
		}
	}
	return own
}

// isEtcdProcess reports whether a process is an etcd server. Its program, its name or the
// name in its command line may be etcd's, because packages change any of them. A shell or a
// container engine that starts etcd is not etcd.
func isEtcdProcess(comm, exe string, line []string) bool {
	exe = path.Base(exe)
	called := path.Base(line[0])
	if isShell(exe) || isEngine(exe) || isShell(called) || isEngine(called) || isOtherMode(line[1:]) {
		return false
	}
	return isServerName(exe) || isServerName(comm) || isServerName(called)
}

// deletedSuffix is added by the kernel to the path of a program that was replaced while it
// runs.
const deletedSuffix = " (deleted)"

// A procFilter reads the names of processes. A few of thousands may be etcd servers, and reading
// 2,000 processes in full would take longer than the rest of the scan.
type procFilter struct {
	table *os.File
	buf   [4096]byte
}

// names returns the path of the program of a process, its name, and the first word of its command.
// The path is empty if it cannot be read.
func (f *procFilter) names(pid int) (exe, comm, called string, err error) {
	dir := strconv.Itoa(pid)
	n, err := unix.Readlinkat(int(f.table.Fd()), dir+"/exe", f.buf[:])
	if err != nil && !hidesProgram(err) {
		return "", "", "", err // also for a kernel thread, which has no program
	}
	exe = strings.TrimSuffix(string(f.buf[:max(n, 0)]), deletedSuffix)
	text, err := f.read(dir + "/comm")
	if err != nil {
		return "", "", "", err
	}
	comm = string(bytes.TrimSpace(text))
	text, err = f.read(dir + "/cmdline")
	line, _, _ := bytes.Cut(text, []byte{0})
	return exe, comm, string(line), err
}

// read returns the beginning of a file of the table. The next call overwrites it.
func (f *procFilter) read(name string) ([]byte, error) {
	fd, err := unix.Openat(int(f.table.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	n, err := unix.Read(fd, f.buf[:])
	if err != nil {
		return nil, err
	}
	return f.buf[:n], nil
}

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
