// Package host observes one host: its network, its etcd servers, its shutdown, and the names
// of its machine. It is the agent's view of packages nodenet, etcddetect, datasearch and systemd.
package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/node/datasearch"
	"github.com/holdfast-dev/holdfast/internal/node/etcddetect"
	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// gatherTime is how long events are gathered after the first of a burst, which is
	// reported at once.
	gatherTime = 20 * time.Millisecond
	// minRetryWait and maxRetryWait bound the wait before a failed watch is tried again.
	minRetryWait = time.Second
	maxRetryWait = time.Minute
	// hungAfter is how long after its limit a search counts as hung.
	hungAfter = 250 * time.Millisecond
)

// Options are the places to observe. All paths but Root are the host's own, as a program on
// the host opens them. Empty options have defaults.
type Options struct {
	// Root is the mount point of the host's root directory. Default "/".
	Root string
	// Network has the places of the network. Its root directory is that of the host.
	nodenet.Network
	// EtcdCredential is the operator's credential. It is tried before all others. Its paths
	// are the host's.
	EtcdCredential *evidence.Credential
	// DataSearch limits the searches of the local disks for data of etcd. Default: none.
	DataSearch datasearch.Limits
	// Log receives changes of the watches. Default: nothing is logged.
	Log *slog.Logger
}

// A Host is one observed host.
type Host struct {
	network nodenet.Network
	etcd    *etcddetect.Detector
	search  *datasearch.Search
	// searchTime is the limit of one search.
	searchTime time.Duration
	shutdown   *systemd.ShutdownMonitor
	log        *slog.Logger
}

// New returns a Host after a check that its root is a directory.
func New(o Options) (*Host, error) {
	if o.Root == "" {
		o.Root = "/"
	}
	dir, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("resolving the host root %q: %w", o.Root, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the host root: %w; set it to the directory where the host's / is mounted", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("opening the host root %q: not a directory; "+
			"set it to the directory where the host's / is mounted", dir)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	root := hostfs.Root(dir)
	o.Network.Root = root
	h := &Host{
		network:    o.WithDefaults(),
		etcd:       etcddetect.New(root, o.EtcdCredential),
		search:     datasearch.New(root, o.DataSearch, o.Log),
		searchTime: o.DataSearch.MaxTime,
		shutdown:   systemd.NewShutdownMonitor(root),
		log:        o.Log,
	}
	h.etcd.UseSearch(h.search)
	return h, nil
}

// Network returns the facts about the host's network and its shutdown. It reads a few small
// files, and the states of the awaited units if there are any.
func (h *Host) Network(ctx context.Context) readiness.Facts {
	facts := h.network.Facts(ctx)
	h.shutdown.SetFacts(&facts, time.Now())
	return facts
}

// Etcd returns the etcd servers of the host, running or stopped, the data of others, and the places
// that could not be read. While a place is unknown, the absence of etcd is not proven. It waits for
// no search of the local disks.
func (h *Host) Etcd(context.Context) evidence.Scan { return h.etcd.Detect() }

// SearchData makes Watch search the local disks for data of etcd again, but not within ten minutes
// of the last search.
func (h *Host) SearchData() { h.search.Wake() }

// SearchDataNow searches the local disks for a caller that does not watch. It waits for the end of
// the search, and hardly longer than for its limit: a disk may hang. Then Etcd finds it searching.
func (h *Host) SearchDataNow(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		h.search.Once(ctx)
		close(ended)
	}()
	_ = loop.Wait(ctx, h.searchTime+hungAfter, ended) // the caller checks ctx
}

// EndShutdownDelay lets a shutdown proceed that Network has reported. It does nothing while
// the host stays up.
func (h *Host) EndShutdownDelay() error { return h.shutdown.EndDelay() }

// Watch calls notify whenever the results of Network or Etcd may have changed, at once and
// then at most every 20 ms. It runs until ctx ends, and returns the cause. A watch that fails
// is tried again with growing waits. The caller must also read the host at intervals, to see
// changes meanwhile.
func (h *Host) Watch(ctx context.Context, notify func()) error {
	wake := loop.NewSignal()
	group, ctx := errgroup.WithContext(ctx)
	retry := func(name string, watch func(ready func()) error) {
		group.Go(func() error { return h.retry(ctx, name, watch) })
	}
	retry("files", func(ready func()) error {
		return h.network.Root.Watch(ctx, hostfs.WatchOptions{
			Targets: h.targets, Delays: etcddetect.StartDelays(), Notify: wake.Notify, Ready: ready,
		})
	})
	retry("shutdown", func(ready func()) error { return h.shutdown.Watch(ctx, wake.Notify, ready) })
	if units := h.network.Units; len(units) > 0 {
		retry("bus", func(ready func()) error {
			return systemd.WatchUnits(ctx, h.network.Root, units, wake.Notify, ready)
		})
	}
	group.Go(func() error { return h.search.Run(ctx, wake.Notify) })
	group.Go(func() error { return gather(ctx, wake, notify) })
	return group.Wait()
}

