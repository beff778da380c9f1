// Package nodenet observes the network of a node: CNI configurations and plugins, flannel's
// subnet file, and the units that the operator waits for.
package nodenet

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/go-envparse"
	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// A Network describes where a host keeps the parts of its network.
type Network struct {
	Root hostfs.Root
	// SubnetFile is flannel's subnet file.
	SubnetFile string
	// CNIConfDirs are the directories of CNI configurations. The first one with a
	// configuration counts.
	CNIConfDirs []string
	// CNIBinDirs are the directories of CNI plugins.
	CNIBinDirs []string
	// Marker is the file that the last task of the network_plugin role writes.
	Marker string
	// Units are the systemd units that the operator waits for.
	Units []string
}

// WithDefaults returns the network with the default places where none are set: for the CNI the
// usual ones, those of distributions, k3s's own, of which data/cni appeared in 2024 (k3s pull
// request 10868), and the bin_dir of GKE's containerd.
func (n Network) WithDefaults() Network {
	n.SubnetFile = cmp.Or(n.SubnetFile, "/run/flannel/subnet.env")
	n.Marker = cmp.Or(n.Marker, "/run/holdfast/network_plugin.done")
	if len(n.CNIConfDirs) == 0 {
		n.CNIConfDirs = []string{"/etc/cni/net.d", "/var/lib/rancher/k3s/agent/etc/cni/net.d"}
	}
	if len(n.CNIBinDirs) == 0 {
		n.CNIBinDirs = []string{
			"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/var/lib/rancher/k3s/data/cni",
			"/var/lib/rancher/k3s/data/current/bin", "/home/kubernetes/bin",
		}
	}
	return n
}

// Facts reads a few small files, and the states of the units if there are any.
func (n Network) Facts(ctx context.Context) readiness.Facts {
	return readiness.Facts{
		BootID:   n.Root.BootID(),
		Start:    n.Root.Start(),
		Subnet:   n.subnetFile(),
		Conflist: n.conflist(),
		Marker:   n.marker(),
		Units:    systemd.Units(ctx, n.Root, n.Units),
	}
}

// Targets returns the directories whose changes may change the facts.
func (n Network) Targets() []hostfs.Target {
	all := []hostfs.Target{hostfs.FileTarget(n.SubnetFile), hostfs.FileTarget(n.Marker)}
	for _, dirs := range [][]string{n.CNIConfDirs, n.CNIBinDirs} {
		for _, dir := range dirs {
			all = append(all, hostfs.Target{Dir: dir})
		}
	}
	return all
}

func (n Network) subnetFile() readiness.SubnetFile {
	file := readiness.SubnetFile{Path: n.SubnetFile}
	f, err := n.Root.Open(file.Path)
	var data []byte
	if err == nil {
		defer func() { _ = f.Close() }() // nothing was written
		data, err = hostfs.ReadSmall(f)
	}
	if file.Presence, file.Problem = fileState(file.Path, err); file.Presence == readiness.Present {
		file.Volatile = isVolatile(f)
		if err = parseSubnetFile(data, &file); err != nil {
			file.Problem = err.Error()
		}
	}
	return file
}

// fileState returns whether a file exists, and why it could not be read.
func fileState(path string, err error) (readiness.Presence, string) {
	switch {
	case err == nil:
		return readiness.Present, ""
	case hostfs.IsAbsent(err):
		return readiness.Absent, ""
	}
	return readiness.Unknown, fmt.Sprintf("reading %s: %v", path, hostfs.Reason(err))
}

// parseSubnetFile reads flannel's subnet file. flanneld writes FLANNEL_IPMASQ last
// (pkg/subnet/subnet.go, WriteSubnetFile). A file that does not end with it is incomplete. The gate
// checks the other values.
func parseSubnetFile(data []byte, file *readiness.SubnetFile) error {
	env, err := envparse.Parse(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("parsing %s: %w", file.Path, err)
	}
	file.Network, file.Subnet = env["FLANNEL_NETWORK"], env["FLANNEL_SUBNET"]
	file.IPv6Network, file.IPv6Subnet = env["FLANNEL_IPV6_NETWORK"], env["FLANNEL_IPV6_SUBNET"]
	file.MTU = env["FLANNEL_MTU"]
	switch masq := env["FLANNEL_IPMASQ"]; {
	case masq == "true" || masq == "false":
	case strings.HasPrefix("true", masq) || strings.HasPrefix("false", masq):
		return fmt.Errorf("parsing %s: the last line, FLANNEL_IPMASQ=true or =false, is missing or cut off: "+
			"the file is half-written, or another program than flannel wrote it", file.Path)
	default:
		return fmt.Errorf("parsing %s: FLANNEL_IPMASQ is %q, and flannel writes true or false: "+
			"if the file is made by hand, correct it", file.Path, masq)
	}
	return nil
}

// isVolatile reports whether an open file is in memory. Such a file was written since this boot.
func isVolatile(f *os.File) readiness.Presence {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return readiness.Unknown
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return readiness.Present
	}
	return readiness.Absent
}

func (n Network) marker() readiness.Marker {
	data, err := n.Root.ReadFile(n.Marker)
	marker := readiness.Marker{Path: n.Marker, BootID: strings.TrimSpace(string(data))}
	marker.Presence, marker.Problem = fileState(n.Marker, err)
	return marker
}
