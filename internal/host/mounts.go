package host

import (
	"os"
	"path"
	"strings"

	"github.com/prometheus/procfs"
)

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
	names := []string{named}
	if outside, ok := p.mounts.outside(strings.TrimPrefix(inside, string(p.files))); ok {
		names = append(names, outside)
	}
	var candidates []string
	for _, name := range names {
		if at, err := h.root.locate(name); err == nil {
			candidates = append(candidates, at)
		}
	}
	for _, at := range append(candidates, named) {
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

// mounts are what is mounted in a process's namespace, and in the host's.
type mounts struct{ inside, host []*procfs.MountInfo }

// mountsOf reads both tables. A host that does not show them is one whose containers' files are known by the names that
// the containers have for them.
func (h *Host) mountsOf(pid int) mounts {
	var m mounts
	table, err := procfs.NewFS(h.proc(""))
	if err != nil {
		return mounts{}
	}
	proc, err := table.Proc(pid)
	if err != nil {
		return mounts{}
	}
	if m.inside, err = proc.MountInfo(); err != nil {
		return mounts{}
	}
	first, err := table.Proc(1)
	if err != nil {
		return mounts{}
	}
	if m.host, err = first.MountInfo(); err != nil {
		return mounts{}
	}
	return m
}

// outside returns the host's name for a path of the process's namespace without links. Whether it is the same file is for
// the caller to see: something else may be mounted over it.
func (m mounts) outside(inside string) (string, bool) {
	mount, rest := deepest(m.inside, inside, func(i *procfs.MountInfo) string { return i.MountPoint })
	if mount == nil {
		return "", false
	}
	var same []*procfs.MountInfo
	for _, host := range m.host {
		if host.MajorMinorVer == mount.MajorMinorVer {
			same = append(same, host)
		}
	}
	source := path.Join(unescaped(mount.Root), rest)
	host, rest := deepest(same, source, func(i *procfs.MountInfo) string { return i.Root })
	if host == nil {
		return "", false
	}
	return path.Join(unescaped(host.MountPoint), rest), true
}

// deepest returns the mount whose directory is the longest above or at the path, of equal ones the last, and what is left
// of the path.
func deepest(all []*procfs.MountInfo, name string, dir func(*procfs.MountInfo) string) (found *procfs.MountInfo, rest string) {
	longest := -1
	for _, mount := range all {
		at := strings.TrimSuffix(unescaped(dir(mount)), "/")
		if left, ok := strings.CutPrefix(name+"/", at+"/"); ok && len(at) >= longest {
			found, rest, longest = mount, left, len(at)
		}
	}
	return found, rest
}

// unescaped takes off what the kernel writes for blanks and backslashes in mountinfo (proc_pid_mountinfo(5)).
func unescaped(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
