package etcddetect

import (
	"path"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// A parentProgram is a program that etcd belongs to: k3s contains it, k0s and RKE2 start it.
// The data directory of etcd depends on the program's own data directory.
type parentProgram struct {
	// name and role are as in `k3s server`.
	name, role string
	// defaultDir is the default of --data-dir, and settings the YAML file that may also set it.
	defaultDir, settings string
	// etcdDir is etcd's data directory below the program's, and config etcd's configuration
	// in it.
	etcdDir, config string
	// manifests is the directory of static pods below the program's data directory.
	manifests string
}

// rancherProgram returns k3s, which contains etcd, or RKE2, which is k3s with etcd in a
// static pod.
func rancherProgram(name, manifests string) parentProgram {
	return parentProgram{
		name: name, role: "server",
		defaultDir: "/var/lib/rancher/" + name, settings: "/etc/rancher/" + name + "/config.yaml",
		etcdDir: "server/db/etcd", config: "config", manifests: manifests,
	}
}

// etcdDataDir returns etcd's data directory for a program with this data directory.
func (p parentProgram) etcdDataDir(programDir string) string { return path.Join(programDir, p.etcdDir) }

// configFiles returns the files in which the program writes the settings of the etcd with a data
// directory. --etcd-arg of k3s and RKE2 goes into the second one, and can move the data.
func (p parentProgram) configFiles(dataDir string) []string {
	if p.config == "" {
		return nil
	}
	return []string{path.Join(dataDir, p.config), path.Join(p.etcdDataDir(p.defaultDir), p.config)}
}

// programOf returns the program that a unit runs by its name, or nil. The installers of k3s and
// RKE2 name a unit k3s-NAME.service.
func programOf(unit string) *parentProgram {
	for _, l := range distroLayouts() {
		if l.program.name != "" && hostfs.MatchesAny(append(l.units, l.program.name+"*.service"), unit) {
			return &l.program
		}
	}
	return nil
}

// dataDirs returns the data directories of a layout: its own, and those that its configuration or
// the settings of its program mention.
func (s *hostScan) dataDirs(l distroLayout) []string {
	if l.program.name == "" {
		dirs := slices.Clone(l.dataDirs)
		for _, dir := range s.readTexts(unchanged, nonempty(l.config)...).dirs {
			dirs = append(dirs, dir.path)
		}
		return dirs
	}
	dirs := []string{l.program.etcdDataDir(l.program.defaultDir)}
	if l.program.settings == "" {
		return dirs
	}
	settings := s.readTexts(unchanged, append(l.program.configFiles(dirs[0])[:1], l.program.settings)...)
	for _, dir := range settings.dirs {
		dirs = append(dirs, dir.path)
	}
	reasons := settings.unread
	if _, isCertain := settings.places(func(string) bool { return true }); !isCertain && len(reasons) == 0 {
		reasons = []string{"set data-dir in " + l.program.settings + " to an absolute path on a local disk"}
	}
	for _, reason := range reasons {
		s.addUnknown("the data directory of %s: %s", l.name, reason)
	}
	return dirs
}

// nonempty returns the names that are not empty.
func nonempty(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
