package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
)

// process is a running etcd server.
type process struct {
	pid  int
	args []string
	env  map[string]string
	// workDir is empty if it could not be read.
	workDir string
	place   placement
	// files is the server's own root directory, whatever mount namespace it lives in.
	files tree
	// mounts tell what the directories of another mount namespace are called on the host.
	mounts mounts
	// within is the program that contains this etcd, nil for etcd itself. What its etcd was told stands in configFile.
	within     *program
	configFile string
	// exe is the program's file, as far as that is known.
	exe string
	// program is the name for people.
	program string
	// unread is what the kernel did not tell of it, garbled what its own files do not tell.
	unread, garbled []string
}

// processes calls found for each process that may be an etcd server, one after the other: what a process shows of itself
// may have megabytes, and anybody's pod can show some. It returns why the process table does not tell about all of them.
func (h *Host) processes(found func(process)) (unread []string) {
	table, err := procfs.NewFS(h.proc(""))
	if err != nil {
		return []string{fmt.Sprintf("the process table %s: %v", h.proc(""), err)}
	}
	glance, err := newGlance(h.proc(""))
	if err != nil {
		return []string{fmt.Sprintf("the process table %s: %v", h.proc(""), plain(err))}
	}
	defer glance.close()
	pids, err := glance.pids()
	if err != nil {
		return []string{fmt.Sprintf("the process table %s: %v", h.proc(""), plain(err))}
	}
	if len(pids) == 0 && h.bootID() == "" {
		return []string{fmt.Sprintf("the process table %s is empty: mount the host's root with all that is mounted below it", h.proc(""))}
	}
	for _, pid := range pids {
		may, err := glance.mayServe(pid)
		var p process
		if may {
			p, may, err = h.process(table, pid)
		}
		switch {
		case gone(err):
		case err != nil:
			unread = append(unread, fmt.Sprintf("process %d: %v", pid, plain(err)))
		case may:
			found(p)
		}
	}
	return unread
}

// gone says that a process ended while it was looked at.
func gone(err error) bool { return absent(err) || errors.Is(err, syscall.ESRCH) }

// process looks at one process; is says whether it is an etcd server.
func (h *Host) process(table procfs.FS, pid int) (p process, is bool, err error) {
	proc, err := table.Proc(pid)
	if err != nil {
		return p, false, err
	}
	comm, err := proc.Comm()
	if err != nil {
		return p, false, err
	}
	line, err := proc.CmdLine()
	if err != nil {
		return p, false, err
	}
	if len(line) == 0 {
		return p, false, nil // a process that has ended and that nobody has waited for
	}
	exe, err := proc.Executable()
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return p, false, err
	}
	exe = strings.TrimSuffix(exe, deleted)
	p = process{pid: pid, args: line[1:], exe: exe, program: "etcd", files: tree(h.proc(strconv.Itoa(pid) + "/root"))}
	if !isEtcd(comm, exe, line) {
		if p.within = around(comm, exe, line); p.within == nil {
			return p, false, nil
		}
		p.program = p.within.name
	}
	return p, true, h.complete(&p, proc)
}

// complete reads what is wanted of a server. Only an error that says that the process has ended is returned.
func (h *Host) complete(p *process, proc procfs.Proc) error {
	workDir, err := proc.Cwd()
	if err == nil {
		p.workDir = workDir
	}
	cgroups, err := proc.Cgroups()
	if gone(err) {
		return err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the cgroup of process %d: %v", p.pid, plain(err)))
	}
	for _, cgroup := range cgroups {
		p.place.add(cgroup.Path)
	}
	env, err := proc.Environ()
	if gone(err) {
		return err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the environment of process %d: %v", p.pid, plain(err)))
		return nil
	}
	p.env = map[string]string{}
	ours := variablePrefixes()
	for _, variable := range env {
		name, value, ok := strings.Cut(variable, "=")
		if ok && slices.ContainsFunc(ours, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			p.env[strings.Clone(name)] = strings.Clone(value) // a part of a string keeps the whole of it
		}
	}
	return nil
}

// variablePrefixes begin the names of the variables that are settings of etcd, etcdctl or a program around etcd.
func variablePrefixes() []string {
	prefixes := []string{"ETCD"}
	for _, l := range layouts() {
		prefixes = append(prefixes, nonempty(l.program.variables)...)
	}
	return prefixes
}

// around returns the program with etcd inside that a process runs, by the layouts; nil if it runs none.
func around(comm, exe string, line []string) *program {
	base, called := path.Base(exe), path.Base(line[0])
	for _, l := range layouts() {
		p := l.program
		if !p.embeds || (base != p.name && called != p.name && comm != p.comm()) {
			continue
		}
		// Its arguments are hidden, all but the role, which may stand in the program's own name then.
		if comm == p.comm() || slices.Contains(line[1:], p.role) || strings.HasSuffix(line[0], " "+p.role) {
			return &p
		}
	}
	return nil
}

// isEtcd says whether a process is an etcd server: by the program it runs, by its name, or by the name it was called by,
// since each of them may be another's in a package of somebody's own. A shell or a container engine that starts etcd is
// not etcd.
func isEtcd(comm, exe string, line []string) bool {
	exe = path.Base(exe)
	if isShell(exe) || isEngine(exe) || isNoServer(line[1:]) {
		return false
	}
	called := path.Base(line[0])
	if isShell(called) || isEngine(called) {
		return false
	}
	return isServerName(exe) || isServerName(comm) || isServerName(called)
}

// deleted is what the kernel adds to the path of a program that was replaced while it runs.
const deleted = " (deleted)"
