package host

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// program is what etcd belongs to on a host: k3s has it inside, k0s and RKE2 start it. Where its data lies follows from
// the program's own data directory.
type program struct {
	// name and role are as in `k3s server`.
	name, role string
	// dataDir is the default of --data-dir, which may also stand in the YAML file settings.
	dataDir, settings string
	// variables begins the names of its variables, empty if it has none that matter.
	variables string
	// etcdDir is etcd's data directory below the program's, and config etcd's configuration in it.
	etcdDir, config string
	// manifest is etcd's static pod below the program's data directory.
	manifest string
	// embeds says that etcd is no process of its own.
	embeds bool
}

// rancher is k3s, which has etcd inside, or RKE2, which is k3s with etcd in a static pod.
func rancher(name, manifest string) program {
	return program{
		name: name, role: "server", dataDir: "/var/lib/rancher/" + name, settings: "/etc/rancher/" + name + "/config.yaml",
		variables: strings.ToUpper(name) + "_", etcdDir: "server/db/etcd", config: "config", manifest: manifest, embeds: manifest == "",
	}
}

// comm is the name that the program gives to its process.
func (p program) comm() string { return p.name + "-" + p.role }

// etcd is etcd's data directory of a program whose own is home.
func (p program) etcd(home string) string { return path.Join(home, p.etcdDir) }

// start is how a program was started: its arguments, and its variables as far as they are known.
type start struct {
	args []string
	env  map[string]string
}

// startIn finds the program in the command of a unit, which may have a wrapper before it. The variables are the unit's
// whatever it runs.
func (p program) startIn(unit service) (start, bool) {
	line := unit.line
	for i := 1; len(line) > 0 && isShell(path.Base(line[0])) && i+1 < len(line); i++ {
		if strings.HasPrefix(line[i], "-") && strings.HasSuffix(line[i], "c") {
			line = commandLine(expand(line[i+1], unit.env), unit.env)
			break
		}
	}
	at := slices.IndexFunc(line, func(word string) bool { return path.Base(word) == p.name })
	if at < 0 {
		return start{env: unit.env}, false
	}
	return start{args: line[at+1:], env: unit.env}, true
}

// told are the data directories that a program was told of, of which the first counts, and the files that it takes its
// settings from besides. k3s and RKE2 put the settings of their files before the flags, of which the last counts, and take
// a variable for a flag that is missing (k3s pkg/configfilearg, parser.go; pkg/cli/cmds/server.go: K3S_DATA_DIR). What
// cannot be read, or names no certain place, is an error; the directories that are known come with it.
func (p program) told(s start, files tree) (homes, from []string, err error) {
	flags := s.settings(p.role)
	if dir := cmp.Or(flags["data-dir"], flags["d"]); filepath.IsAbs(dir) && len(gaps(dir)) == 0 {
		return []string{path.Clean(dir)}, nil, nil
	}
	file := p.settings
	for _, named := range []string{s.env[p.variables+"CONFIG_FILE"], flags["config"], flags["c"]} { // the variable wins
		if p.variables != "" && fillGaps(named, "") != "" { // one that nobody sets is nothing
			file = named
			break
		}
	}
	named := []string{cmp.Or(flags["data-dir"], flags["d"])}
	if file != "" {
		var inFiles string
		inFiles, from, err = p.fileSettings(file, files)
		named = append(named, inFiles)
	}
	if p.variables != "" {
		named = append(named, s.env[p.variables+"DATA_DIR"])
	}
	for _, dir := range named {
		switch {
		case fillGaps(dir, "") == "":
			continue
		case !filepath.IsAbs(dir) || len(gaps(dir)) > 0:
			err = fmt.Errorf("%s was told to keep its data in %q: name the directory by its whole path", p.name, fillGaps(dir, "..."))
			continue
		}
		homes = append(homes, path.Clean(dir))
		// Earlier versions of k3s told themselves by the same variable where they had unpacked their programs
		// (cmd/k3s/main.go, stageAndRun).
		if home := p.unpackedIn(dir); home != "" {
			homes = append(homes, home)
		}
	}
	return homes, from, err
}

// settings are the flags before and after the role.
func (s start) settings(role string) settings {
	before, after := s.args, []string(nil)
	if at := slices.Index(s.args, role); at >= 0 {
		before, after = s.args[:at], s.args[at+1:]
	}
	for len(after) > 0 && after[0] == role {
		after = after[1:]
	}
	flags := flagSettings(before)
	for name, value := range flagSettings(after) {
		flags[name] = value
	}
	return flags
}

