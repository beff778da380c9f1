package datasearch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// maxLinks is how many links a path may have. The kernel follows no more (path_resolution(7)).
const maxLinks = 40

// A mount is a mounted file system by the agent's path for it.
type mount struct {
	dir, fsType string
	// device and root are the file system, and the directory of it that is mounted.
	device, root string
}

// isLocal reports whether a file system is on a disk of the host, or in its memory. All others are
// never entered: those of a network and of other programs (fuse) can hang, images (squashfs) are
// not written, and the kernel's own contain no data.
func (m mount) isLocal() bool {
	return slices.Contains([]string{
		"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs", "bcachefs", "nilfs2", "tmpfs",
	}, m.fsType)
}

// mountTable returns all mounts of the agent's own mount table. It has what the agent can enter,
// and no path is touched to find out what it is.
func mountTable() (all []mount, err error) {
	table, err := procfs.GetMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range table {
		all = append(all, mount{
			dir: hostfs.UnescapeMount(m.MountPoint), fsType: m.FSType,
			device: m.MajorMinorVer, root: hostfs.UnescapeMount(m.Root),
		})
	}
	return all, nil
}

// mounts returns the mounts to search.
func (s *Search) mounts() ([]mount, error) {
	table, err := mountTable()
	return selectMounts(table, string(s.root)), err
}

// selectMounts returns the mounts below a root directory that are searched, that of the root
// directory first. It leaves out a mount below one that is not searched, because the way to it can
// hang, and one whose files a walk of another one reaches too.
//
// Only the overlay of the root directory is searched: the host can be a container.
func selectMounts(table []mount, root string) []mount {
	last := map[string]mount{} // a later mount covers an earlier one
	for _, m := range table {
		last[m.dir] = m
	}
	start := mount{dir: root}
	for at := root; start.fsType == ""; at = filepath.Dir(at) {
		if m, ok := last[at]; ok {
			rest, _ := filepath.Rel(at, root)
			start.fsType, start.device, start.root = m.fsType, m.device, filepath.Join(m.root, rest)
		}
		if at == "/" {
			break
		}
	}
	var selected []mount
	if start.isLocal() || start.fsType == "overlay" {
		selected = append(selected, start)
	}
	var below []mount
	for dir, m := range last {
		if dir != root && isBelow(dir, root) {
			below = append(below, m)
		}
	}
	slices.SortFunc(below, func(a, b mount) int { return strings.Compare(a.dir, b.dir) })
	hostPath := func(dir string) string { return strings.TrimPrefix(dir, strings.TrimSuffix(root, "/")) }
	barred := map[string]bool{}
	var local []mount
	for _, m := range below {
		switch {
		case isBelowAny(m.dir, barred):
		case !m.isLocal() && (m.fsType != "overlay" || m.device != start.device), isLeftOut(hostPath(m.dir)):
			barred[m.dir] = true
		default:
			local = append(local, m)
		}
	}
	// A mount comes after those that show more of its file system.
	slices.SortStableFunc(local, func(a, b mount) int { return strings.Compare(a.root, b.root) })
	for _, m := range local {
		isShown := func(o mount) bool {
			if o.device != m.device || !isBelow(m.root, o.root) {
				return false
			}
			at := filepath.Join(o.dir, strings.TrimPrefix(m.root, o.root))
			// A directory that is mounted on itself is covered by its own mount.
			isCovering := func(p mount) bool { return p.dir != o.dir && isBelow(p.dir, o.dir) && isBelow(at, p.dir) }
			return isLeftOut(hostPath(at)) || !slices.ContainsFunc(below, isCovering)
		}
		if !slices.ContainsFunc(selected, isShown) {
			selected = append(selected, m)
		}
	}
	return selected
}

// isBelow reports whether a path is a directory or is below it.
func isBelow(name, dir string) bool {
	return strings.HasPrefix(name+"/", strings.TrimSuffix(dir, "/")+"/")
}

// isBelowAny reports whether a path is one of the directories or is below one. A node can have
// thousands of mounts of pods.
func isBelowAny(name string, dirs map[string]bool) bool {
	for at := name; ; at = filepath.Dir(at) {
		if dirs[at] || at == filepath.Dir(at) {
			return dirs[at]
		}
	}
}

