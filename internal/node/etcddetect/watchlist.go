package etcddetect

import (
	"path"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// maxWatched is the most names in each list of a watchlist. A host has one server or two.
const maxWatched = 64

// A watchlist has the places that scans found and no layout names: the files and data
// directories of servers in other places, and their units. They are watched. The data
// directories are also scanned again: a server of which only the data is left is still a
// voter.
type watchlist struct {
	mu sync.Mutex // guards the three lists
	// files are the host's paths, as the others are.
	files, dataDirs, units []string

	// newTargets and newUnits are set when a list grows.
	newTargets, newUnits loop.Signal
}

// update adds the places that a scan found.
func (w *watchlist) update(s *hostScan) {
	var files, dataDirs, units []string
	for _, st := range s.starters {
		if st.kind == unitStarter {
			units = append(units, st.name)
		}
		files = append(files, st.absent...)
		for _, text := range st.all {
			files = append(files, text.file)
		}
	}
	for _, f := range s.found {
		if !f.InCluster { // Kubernetes cleans up what a pod leaves
			dataDirs = append(dataDirs, s.persistentPaths(f.Config.DataDir)...)
		}
		files = append(files, s.persistentPaths(f.Config.File)...)
		for _, c := range f.Credentials {
			files = append(files, s.persistentPaths(c.CA, c.Cert, c.Key)...)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	hasNewFiles, hasNewDirs := addNames(&w.files, files), addNames(&w.dataDirs, dataDirs)
	if hasNewFiles || hasNewDirs {
		w.newTargets.Notify()
	}
	if addNames(&w.units, units) {
		w.newUnits.Notify()
	}
}

// persistentPaths returns the host's paths for paths of the agent, without those in a process's own
// root, which end with the process.
func (s *hostScan) persistentPaths(agentPaths ...string) (hostPaths []string) {
	for _, agentPath := range agentPaths {
		if root, name := s.root.Split(agentPath); root == s.root && name != "" {
			hostPaths = append(hostPaths, name)
		}
	}
	return hostPaths
}

// addNames adds the names that a scan found, and reports whether one of them is new. A full list
// drops the oldest name that this scan did not find, so scans with the same result never evict each
// other's names.
func addNames(all *[]string, found []string) (isNew bool) {
	for _, name := range found {
		if slices.Contains(*all, name) {
			continue
		}
		if len(*all) == maxWatched {
			unused := slices.IndexFunc(*all, func(old string) bool { return !slices.Contains(found, old) })
			if unused < 0 {
				return isNew
			}
			*all = slices.Delete(*all, unused, unused+1)
		}
		*all = append(*all, name)
		isNew = true
	}
	return isNew
}

// names returns the names in one of the lists.
func (w *watchlist) names(list *[]string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(*list)
}

// Targets returns the directories that Detect reads, and those of the servers that it found.
// The channel receives a value when the targets grow.
func (d *Detector) Targets() ([]hostfs.Target, <-chan struct{}) {
	all := []hostfs.Target{hostfs.FileTarget(systemd.BusSocket)}
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
		if l.program.settings != "" {
			all = append(all, hostfs.Target{Dir: l.program.settings + ".d"})
		}
		for _, file := range slices.Concat(l.envFiles, nonempty(l.config, l.program.settings)) {
			all = append(all, hostfs.FileTarget(file))
		}
		for _, dir := range l.dataDirs {
			all = append(all, dataDirTarget(dir))
		}
	}
	for _, file := range d.watchlist.names(&d.watchlist.files) {
		all = append(all, hostfs.FileTarget(file))
	}
	for _, dir := range d.watchlist.names(&d.watchlist.dataDirs) {
		all = append(all, dataDirTarget(dir))
	}
	return append(all, cgroupTargets()...), d.watchlist.newTargets
}

// Units returns the units of the layouts and those that Detect found. The channel receives a
// value when there are more.
func (d *Detector) Units() ([]string, <-chan struct{}) {
	units := d.watchlist.names(&d.watchlist.units)
	for _, l := range distroLayouts() {
		units = append(units, l.units...)
	}
	return units, d.watchlist.newUnits
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
// a unit starts. They show servers with data in unknown places, and units of a host without a
// bus. With version 1 of control groups, each hierarchy has all groups.
func cgroupTargets() []hostfs.Target {
	var all []hostfs.Target
	add := func(dir string, names ...string) {
		for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"} {
			all = append(all, hostfs.Target{Dir: path.Join(hierarchy, dir), Names: names})
		}
	}
	add("system.slice", append(unitPatterns(), "docker-*.scope", "libpod-*.scope", "nerdctl-*.scope")...)
	add("machine.slice", "libpod-*.scope", "machine-*.scope")
	add("docker", "*")
	add(talosGroup, "etcd")
	return all
}
