package datasearch

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestSelectMounts(t *testing.T) {
	disk := func(dir, root string) mount { return mount{dir, "ext4", "8:1", root} }
	on := func(dir, fsType, device string) mount { return mount{dir, fsType, device, "/"} }
	for name, c := range map[string]struct {
		table []mount
		root  string
		want  []string
	}{
		"root":          {[]mount{disk("/", "/")}, "/", []string{"/"}},
		"below a mount": {[]mount{disk("/", "/")}, "/host", []string{"/host"}},
		"data disk":     {[]mount{disk("/", "/"), on("/data", "xfs", "8:2")}, "/", []string{"/", "/data"}},
		"host root": {
			[]mount{on("/", "overlay", "0:9"), disk("/host", "/"), on("/host/data", "xfs", "8:2")},
			"/host",
			[]string{"/host", "/host/data"},
		},
		"other container": {[]mount{disk("/", "/"), on("/run/c/rootfs", "overlay", "0:9")}, "/", []string{"/"}},
		"host container":  {[]mount{on("/", "overlay", "0:9")}, "/", []string{"/"}},
		"kernel, images": {
			[]mount{disk("/", "/"), on("/proc", "proc", "0:2"), on("/snap/x", "squashfs", "7:1")},
			"/",
			[]string{"/"},
		},
		"network": {
			[]mount{disk("/", "/"), on("/nfs", "nfs4", "0:7"), on("/nfs/disk", "ext4", "8:3"), on("/f", "fuse.sshfs", "0:8")},
			"/",
			[]string{"/"},
		},
		"disk below an overlay, as with Kairos": {
			[]mount{disk("/", "/"), on("/var", "overlay", "0:9"), on("/var/data", "xfs", "8:2")},
			"/",
			[]string{"/", "/var/data"},
		},
		"disk below an image": {
			[]mount{on("/", "squashfs", "7:0"), on("/usr", "erofs", "7:1"), on("/usr/local", "ext4", "8:2")},
			"/",
			[]string{"/usr/local"},
		},
		"network root": {[]mount{on("/", "nfs", "0:7"), on("/data", "ext4", "8:3")}, "/", []string{"/data"}},
		"covered": {
			[]mount{disk("/", "/"), on("/a", "ext4", "8:3"), on("/a", "nfs", "0:7")}, "/", []string{"/"},
		},
		"bind mount": {[]mount{disk("/", "/"), disk("/mnt", "/srv")}, "/", []string{"/"}},
		"on itself": {
			[]mount{disk("/", "/"), disk("/var/lib/docker", "/var/lib/docker")}, "/", []string{"/", "/var/lib/docker"},
		},
		"host container, on itself": {
			[]mount{on("/", "overlay", "0:9"), {dir: "/srv", fsType: "overlay", device: "0:9", root: "/srv"}},
			"/",
			[]string{"/", "/srv"},
		},
		"below one on itself": {
			[]mount{disk("/", "/"), disk("/etcd", "/srv/etcd"), disk("/srv", "/srv")}, "/", []string{"/", "/srv"},
		},
		"bind mount, source covered": {
			[]mount{disk("/", "/"), disk("/etcd", "/data/etcd"), on("/data", "ext4", "8:2")},
			"/",
			[]string{"/", "/data", "/etcd"},
		},
		"bind mount, source left out": {
			[]mount{disk("/", "/"), disk("/run/vm", "/var/lib/kubelet/pods/1"), disk("/var/lib/kubelet", "/var/lib/kubelet")},
			"/",
			[]string{"/", "/var/lib/kubelet"},
		},
		"subvolumes": {
			[]mount{disk("/", "/@"), disk("/home", "/@home"), disk("/home/a", "/@home/b")},
			"/",
			[]string{"/", "/home"},
		},
		"volume of a pod": {
			[]mount{disk("/", "/"), on("/var/lib/kubelet/pods/1/volumes/x", "ext4", "8:3")}, "/", []string{"/"},
		},
		"the same in a pod": {
			[]mount{disk("/", "/"), disk("/host", "/"), on("/host/var/lib/kubelet/plugins/x", "ext4", "8:3")},
			"/host",
			[]string{"/host"},
		},
		"ostree": {
			[]mount{disk("/", "/ostree/1"), disk("/sysroot", "/"), disk("/var", "/ostree/var")},
			"/",
			[]string{"/", "/var"},
		},
		"memory of a container of docker": {
			[]mount{disk("/", "/"), on("/var/lib/docker/containers/"+hosttest.ContainerID+"/mounts/shm", "tmpfs", "0:9")},
			"/",
			[]string{"/"},
		},
		"similar names": {
			[]mount{disk("/", "/"), on("/nfs", "nfs", "0:7"), on("/nfs2", "ext4", "8:3")},
			"/",
			[]string{"/", "/nfs2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var dirs []string
			for _, m := range newMounts(hostfs.Root(c.root), c.table).searched() {
				dirs = append(dirs, m.dir)
			}
			require.Equal(t, c.want, dirs)
		})
	}
}

