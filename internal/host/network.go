package host

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-envparse"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/smallfile"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// Network says what the host shows of its network. It reads a handful of small files, and asks systemd if there are units
// that somebody waits for.
func (h *Host) Network(ctx context.Context) readiness.Facts {
	facts := readiness.Facts{
		BootID:   h.bootID(),
		Subnet:   h.subnetFile(),
		Conflist: h.conflist(),
		Marker:   h.marker(),
		Units:    h.awaited(ctx),
	}
	facts.GoingDown, facts.StaysUp, facts.AwaitsWord = h.shutdown.say(time.Now())
	return facts
}

// bootID is empty if it could not be read.
func (h *Host) bootID() string {
	data, err := smallfile.Read(h.proc("sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// proc returns a path in the host's process table. It is not resolved in the host's tree: the links in /proc are the
// kernel's own, and read as text they lead elsewhere.
func (h *Host) proc(path string) string {
	return filepath.Join(string(h.root), "proc", path)
}

func (h *Host) subnetFile() readiness.SubnetFile {
	file := readiness.SubnetFile{Path: h.opts.SubnetFile}
	at, err := h.root.locate(file.Path)
	if err == nil {
		var data []byte
		if data, err = smallfile.Read(at); err == nil {
			file.Presence = readiness.Present
			file.Volatile = volatile(at)
			if err = parseSubnetFile(data, &file); err != nil {
				file.Problem = err.Error()
			}
			return file
		}
	}
	if absent(err) {
		file.Presence = readiness.Absent
		return file
	}
	file.Problem = fmt.Sprintf("reading %s: %v", file.Path, plain(err))
	return file
}

// parseSubnetFile reads flannel's subnet file. flanneld writes FLANNEL_IPMASQ last (pkg/subnet/subnet.go,
// WriteSubnetFile): a file that does not end with it is only half there.
func parseSubnetFile(data []byte, file *readiness.SubnetFile) error {
	env, err := envparse.Parse(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("parsing %s: %w", file.Path, err)
	}
	file.Network, file.Subnet = env["FLANNEL_NETWORK"], env["FLANNEL_SUBNET"]
	file.IPv6Network, file.IPv6Subnet = env["FLANNEL_IPV6_NETWORK"], env["FLANNEL_IPV6_SUBNET"]
	file.MTU = env["FLANNEL_MTU"]
	if masq := env["FLANNEL_IPMASQ"]; masq != "true" && masq != "false" {
		return fmt.Errorf("parsing %s: the last line, FLANNEL_IPMASQ=true or =false, is missing or cut off: the file is half-written", file.Path)
	}
	if file.Subnet == "" && file.IPv6Subnet == "" {
		return fmt.Errorf("parsing %s: neither FLANNEL_SUBNET nor FLANNEL_IPV6_SUBNET is set", file.Path)
	}
	for name, value := range map[string]string{"FLANNEL_SUBNET": file.Subnet, "FLANNEL_IPV6_SUBNET": file.IPv6Subnet} {
		if _, err := netip.ParsePrefix(value); value != "" && err != nil {
			return fmt.Errorf("parsing %s: %s is %q, not a subnet", file.Path, name, value)
		}
	}
	if mtu, err := strconv.Atoi(file.MTU); err != nil || mtu <= 0 {
		return fmt.Errorf("parsing %s: FLANNEL_MTU is %q, not a positive number", file.Path, file.MTU)
	}
	return nil
}

// volatile says whether the file at this path of the agent's lies in memory, and so was written since this boot.
func volatile(at string) readiness.Presence {
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return readiness.Unknown
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return readiness.Present
	}
	return readiness.Absent
}

func (h *Host) marker() readiness.Marker {
	marker := readiness.Marker{Path: h.opts.Marker}
	data, err := h.root.read(marker.Path)
	switch {
	case err == nil:
		marker.Presence = readiness.Present
		marker.BootID = strings.TrimSpace(string(data))
	case absent(err):
		marker.Presence = readiness.Absent
	default:
		marker.Problem = fmt.Sprintf("reading %s: %v", marker.Path, plain(err))
	}
	return marker
}

// list returns what is in a directory of the host, sorted by name; nothing if there is no such directory.
func (h *Host) list(dir string) ([]os.DirEntry, error) {
	at, err := h.root.locate(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(at)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, plain(err))
	}
	return entries, nil
}
