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
	// configFile is set for a program that contains etcd: what its etcd was told stands there.
	configFile string
	// program is the name for people.
	program string
	// unread is what the kernel did not tell of it, garbled what its own files do not tell.
	unread, garbled []string
}

// processes returns the etcd servers that run, and why the process table does not tell about all of them.
func (h *Host) processes() (found []process, unread []string) {
	table, err := procfs.NewFS(h.proc(""))
	if err != nil {
		return nil, []string{fmt.Sprintf("the process table %s: %v", h.proc(""), err)}
	}
	glance, err := newGlance(h.proc(""))
	if err != nil {
		return nil, []string{fmt.Sprintf("the process table %s: %v", h.proc(""), plain(err))}
	}
	defer glance.close()
	pids, err := glance.pids()
	if err != nil {
		return nil, []string{fmt.Sprintf("the process table %s: %v", h.proc(""), plain(err))}
	}
	if len(pids) == 0 && h.bootID() == "" {
		return nil, []string{fmt.Sprintf("the process table %s is empty: mount the host's root with all that is mounted below it", h.proc(""))}
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
			found = append(found, p)
		}
	}
	return found, unread
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
	p = process{pid: pid, args: line[1:], program: "etcd", files: tree(h.proc(strconv.Itoa(pid) + "/root"))}
	if !isEtcd(comm, exe, line) {
		if !h.embeds(&p, comm, exe, line) {
			return p, false, nil
		}
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
	if !h.sameRoot(*p) {
		p.mounts = h.mountsOf(proc)
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
	for _, variable := range env {
		if name, value, ok := strings.Cut(variable, "="); ok {
			p.env[name] = value
		}
	}
	return nil
}

// isServerName says whether a program of this name is etcd. CoreOS had etcd2 beside the first one.
func isServerName(name string) bool { return name == "etcd" || name == "etcd2" }

// isEtcd says whether a process is an etcd server: by the program it runs, by its name, or by the name it was called by,
// since each of them may be another's in a package of somebody's own. A shell or a container engine that starts etcd is
// not etcd.
func isEtcd(comm, exe string, line []string) bool {
	exe = path.Base(strings.TrimSuffix(exe, deleted))
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

// embeds says whether the process is a program with etcd inside, by the layouts, and where that etcd's configuration is.
func (h *Host) embeds(p *process, comm, exe string, line []string) bool {
	base := path.Base(strings.TrimSuffix(exe, deleted))
	called := path.Base(line[0])
	for _, l := range layouts() {
		e := l.program
		if !e.embeds || (base != e.name && called != e.name && comm != e.comm()) {
			continue
		}
		if comm != e.comm() && !slices.Contains(line[1:], e.role) && !strings.HasSuffix(line[0], " "+e.role) {
			continue
		}
		dir, err := e.etcd(line[1:], p.files)
		if err != nil {
			p.garbled = append(p.garbled, err.Error())
		}
		config := path.Join(dir, e.config)
		if _, err := p.files.stat(config); absent(err) {
			continue // it keeps its data elsewhere than in an etcd of its own
		}
		p.configFile, p.program, p.args = config, e.name, nil
		return true
	}
	return false
}