// isLeftOut reports whether a directory of the host, or one above it, is left out.
func isLeftOut(dir string) bool {
	for parent := dir; parent != "/" && parent != "."; parent = filepath.Dir(parent) {
		if isStore(filepath.Base(filepath.Dir(parent)), filepath.Base(parent)) {
			return true
		}
	}
	return slices.Contains(stores(), dir)
}

// stores returns directories of the host that contain what is installed, and no data.
func stores() []string { return []string{"/nix/store", "/gnu/store", "/sysroot"} }

// isStore reports whether a directory is one of those that are never searched: images and container
// roots, the volumes of pods, whose etcd is that of a cluster in the cluster, and snapshots of
// file systems. The names are the same below every root directory that an engine is given.
func isStore(parent, name string) bool {
	switch name {
	case "overlay2", ".snapshots", ".zfs":
		return true
	case "pods", "plugins":
		return parent == "kubelet"
	case "aufs", "btrfs", "buildkit", "containers", "devicemapper", "fuse-overlayfs", "image", "vfs", "zfs":
		return parent == "docker"
	case "overlay", "overlay-containers", "overlay-images", "overlay-layers":
		return parent == "storage"
	}
	return strings.HasPrefix(name, "io.containerd.") || isVolumeOfPod(name)
}

// isContainerDir reports whether docker or podman describes its containers in a directory, which is
// left out. The root directory of docker can have another name: the walk then finds the files.
func isContainerDir(parent, name string) bool {
	return parent == "docker" && name == "containers" || parent == "storage" && strings.HasSuffix(name, "-containers")
}

// isVolumeOfPod reports whether a directory has the name of a PersistentVolume, as provisioners
// give it to the directories that they make: pvc-UID, with more words after it.
func isVolumeOfPod(name string) bool {
	uid, ok := strings.CutPrefix(name, "pvc-")
	const length = 36
	return ok && len(uid) >= length && strings.Trim(uid[:length], "0123456789abcdef-") == "" &&
		strings.Count(uid[:length], "-") == 4
}

// MayHang returns a function that reports whether a path of the host is on a file system of a
// network or of another program, or below one, also by a link. Access to such a path may never
// return. The function touches no such path.
// Without the table of mounts, any path may be.
func MayHang(root hostfs.Root) (mayHang func(hostPath string) bool, err error) {
	table, err := mountTable()
	if err != nil {
		return func(string) bool { return true }, err
	}
	foreign := foreignMounts(table, string(root))
	return func(hostPath string) bool {
		at, rest := "/", splitPath(hostPath) // at has no links
		for links := 0; len(rest) > 0 && links <= maxLinks; {
			next := filepath.Join(at, rest[0])
			rest = rest[1:]
			if foreign[filepath.Join(string(root), next)] {
				return true
			}
			target, err := os.Readlink(filepath.Join(string(root), next))
			if err != nil {
				at = next
				continue
			}
			if links++; filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(splitPath(target), rest...)
		}
		return false
	}, nil
}

func splitPath(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// NotMounted returns those of the directories of a host on which nothing is mounted.
func NotMounted(root hostfs.Root, dirs []string) ([]string, error) {
	table, err := mountTable()
	return slices.DeleteFunc(dirs, func(dir string) bool {
		at := filepath.Join(string(root), dir)
		return slices.ContainsFunc(table, func(m mount) bool { return m.dir == at })
	}), err
}

// foreignMounts returns the directories below a root directory where a file system is mounted that
// is neither on a device nor in memory.
func foreignMounts(table []mount, root string) map[string]bool {
	dirs := map[string]bool{}
	last := map[string]mount{} // a later mount covers an earlier one
	for _, m := range table {
		last[m.dir] = m
	}
	for dir, m := range last {
		hasDevice := !strings.HasPrefix(m.device, "0:") // such as images
		if dir != root && isBelow(dir, root) && !m.isLocal() && !hasDevice && m.fsType != "overlay" {
			dirs[dir] = true
		}
	}
	return dirs
}
