package hostfs

import (
	"os"
	"path"
	"strings"

	"github.com/prometheus/procfs"
)

// Mounts are the mounts of a process's namespace and of the host's.
type Mounts struct{ inside, host []*procfs.MountInfo }

// Mounts reads both mount tables. It returns no mounts if the host does not show them. Files
// of containers are then known by the container's paths alone.
func (r Root) Mounts(pid int) Mounts {
	table, err := procfs.NewFS(r.Proc(""))
	if err != nil {
		return Mounts{}
	}
	var m Mounts
	for _, read := range []struct {
		pid  int
		into *[]*procfs.MountInfo
	}{{pid, &m.inside}, {1, &m.host}} {
		proc, err := table.Proc(read.pid)
		if err != nil {
			return Mounts{}
		}
		if *read.into, err = proc.MountInfo(); err != nil {
			return Mounts{}
		}
	}
	return m
}

// Find returns the agent's path for a file that a process names. files is the root directory
// of the process. Find prefers the path of the same file on the host, because that path
// outlives the process.
func (r Root) Find(files Root, mounts Mounts, named string) (string, error) {
	inside, err := files.Resolve(named)
	if err != nil {
		return "", err
	}
	found, err := os.Stat(inside)
	if IsAbsent(err) {
		if at, err := r.Resolve(named); err == nil && r.IsSameDir(files) {
			return at, nil
		}
		return inside, nil
	}
	if err != nil {
		return "", err
	}
	names := []string{named}
	if outside, ok := mounts.outside(strings.TrimPrefix(inside, string(files))); ok {
		names = append(names, outside)
	}
	var candidates []string
	for _, name := range names {
		if at, err := r.Resolve(name); err == nil {
			candidates = append(candidates, at)
		}
	}
	for _, at := range append(candidates, named) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, found) {
			return at, nil
		}
	}
	return inside, nil
}

// IsSameDir reports whether two roots are the same directory.
func (r Root) IsSameDir(other Root) bool {
	own, err := os.Stat(string(r))
	if err != nil {
		return false
	}
	info, err := os.Stat(string(other))
	return err == nil && os.SameFile(own, info)
}

// outside returns the host's path for a path of the process's namespace without links. The
// caller must check that it is the same file: another mount may cover it.
func (m Mounts) outside(inside string) (string, bool) {
	mountPoint := func(i *procfs.MountInfo) string { return i.MountPoint }
	mount, rest := deepestMount(m.inside, inside, mountPoint)
	if mount == nil {
		return "", false
	}
	var same []*procfs.MountInfo
	for _, host := range m.host {
		if host.MajorMinorVer == mount.MajorMinorVer {
			same = append(same, host)
		}
	}
	source := path.Join(unescapeMount(mount.Root), rest)
	host, rest := deepestMount(same, source, func(i *procfs.MountInfo) string { return i.Root })
	if host == nil {
		return "", false
	}
	return path.Join(unescapeMount(host.MountPoint), rest), true
}

// deepestMount returns the mount whose directory is the longest one that contains the path,
// and the rest of the path. Of equal mounts it returns the last.
func deepestMount(all []*procfs.MountInfo, name string, dir func(*procfs.MountInfo) string) (
	found *procfs.MountInfo, rest string,
) {
	longest := -1
	for _, mount := range all {
		at := strings.TrimSuffix(unescapeMount(dir(mount)), "/")
		if left, ok := strings.CutPrefix(name+"/", at+"/"); ok && len(at) >= longest {
			found, rest, longest = mount, left, len(at)
		}
	}
	return found, rest
}

// unescapeMount replaces the kernel's escapes for blanks and backslashes in mountinfo
// (proc_pid_mountinfo(5)).
func unescapeMount(name string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(name)
}
