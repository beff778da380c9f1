package host

import (
	"path"
	"path/filepath"
	"slices"
	"time"
)

// target is a directory whose changes matter, as the host names it.
type target struct {
	dir string
	// names are patterns of the names that matter; all do if there are none.
	names []string
	// starts are patterns of those among them that come just before a server runs.
	starts []string
}

// touched is what etcd makes in its data directory and takes away again each time that it starts, to see whether it may
// write there (client/pkg/fileutil, IsDirWriteable).
const touched = ".touch"

func dataTarget(dir string) target {
	return target{dir: dir, names: []string{"member", touched}, starts: []string{"member", touched}}
}

func fileTarget(name string) target {
	return target{dir: filepath.Dir(name), names: []string{filepath.Base(name)}}
}

// targets are the directories that Network and Etcd look into, and those that the looks so far have led to. Directories
// and not files: a file that is replaced by renaming another over it takes the watch of the old one away with it.
func (h *Host) targets() []target {
	all := []target{fileTarget(h.opts.SubnetFile), fileTarget(h.opts.Marker), fileTarget(busSocket)}
	for _, dir := range slices.Concat(h.opts.CNIConfDirs, h.opts.CNIBinDirs) {
		all = append(all, target{dir: dir})
	}
	units := serverUnits()
	for _, unit := range serverUnits() {
		units = append(units, unit+".d")
	}
	for _, dir := range unitDirs() {
		all = append(all, target{dir: dir, names: units})
	}
	for _, l := range layouts() {
		files, dirs := slices.Concat(l.envFiles, l.manifests), l.dataDirs
		if home := l.program.dataDir; home != "" {
			dirs = append(dirs, path.Join(home, l.program.etcdDir))
		}
		if l.program.manifest != "" {
			files = append(files, path.Join(l.program.dataDir, l.program.manifest))
		}
		if l.program.settings != "" {
			all = append(all, target{dir: l.program.settings + ".d"})
		}
		for _, file := range slices.Concat(files, nonempty(l.config, l.program.settings)) {
			all = append(all, fileTarget(file))
		}
		for _, dir := range dirs {
			all = append(all, dataTarget(dir))
		}
	}
	return slices.Concat(all, groupTargets(), h.traces.targets())
}

func nonempty(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// groupTargets are where a control group appears when a container or a unit starts. This tells of a server with data in a
// place that nothing has named before, and of units where there is no bus. With version 1 of control groups, each
// hierarchy has all of them.
func groupTargets() []target {
	var all []target
	group := func(dir string, names ...string) {
		for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"} {
			all = append(all, target{dir: path.Join(hierarchy, dir), names: names, starts: names})
		}
	}
	group("system.slice", append(serverUnits(), "docker-*.scope", "libpod-*.scope", "nerdctl-*.scope")...)
	group("machine.slice", "libpod-*.scope", "machine-*.scope")
	group("docker", "*")
	group(talosGroup, "etcd")
	return all
}

// echo wakes some times more after a server has begun to start: its group is there before its program runs, and it runs
// before it answers.
type echo struct {
	timer *time.Timer
	rest  []time.Duration
}

// C tells when the next time has come. It blocks while nothing starts.
func (e *echo) C() <-chan time.Time {
	if e.timer == nil {
		return nil
	}
	return e.timer.C
}

// begin counts from the start that was seen last.
func (e *echo) begin() {
	e.stop()
	e.rest = []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 4 * time.Second}
	e.next()
}

func (e *echo) next() {
	if len(e.rest) == 0 {
		e.timer = nil
		return
	}
	e.timer, e.rest = time.NewTimer(e.rest[0]), e.rest[1:]
}

func (e *echo) stop() {
	if e.timer != nil {
		e.timer.Stop()
	}
}