// fileSettings reads the data directory from a configuration file and the drop-ins beside it, of which the last one
// counts (k3s pkg/configfilearg, dotDFiles: <file>.d/*.yaml and *.yml in the order of their names). from are the patterns of
// those files, but for the usual ones, which are watched on every host.
func (p program) fileSettings(file string, files tree) (dir string, from []string, err error) {
	switch {
	case strings.Contains(file, "://"):
		return "", nil, fmt.Errorf("%s takes its settings from an address on the network: name its data directory with --data-dir as well", p.name)
	case !filepath.IsAbs(file) || len(gaps(file)) > 0:
		return "", nil, fmt.Errorf("%s was told to take its settings from %q: name the file by its whole path", p.name, fillGaps(file, "..."))
	}
	if file != p.settings {
		from = []string{file, path.Join(file+".d", "*")}
	}
	all := []string{file}
	dropIns, err := files.names(file + ".d")
	if err != nil && !absent(err) {
		return "", from, fmt.Errorf("reading %s: %w", file+".d", plain(err))
	}
	for _, name := range dropIns {
		if ext := strings.ToLower(path.Ext(name)); ext == ".yaml" || ext == ".yml" {
			all = append(all, path.Join(file+".d", name))
		}
	}
	for _, name := range all {
		text, err := files.read(name)
		if absent(err) {
			continue
		}
		if err != nil {
			return dir, from, fmt.Errorf("reading %s: %w", name, plain(err))
		}
		var told struct {
			DataDir any `json:"data-dir"`
			Short   any `json:"d"`
		}
		if err := decodeYAML(text, &told); err != nil {
			return dir, from, fmt.Errorf("parsing %s: %w", name, err)
		}
		dir = cmp.Or(scalar(told.DataDir), scalar(told.Short), dir)
	}
	return dir, from, nil
}

// unpackedIn returns the data directory below which k3s has unpacked its programs, as <home>/data/<digest>, empty for any
// other directory (k3s cmd/k3s/main.go, getAssetAndDir).
func (p program) unpackedIn(dir string) string {
	if at := path.Dir(path.Clean(dir)); p.embeds && path.Base(at) == "data" && path.Dir(at) != "/" {
		return path.Dir(at)
	}
	return ""
}

// place is where a layout has etcd on this very host.
type place struct {
	dataDirs, manifests []string
	// config is etcd's configuration file, empty if none is known.
	config string
}

// place returns where a layout's etcd is to be looked for: in the places of the layout, and in those that its unit or its
// settings name instead.
func (s *scan) place(l layout) place {
	at := place{dataDirs: l.dataDirs, manifests: l.manifests, config: l.config}
	if l.program.name == "" {
		return at
	}
	var homes []string
	add := func(how start, whose string) {
		told, from, err := l.program.told(how, s.host.root)
		if err != nil {
			s.unknown = append(s.unknown, fmt.Sprintf("where %s has its data: %v", whose, err))
		}
		s.settingsFiles = append(s.settingsFiles, from...)
		homes = append(homes, told...)
	}
	for _, unit := range s.services {
		if how, is := l.program.startIn(unit); is {
			add(how, "systemd unit "+unit.name)
		}
	}
	add(start{}, l.name)
	for _, home := range compact(append(homes, l.program.dataDir)) {
		at.dataDirs = append(at.dataDirs, l.program.etcd(home))
		if dir := s.elsewhere(l.program, home); dir != "" {
			at.dataDirs = append(at.dataDirs, dir)
		}
		if l.program.manifest != "" {
			at.manifests = append(at.manifests, path.Join(home, l.program.manifest))
		}
	}
	return at
}

// elsewhere returns the data directory that etcd's configuration names instead of the program's own place for it, empty if
// it names none: --etcd-arg of k3s and RKE2 goes into that file.
func (s *scan) elsewhere(p program, home string) string {
	if p.config == "" {
		return ""
	}
	file := path.Join(p.etcd(home), p.config)
	told, err := precedence(settings{"config-file": file}, nil, s.host.root.read)
	if err != nil {
		if _, err := s.host.root.stat(file); !absent(err) {
			s.unknown = append(s.unknown, fmt.Sprintf("where %s has its data: %v", p.name, err))
		}
		return ""
	}
	if dir := told.settings["data-dir"]; filepath.IsAbs(dir) && path.Clean(dir) != p.etcd(home) {
		return path.Clean(dir)
	}
	return ""
}

// compact takes away what stands before it already, and keeps the order.
func compact(all []string) []string {
	var once []string
	for _, name := range all {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once
}
