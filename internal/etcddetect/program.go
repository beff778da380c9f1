package etcddetect

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/systemd"
)

// A parentProgram is a program that etcd belongs to: k3s contains it, k0s and RKE2 start it.
// The data directory of etcd depends on the program's own data directory.
type parentProgram struct {
	// name and role are as in `k3s server`.
	name, role string
	// defaultDir is the default of --data-dir, and settings the YAML file that may also set it.
	defaultDir, settings string
	// variables is the prefix of its variables, or "" if none is relevant.
	variables string
	// etcdDir is etcd's data directory below the program's, and config etcd's configuration
	// in it.
	etcdDir, config string
	// manifest is etcd's static pod below the program's data directory.
	manifest string
	// embeds is set if etcd has no process of its own.
	embeds bool
}

// rancherProgram returns k3s, which contains etcd, or RKE2, which is k3s with etcd in a
// static pod.
func rancherProgram(name, manifest string) parentProgram {
	return parentProgram{
		name: name, role: "server",
		defaultDir: "/var/lib/rancher/" + name, settings: "/etc/rancher/" + name + "/config.yaml",
		variables: strings.ToUpper(name) + "_", etcdDir: "server/db/etcd", config: "config",
		manifest: manifest, embeds: manifest == "",
	}
}

// comm returns the name that the program gives to its process.
func (p parentProgram) comm() string { return p.name + "-" + p.role }

// etcdDataDir returns etcd's data directory for a program with this data directory.
func (p parentProgram) etcdDataDir(programDir string) string { return path.Join(programDir, p.etcdDir) }

// A programStart is how a program was started: its arguments, and its variables as far as
// known.
type programStart struct {
	args []string
	env  map[string]string
}

// findIn finds the program in the command of a unit, possibly behind a wrapper. The
// variables are the unit's in any case.
func (p parentProgram) findIn(unit etcdUnit) (start programStart, ok bool) {
	lines := [][]string{unit.line}
	if text, ok := shellText(unit.line); ok {
		lines = shellCommands(text, unit.Env)
	}
	for _, line := range lines {
		if at := slices.IndexFunc(line, func(word string) bool { return path.Base(word) == p.name }); at >= 0 {
			return programStart{args: line[at+1:], env: unit.Env}, true
		}
	}
	return programStart{env: unit.Env}, false
}

// flags returns the flags before and after the role.
func (s programStart) flags(role string) etcdSettings {
	before, after := s.args, []string(nil)
	if at := slices.Index(s.args, role); at >= 0 {
		before, after = s.args[:at], s.args[at+1:]
	}
	for len(after) > 0 && after[0] == role {
		after = after[1:]
	}
	flags := parseFlags(before)
	maps.Copy(flags, parseFlags(after))
	return flags
}

// programDirs returns the data directories that a program is configured with, of which the first
// one that exists counts, and the patterns of its settings files.
//
// k3s and RKE2 put the settings of files before the flags, of which the last counts, and use
// a variable for a missing flag (k3s pkg/configfilearg, parser.go; pkg/cli/cmds/server.go:
// K3S_DATA_DIR). A setting that cannot be read, or names no certain path, is an error. The
// directories that are known come with it.
func (p parentProgram) programDirs(s programStart, files hostfs.Root) (dirs, patterns []string, err error) {
	flags := s.flags(p.role)
	flagDir := cmp.Or(flags["data-dir"], flags["d"])
	if isCertainPath(flagDir) {
		return []string{path.Clean(flagDir)}, nil, nil
	}
	file := p.settings
	// The variable wins.
	for _, named := range []string{s.env[p.variables+"CONFIG_FILE"], flags["config"], flags["c"]} {
		// An unset variable is no setting.
		if p.variables != "" && systemd.ReplaceUnresolved(named, "") != "" {
			file = named
			break
		}
	}
	named := []string{flagDir}
	if file != "" {
		var fileDir string
		fileDir, patterns, err = p.readSettings(file, files)
		named = append(named, fileDir)
	}
	if p.variables != "" {
		named = append(named, s.env[p.variables+"DATA_DIR"])
	}
	for _, dir := range named {
		switch {
		case systemd.ReplaceUnresolved(dir, "") == "":
			continue
		case !isCertainPath(dir):
			err = fmt.Errorf("%s has the data directory %q: set it to an absolute path",
				p.name, systemd.ReplaceUnresolved(dir, "..."))
			continue
		}
		dirs = append(dirs, path.Clean(dir))
		// Earlier versions of k3s set the same variable to the directory of their unpacked
		// programs (cmd/k3s/main.go, stageAndRun).
		dirs = append(dirs, nonempty(p.programDirOfUnpacked(dir))...)
	}
	return dirs, patterns, err
}

// isCertainPath reports whether a setting is an absolute path without unresolved parts.
func isCertainPath(name string) bool {
	return filepath.IsAbs(name) && len(systemd.UnresolvedNames(name)) == 0
}

