// Package host says what the host shows of etcd and of its network: processes, systemd units, files.
//
// It looks and never decides. What cannot be read is reported as unread, with the reason, and never as absent. It asks
// etcd nothing: whether a server is a member, and of which cluster, is internal/etcdprobe's question.
package host

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Options says where on the host to look. Every path but Root is the host's own, as a program on the host would open
// it; empty ones have defaults.
type Options struct {
	// Root is where the host's root directory is mounted. Default "/".
	Root string
	// SubnetFile is flannel's subnet file. Default /run/flannel/subnet.env.
	SubnetFile string
	// CNIConfDirs are the directories of CNI configurations, of which the first that has one counts. Default CNIConfDirs.
	CNIConfDirs []string
	// CNIBinDirs are the directories of CNI plugins. Default CNIBinDirs.
	CNIBinDirs []string
	// Marker is the file that the last task of the network_plugin role writes. Default /run/holdfast/network_plugin.done.
	Marker string
	// Units are systemd units that somebody waits for, by their whole names. Default none.
	Units []string
	// EtcdCredential is a credential that the operator named; it is tried before all others. Its paths are the host's.
	EtcdCredential *protect.Credential
	// Log is told what changes. Default: nothing is logged.
	Log *slog.Logger
}

// Host looks at one host.
type Host struct {
	opts Options
	root tree
	log  *slog.Logger
	// traces are the places that looks have led to.
	traces *traces
	// shutdown is whether the host is going down, as logind last said.
	shutdown shutdown
}

// New returns a Host after checking that its root is a directory.
func New(o Options) (*Host, error) {
	if o.Root == "" {
		o.Root = "/"
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("finding the host root %q: %w", o.Root, err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("opening the host root: %w; name the directory where the host's / is mounted", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("opening the host root %q: not a directory; name the directory where the host's / is mounted", root)
	}
	if o.SubnetFile == "" {
		o.SubnetFile = "/run/flannel/subnet.env"
	}
	if len(o.CNIConfDirs) == 0 {
		o.CNIConfDirs = CNIConfDirs()
	}
	if len(o.CNIBinDirs) == 0 {
		o.CNIBinDirs = CNIBinDirs()
	}
	if o.Marker == "" {
		o.Marker = "/run/holdfast/network_plugin.done"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Host{opts: o, root: tree(root), log: o.Log, traces: newTraces()}
	h.shutdown.lose(time.Now()) // logind has yet to be heard
	return h, nil
}

// CNIConfDirs are the directories in which CNI configurations are looked for: everybody's, and k3s' own.
func CNIConfDirs() []string {
	return []string{"/etc/cni/net.d", "/var/lib/rancher/k3s/agent/etc/cni/net.d"}
}

// CNIBinDirs are the directories in which CNI plugins are looked for: everybody's, distributions', k3s' own, of which
// data/cni came in 2024 (k3s pull request 10868), and the bin_dir of GKE's containerd.
func CNIBinDirs() []string {
	return []string{
		"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/data/current/bin",
		"/home/kubernetes/bin",
	}
}