func TestForeignMounts(t *testing.T) {
	at := func(dir, fsType, device string) mount { return mount{dir: dir, fsType: fsType, device: device} }
	table := []mount{
		at("/", "overlay", "0:20"), at("/host", "9p", "0:21"), at("/host/data", "ext4", "253:1"),
		at("/host/btrfs", "btrfs", "0:22"), at("/host/tmp", "tmpfs", "0:23"), at("/host/image", "squashfs", "7:1"),
		at("/host/container", "overlay", "0:24"), at("/host/nfs", "nfs4", "0:25"), at("/host/auto", "autofs", "0:26"),
		at("/host/covered", "nfs", "0:27"), at("/host/covered", "xfs", "253:2"), at("/mnt/nfs", "nfs", "0:28"),
		at("/host/proc", "proc", "0:29"),
	}
	mounts := newMounts("/host", table)
	for _, m := range table[2:] {
		name := strings.TrimPrefix(m.dir, "/host")
		require.Equal(t, slices.Contains([]string{"/nfs", "/auto", "/proc"}, name), mounts.isForeign(name), name)
	}
	mounts = ReadMounts("/")
	require.NoError(t, mounts.Err)
	require.Equal(t, "/proc", mounts.Foreign("/proc/1/x"))
	require.Empty(t, mounts.Foreign("/procession"))
	require.Equal(t, "/", Mounts{Err: errors.New("x")}.Foreign("/procession"))
	dir := t.TempDir()
	for link, target := range map[string]string{
		"abs": "/proc/1", "loop": "loop", "rel": "./abs", "up": strings.Repeat("../", 20) + "proc",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	for name, want := range map[string]bool{
		"/abs/x": true, "/rel": true, "/up/1": true, "/loop": false, "/gone/x": false,
	} {
		require.Equal(t, want, mounts.Foreign(dir+name) == "/proc", name)
	}
}

// TestMissing: a directory on which nothing is mounted is on the way of a path, also by a link.
func TestMissing(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Symlink("/data/etcd", filepath.Join(root, "link")))
	require.NoError(t, os.Symlink("/nfs/x", filepath.Join(root, "hang")))
	mounts := ReadMounts(hostfs.Root(root))
	require.NoError(t, mounts.Err)
	mounts.last[filepath.Join(root, "nfs")] = mount{fsType: "nfs", device: "0:25"}
	missing := mounts.Missing([]string{"/data", "/proc", "/nfs/x/y"})
	for name, want := range map[string]string{
		"/data": "/data", "/data/etcd": "/data", "/link/member": "/data", "/data2": "", "/": "",
		"/proc/1": "/proc", // of the host, not of the agent
		"/hang/y": "",      // which is not touched
	} {
		require.Equal(t, want, missing(name), name)
	}
	require.Empty(t, ReadMounts("/").Missing([]string{"/proc"})("/proc/1"))
}

// TestManyMounts checks that the work for a node with thousands of mounts of pods and containers
// grows with their number, and not with its square.
func TestManyMounts(t *testing.T) {
	work := func(count int) float64 {
		table := []mount{{"/", "ext4", "8:1", "/"}}
		for i := range count {
			dir := fmt.Sprintf("/var/lib/kubelet/pods/%032d/volumes/token", i)
			table = append(table, mount{dir, "tmpfs", fmt.Sprint("0:", i), "/"})
		}
		return testing.AllocsPerRun(1, func() {
			require.Len(t, newMounts("/", table).searched(), 1)
		})
	}
	require.Less(t, work(2000), 8*work(500))
}
