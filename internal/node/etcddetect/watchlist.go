package etcddetect

import (
	"path"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// maxDataDirs is the most data directories in a watchlist. A host has one server or two.
const maxDataDirs = 64

// A watchlist has the data directories that scans found and no layout names. They are watched and
// scanned again: a server of which only the data is left is still a voter.
type watchlist struct {
	mu sync.Mutex // guards dataDirs
	// dataDirs are the host's paths, those of the last scan first.
	dataDirs []string
}

// update adds the data directories that a scan found. A full list drops those that were not found
// for the longest time.
func (w *watchlist) update(s *hostScan) {
	var found []string
	for _, f := range s.found {
		root, name := s.root.Split(f.Config.DataDir)
		// Kubernetes cleans up what a pod leaves, and a process's own root ends with the process.
		if !f.InCluster && root == s.root && name != "" {
			found = append(found, name)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	isFound := func(dir string) bool { return slices.Contains(found, dir) }
	all := slices.Concat(found, slices.DeleteFunc(w.dataDirs, isFound))
	w.dataDirs = all[:min(len(all), maxDataDirs)]
}

// all returns the data directories in the list.
func (w *watchlist) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dataDirs)
}

// Targets returns the directories of units, static pods and data, and those in which the start of a
// server shows. A change of any other file counts from the next scan, or the next start.
func (d *Detector) Targets() (all []hostfs.Target) {
	units := unitPatterns()
	for _, unit := range unitPatterns() {
		units = append(units, unit+".d")
	}
	for _, dir := range systemd.UnitDirs() {
		all = append(all, hostfs.Target{Dir: dir, Names: units})
	}
	for _, l := range distroLayouts() {
		for _, dir := range l.manifests {
			all = append(all, hostfs.Target{Dir: dir})
		}
		for _, dir := range l.dataDirs {
			all = append(all, dataDirTarget(dir))
		}
	}
	for _, dir := range d.watchlist.all() {
		all = append(all, dataDirTarget(dir))
	}
	return append(all, cgroupTargets()...)
}

// StartDelays are the times after which a host is read again while a server starts. Its control
// group exists before its program runs, and the program runs before it answers.
func StartDelays() []time.Duration {
	return []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 4 * time.Second}
}

// dataDirTarget returns the target for a data directory. At each start, etcd creates .touch in it
// and removes it, as a test that it is writable (client/pkg/fileutil, IsDirWriteable).
func dataDirTarget(dir string) hostfs.Target {
	return hostfs.Target{Dir: dir, Names: []string{"member", ".touch"}}
}

// cgroupTargets returns the directories in which a control group appears when a container or
// a unit starts. They show servers with data in unknown places. With version 1 of control groups,
// each hierarchy has all groups.
func cgroupTargets() []hostfs.Target {
	var all []hostfs.Target
	add := func(dir string, names ...string) {
		for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"} {
			all = append(all, hostfs.Target{Dir: path.Join(hierarchy, dir), Names: names})
		}
	}
	add("system.slice/system-etcd.slice", "*") // of the instances of etcd@.service
	add("system.slice", append(unitPatterns(), "docker-*.scope", "libpod-*.scope", "nerdctl-*.scope")...)
	add("machine.slice", "libpod-*.scope", "machine-*.scope")
	add("docker", "*")
	add(talosGroup, "etcd")
	return all
}