func (h *Host) targets() []hostfs.Target { return slices.Concat(h.network.Targets(), h.etcd.Targets()) }

// gather calls notify at once for the first event, and once for all events in the next
// gatherTime.
func gather(ctx context.Context, wake loop.Signal, notify func()) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wake:
		}
		notify()
		if err := loop.Wait(ctx, gatherTime, nil); err != nil {
			return err
		}
	}
}

// retry runs a watch until ctx ends, and waits after each failure. It logs when the watch
// begins to fail, when the reason changes, and when it works again, which the watch reports
// by calling ready.
func (h *Host) retry(ctx context.Context, name string, watch func(ready func()) error) error {
	wait, logged := loop.NewRetry(loop.Backoff(minRetryWait, maxRetryWait)), loop.LogOnce{}
	ready := func() {
		if logged.ChangedErrorText("", nil) {
			h.log.InfoContext(ctx, "watch recovered", "watch", name)
		}
		wait.Reset()
	}
	for {
		err := watch(ready)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if logged.ChangedErrorText("", err) {
			level := slog.LevelWarn
			if hostfs.IsAbsent(err) { // a host without a bus
				level = slog.LevelInfo
			}
			h.log.Log(ctx, level, "watch failed; polling until it recovers", "watch", name, "reason", err.Error())
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// MachineIDs are the names that the host knows for its machine.
type MachineIDs struct {
	// OpenStack is set if the firmware names OpenStack.
	OpenStack bool
	// ProviderID is the kubelet's --provider-id, or "" if it has none.
	ProviderID string
	// InstanceID is the cloud's name for the machine as cloud-init recorded it. OpenStack's
	// cloud provider makes the provider ID from it (openstack:///<instance ID>).
	InstanceID string
	// SystemUUID is the firmware's, MachineID that of machine-id(5). The kubelet reports
	// both.
	SystemUUID, MachineID string
	// Unread are the files that exist and could not be read, with the reason.
	Unread []string
}

// MachineIDs reads the names of the machine.
func (h *Host) MachineIDs() MachineIDs {
	var m MachineIDs
	first := func(paths ...string) string {
		for _, path := range paths {
			text, err := h.network.Root.ReadFile(path)
			if err != nil {
				if !hostfs.IsAbsent(err) {
					m.Unread = append(m.Unread, path+": "+hostfs.Reason(err).Error())
				}
				continue
			}
			if value := strings.TrimSpace(string(text)); value != "" {
				return value
			}
		}
		return ""
	}
	const dmi = "/sys/class/dmi/id/"
	firmware := first(dmi+"sys_vendor") + first(dmi+"product_name") + first(dmi+"chassis_asset_tag")
	m.OpenStack = strings.Contains(firmware, "OpenStack")
	m.InstanceID = first("/var/lib/cloud/data/instance-id")
	m.SystemUUID = first(dmi + "product_uuid")
	m.MachineID = first("/etc/machine-id", "/var/lib/dbus/machine-id")
	m.ProviderID = kubeletProviderID(h.network.Root.Proc(""))
	return m
}

// kubeletProviderID returns the --provider-id of the kubelet in a process table, or "" if the
// kubelet has none or does not run.
func kubeletProviderID(dir string) string {
	table, err := procfs.NewFS(dir)
	if err != nil {
		return ""
	}
	all, err := table.AllProcs()
	if err != nil {
		return ""
	}
	for _, p := range all {
		line, err := p.CmdLine()
		if comm, failed := p.Comm(); err != nil || failed != nil || comm != "kubelet" {
			continue
		}
		for i, word := range line {
			name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch {
			case name != "provider-id" || !strings.HasPrefix(word, "-"):
			case joined:
				return value
			case i+1 < len(line):
				return line[i+1]
			}
		}
	}
	return ""
}
