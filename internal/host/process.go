package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
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
	// configFile is set for a program that contains etcd: what its etcd was told stands there.
	configFile string
	// program is the name for people.
	program string
	// unread is what could not be read of it.
	unread []string
}

// processes returns the etcd servers that run, and why the process table does not tell about all of them.
func (h *Host) processes() (found []process, unread []string) {
	table, err := procfs.NewFS(h.proc(""))
	if err != nil {
		return nil, []string{fmt.Sprintf("the process table %s: %v", h.proc(""), err)}
	}
	all, err := table.AllProcs()
	if err != nil {
		return nil, []string{fmt.Sprintf("the process table %s: %v", h.proc(""), err)}
	}
	if len(all) == 0 && h.bootID() == "" {
		return nil, []string{fmt.Sprintf("the process table %s is empty: mount the host's root with all that is mounted below it", h.proc(""))}
	}
	slices.SortFunc(all, func(a, b procfs.Proc) int { return a.PID - b.PID })
	for _, proc := range all {
		p, is, err := h.process(proc)
		switch {
		case gone(err):
		case err != nil:
			unread = append(unread, fmt.Sprintf("process %d: %v", proc.PID, plain(err)))
		case is:
			found = append(found, p)
		}
	}
	return found, unread
}

// gone says that a process ended while it was looked at.
func gone(err error) bool { return absent(err) || errors.Is(err, syscall.ESRCH) }

// process looks at one process; is says whether it is an etcd server.
func (h *Host) process(proc procfs.Proc) (p process, is bool, err error) {
	comm, err := proc.Comm()
	if err != nil {
		return p, false, err
	}
	line, err := proc.CmdLine()
	if err != nil {
		return p, false, err
	}
	if len(line) == 0 {
		return p, false, nil // a kernel thread, or a process that has ended and that nobody has waited for
	}
	exe, err := proc.Executable()
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return p, false, err
	}
	p = process{
		pid: proc.PID, args: line[1:], program: "etcd",
		files: tree(h.proc(strconv.Itoa(proc.PID) + "/root")),
	}
	if !isEtcd(comm, exe, line) {
		if !h.embeds(&p, comm, exe, line) {
			return p, false, nil
		}
	}
	if p.workDir, err = proc.Cwd(); err != nil {
		p.workDir = ""
	}
	cgroups, err := proc.Cgroups()
	if gone(err) {
		return p, false, err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the cgroup of process %d: %v", p.pid, plain(err)))
	}
	for _, cgroup := range cgroups {
		p.place.add(cgroup.Path)
	}
	env, err := proc.Environ()
	if gone(err) {
		return p, false, err
	}
	if err != nil {
		p.unread = append(p.unread, fmt.Sprintf("the environment of process %d: %v", p.pid, plain(err)))
		return p, true, nil
	}
	p.env = map[string]string{}
	for _, variable := range env {
		if name, value, ok := strings.Cut(variable, "="); ok {
			p.env[name] = value
		}
	}
	return p, true, nil
}

// isEtcd says whether a process is an etcd server: by the program it runs, by its name, or by the name it was called by,
// since each of them may be another's in a package of somebody's own. A shell or a container engine that starts etcd is
// not etcd.
func isEtcd(comm, exe string, line []string) bool {
	exe = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	if isShell(exe) || isEngine(exe) || isNoServer(line[1:]) {
		return false
	}
	called := path.Base(line[0])
	if isShell(called) || isEngine(called) {
		return false
	}
	return exe == "etcd" || comm == "etcd" || called == "etcd"
}