// readSettings reads the data directory from a settings file and its drop-ins, of which the
// last one counts (k3s pkg/configfilearg, dotDFiles: <file>.d/*.yaml and *.yml, sorted by
// name). patterns are those of the files, except for the default ones, which are watched on
// every host.
func (p parentProgram) readSettings(file string, files hostfs.Root) (dir string, patterns []string, err error) {
	switch {
	case strings.Contains(file, "://"):
		return "", nil, fmt.Errorf("%s reads its settings from the network: "+
			"also set its data directory with --data-dir", p.name)
	case !isCertainPath(file):
		return "", nil, fmt.Errorf("%s has the settings file %q: set it to an absolute path",
			p.name, systemd.ReplaceUnresolved(file, "..."))
	}
	if file != p.settings {
		patterns = []string{file, path.Join(file+".d", "*")}
	}
	all := []string{file}
	dropIns, err := files.ReadNames(file + ".d")
	if err != nil && !hostfs.IsAbsent(err) {
		return "", patterns, fmt.Errorf("reading %s: %w", file+".d", hostfs.Reason(err))
	}
	for _, name := range dropIns {
		if ext := strings.ToLower(path.Ext(name)); ext == ".yaml" || ext == ".yml" {
			all = append(all, path.Join(file+".d", name))
		}
	}
	for _, name := range all {
		text, err := files.ReadFile(name)
		if hostfs.IsAbsent(err) {
			continue
		}
		if err != nil {
			return dir, patterns, fmt.Errorf("reading %s: %w", name, hostfs.Reason(err))
		}
		var settings struct {
			DataDir any `json:"data-dir"`
			Short   any `json:"d"`
		}
		if err := decodeYAML(text, &settings); err != nil {
			return dir, patterns, fmt.Errorf("parsing %s: %w", name, err)
		}
		dir = cmp.Or(scalarText(settings.DataDir), scalarText(settings.Short), dir)
	}
	return dir, patterns, nil
}

// programDirOfUnpacked returns the data directory for a directory into which k3s unpacked its
// programs, which is <data directory>/data/<digest>. For any other directory it returns "" (k3s
// cmd/k3s/main.go, getAssetAndDir).
func (p parentProgram) programDirOfUnpacked(dir string) string {
	if at := path.Dir(path.Clean(dir)); p.embeds && path.Base(at) == "data" && path.Dir(at) != "/" {
		return path.Dir(at)
	}
	return ""
}

// etcdPlaces are the places of etcd on this host by one layout.
type etcdPlaces struct {
	dataDirs, manifests []string
	// config is etcd's configuration file, or "".
	config string
}

// placesOf returns the places of a layout, and those that its unit or settings name instead.
func (s *hostScan) placesOf(l distroLayout) etcdPlaces {
	places := etcdPlaces{dataDirs: l.dataDirs, manifests: l.manifests, config: l.config}
	if l.program.name == "" {
		return places
	}
	var programDirs []string
	add := func(start programStart, owner string) {
		configured, patterns, err := l.program.programDirs(start, s.root)
		if err != nil {
			s.addUnknown("the data directory of %s: %v", owner, err)
		}
		s.settingsFiles = append(s.settingsFiles, patterns...)
		programDirs = append(programDirs, configured...)
	}
	for _, unit := range s.units {
		if start, ok := l.program.findIn(unit); ok {
			add(start, "systemd unit "+unit.Name)
		}
	}
	add(programStart{}, l.name)
	for _, programDir := range unique(append(programDirs, l.program.defaultDir)) {
		places.dataDirs = append(places.dataDirs, l.program.etcdDataDir(programDir))
		places.dataDirs = append(places.dataDirs, nonempty(s.configuredDataDir(l.program, programDir))...)
		if l.program.manifest != "" {
			places.manifests = append(places.manifests, path.Join(programDir, l.program.manifest))
		}
	}
	return places
}

// configuredDataDir returns the data directory in etcd's configuration if it is not the
// program's default, or "". --etcd-arg of k3s and RKE2 goes into that file.
func (s *hostScan) configuredDataDir(p parentProgram, programDir string) string {
	if p.config == "" {
		return ""
	}
	file := path.Join(p.etcdDataDir(programDir), p.config)
	loaded, err := loadSettings(etcdSettings{"config-file": file}, nil, "/", s.root.ReadFile)
	if err != nil {
		if _, err := s.root.Stat(file); !hostfs.IsAbsent(err) {
			s.addUnknown("the data directory of %s: %v", p.name, err)
		}
		return ""
	}
	dir := loaded.etcdSettings["data-dir"]
	if filepath.IsAbs(dir) && path.Clean(dir) != p.etcdDataDir(programDir) {
		return path.Clean(dir)
	}
	return ""
}

// unique returns the names without repetitions, in the same order.
func unique(all []string) []string {
	var once []string
	for _, name := range all {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once
}

func nonempty(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
