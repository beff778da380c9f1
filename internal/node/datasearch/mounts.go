package datasearch

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
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
// not searched: those of a network and of other programs (fuse) can hang, images (squashfs) are
// not written, and the kernel's own contain no data.
func (m mount) isLocal() bool {
	return slices.Contains([]string{
		"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs", "bcachefs", "nilfs2", "tmpfs",
	}, m.fsType)
}

// isForeign reports whether a file system is neither on a device, such as an image, nor in memory.
// Access to it may never return.
func (m mount) isForeign() bool {
	return !m.isLocal() && strings.HasPrefix(m.device, "0:") && m.fsType != "overlay"
}

// Mounts are the mounts of the agent's own mount table, as it was when it was read. It has what the
// agent can enter, and no path is touched to find out what it is.
type Mounts struct {
	// Err is why the table could not be read. Then any path may hang, and nothing is mounted.
	Err  error
	root string
	// last are the mounts by their directories. A later mount covers an earlier one.
	last map[string]mount
}

// ReadMounts reads the mounts of a host.
func ReadMounts(root hostfs.Root) Mounts {
	table, err := procfs.GetMounts()
	all := make([]mount, 0, len(table))
	for _, m := range table {
		all = append(all, mount{
			dir: hostfs.UnescapeMount(m.MountPoint), fsType: m.FSType,
			device: m.MajorMinorVer, root: hostfs.UnescapeMount(m.Root),
		})
	}
	mounts := newMounts(root, all)
	mounts.Err = err
	return mounts
}

func newMounts(root hostfs.Root, table []mount) Mounts {
	last := map[string]mount{}
	for _, m := range table {
		last[m.dir] = m
	}
	return Mounts{root: string(root), last: last}
}

// rootMount returns the file system of the root directory.
func (m Mounts) rootMount() mount {
	for at := m.root; ; at = filepath.Dir(at) {
		if above, ok := m.last[at]; ok || at == filepath.Dir(at) {
			rest, _ := filepath.Rel(at, m.root)
			above.dir, above.root = m.root, filepath.Join(above.root, rest)
			return above
		}
	}
}

// searched returns the mounts below the root directory that are searched, that of the root
// directory first. It leaves out a mount below a foreign one, because the way to it can hang, and
// one below a directory that is left out. It also leaves out a mount whose files a walk of another
// one reaches, and that in memory which each login of a user mounts.
//
// Only the overlay of the root directory is searched: the host can be a container.
func (m Mounts) searched() []mount {
	start := m.rootMount()
	var selected []mount
	if start.isLocal() || start.fsType == "overlay" {
		selected = append(selected, start)
	}
	var below []mount
	for dir, o := range m.last {
		if dir != m.root && hostfs.IsBelow(dir, m.root) {
			below = append(below, o)
		}
	}
	slices.SortFunc(below, func(a, b mount) int { return strings.Compare(a.dir, b.dir) })
	hostPath := func(dir string) string { return strings.TrimPrefix(dir, strings.TrimSuffix(m.root, "/")) }
	barred := map[string]bool{}
	var local []mount
	for _, o := range below {
		switch {
		case isBelowAny(o.dir, barred):
		case o.isForeign(), isLeftOut(hostPath(o.dir)), o.fsType == "tmpfs" && path.Dir(hostPath(o.dir)) == "/run/user":
			barred[o.dir] = true
		case o.isLocal(), o.fsType == "overlay" && o.device == start.device:
			local = append(local, o)
		}
	}
	// A mount comes after those that show more of its file system.
	slices.SortStableFunc(local, func(a, b mount) int { return strings.Compare(a.root, b.root) })
	for _, l := range local {
		isShown := func(o mount) bool {
			if o.device != l.device || !hostfs.IsBelow(l.root, o.root) {
				return false
			}
			at := filepath.Join(o.dir, strings.TrimPrefix(l.root, o.root))
			// A directory that is mounted on itself is covered by its own mount.
			isCovering := func(p mount) bool {
				return p.dir != o.dir && hostfs.IsBelow(p.dir, o.dir) && hostfs.IsBelow(at, p.dir)
			}
			return isLeftOut(hostPath(at)) || !slices.ContainsFunc(below, isCovering)
		}
		if !slices.ContainsFunc(selected, isShown) {
			selected = append(selected, l)
		}
	}
	return selected
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
	case "aufs", "btrfs", "buildkit", "devicemapper", "fuse-overlayfs", "vfs", "zfs":
		return parent == "docker"
	case "mounts":
		return len(parent) == 64 // the ID of a container of docker
	case "overlay", "overlay-containers", "overlay-images", "overlay-layers":
		return parent == "storage"
	}
	return strings.HasPrefix(name, "io.containerd.") || volumePattern.MatchString(name)
}

// volumePattern matches a directory with the name of a PersistentVolume, as provisioners give it to
// the directories that they make: pvc-UID, with more words around it.
var volumePattern = regexp.MustCompile(`pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Foreign returns the directory of the host on which a file system of a network, of another program
// or of the kernel is mounted, and which a path leads to or below, also by a link, or "". Access to
// such a path may never return.
func (m Mounts) Foreign(hostPath string) string {
	if m.Err != nil {
		return "/"
	}
	return m.firstOf(hostPath, m.isForeign)
}

// Missing returns a function. For a path of the host, that returns the expected directory on which
// nothing is mounted and to which, or below which, the path leads, also by a link, or "".
func (m Mounts) Missing(expected []string) (missing func(hostPath string) string) {
	isMissing := map[string]bool{}
	for _, dir := range expected {
		_, isMounted := m.last[filepath.Join(m.root, dir)]
		isMissing[dir] = !isMounted
	}
	return func(hostPath string) string {
		return m.firstOf(hostPath, func(dir string) bool { return isMissing[dir] && !m.isLink(dir) })
	}
}

// firstOf returns the first wanted directory on the way of a path of the host, or "". It touches no
// path that may hang.
func (m Mounts) firstOf(hostPath string, isWanted func(hostDir string) bool) string {
	at, rest := "/", splitPath(hostPath) // at has no links
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if isWanted(next) {
			return next
		}
		if m.isForeign(next) {
			return ""
		}
		target, err := os.Readlink(filepath.Join(m.root, next))
		if err != nil {
			at = next
			continue
		}
		if links++; filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(splitPath(target), rest...)
	}
	return ""
}

// isLink reports whether a directory of the host is a link. /etc/fstab can have a link, and the
// mount is where that leads.
func (m Mounts) isLink(hostDir string) bool {
	_, err := os.Readlink(filepath.Join(m.root, hostDir))
	return err == nil
}

func splitPath(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// isForeign reports whether a foreign file system is mounted on a directory of the host.
func (m Mounts) isForeign(hostDir string) bool {
	return m.last[filepath.Join(m.root, hostDir)].isForeign()
}