// embeds says whether the process is a program with etcd inside, by the layouts, and where that etcd's configuration is.
func (h *Host) embeds(p *process, comm, exe string, line []string) bool {
	base := path.Base(strings.TrimSuffix(exe, " (deleted)"))
	called := path.Base(line[0])
	for _, l := range layouts() {
		e := l.embedded
		if e.program == "" || (base != e.program && called != e.program && comm != e.program+"-"+e.role) {
			continue
		}
		if comm != e.program+"-"+e.role && !slices.Contains(line[1:], e.role) && !strings.HasSuffix(line[0], " "+e.role) {
			continue
		}
		dir := e.dataDir
		told := flagSettings(slices.DeleteFunc(slices.Clone(line[1:]), func(arg string) bool { return arg == e.role }))
		for _, flag := range []string{"data-dir", "d"} {
			if told[flag] != "" {
				dir = told[flag]
			}
		}
		config := filepath.Join(dir, e.config)
		if _, err := p.files.stat(config); absent(err) {
			continue // it keeps its data elsewhere than in an etcd of its own
		}
		p.configFile, p.program, p.args = config, e.program, nil
		return true
	}
	return false
}

// placement is what a process's cgroup says of who runs it.
type placement struct {
	unit      string
	container bool
	pod       bool
	// static says that the pod came from a file or a URL of the kubelet's and not from the API server.
	static bool
}

// add reads one cgroup path. The innermost name decides: a node of a test cluster is itself a container, or even a pod,
// with units and pods of its own inside.
func (p *placement) add(cgroup string) {
	var here placement
	for _, name := range strings.Split(cgroup, "/") {
		switch {
		case strings.Contains(name, "kubepods"), podUID(name) != "":
			here = placement{pod: true, static: isStaticUID(podUID(name))}
		case isContainerGroup(name):
			here = placement{container: true, pod: here.pod, static: here.static}
		case strings.HasSuffix(name, ".service") && !isRuntimeUnit(name):
			here = placement{unit: name}
		}
	}
	if here != (placement{}) {
		*p = here
	}
}

// podUID is the pod's UID in the name of its group: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with underscores.
func podUID(name string) string {
	at := strings.LastIndex(name, "pod")
	if at < 0 {
		return ""
	}
	uid := strings.TrimSuffix(name[at+len("pod"):], ".slice")
	if hex := strings.NewReplacer("-", "", "_", "").Replace(uid); len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return ""
	}
	return uid
}

// isStaticUID says that the kubelet made the UID, as the digest of a static pod (pkg/kubelet/config/common.go,
// applyDefaults): the API server's have separators, and nobody else can choose one.
func isStaticUID(uid string) bool { return len(uid) == 32 }

func isRuntimeUnit(name string) bool {
	switch name {
	case "docker.service", "containerd.service", "crio.service", "podman.service", "kubelet.service", "init.scope":
		return true
	}
	return strings.HasPrefix(name, "user@")
}

// isContainerGroup knows the names that engines give: `docker-<id>.scope`, `libpod-<id>.scope`, `cri-containerd-<id>.scope`,
// `crio-<id>.scope`, and a bare ID below a directory of the engine.
func isContainerGroup(name string) bool {
	for _, engine := range []string{"docker-", "libpod-", "cri-containerd-", "crio-", "nerdctl-"} {
		if strings.HasPrefix(name, engine) {
			return true
		}
	}
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// find returns the path by which the agent opens a file that the server names. The same file by its path on the host is
// preferred, since that outlives the process; os.SameFile tells whether it is the same.
func (h *Host) find(p process, named string) (string, error) {
	inside, err := p.files.locate(named)
	if err != nil {
		return "", err
	}
	there, err := os.Stat(inside)
	if absent(err) {
		if at, err := h.root.locate(named); err == nil && h.sameRoot(p) {
			return at, nil
		}
		return inside, nil
	}
	if err != nil {
		return "", err
	}
	candidates := []string{named}
	if at, err := h.root.locate(named); err == nil {
		candidates = []string{at, named}
	}
	for _, at := range candidates {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, there) {
			return at, nil
		}
	}
	return inside, nil
}

// sameRoot says whether the process has the host's root directory for its own.
func (h *Host) sameRoot(p process) bool {
	own, err := os.Stat(string(p.files))
	if err != nil {
		return false
	}
	host, err := os.Stat(string(h.root))
	return err == nil && os.SameFile(own, host)
}
