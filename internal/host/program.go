package host

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// program is what etcd belongs to on a host: k3s has it inside, k0s and RKE2 start it. Where its data lies follows from
// the program's own data directory.
type program struct {
	// name and role are as in `k3s server`.
	name, role string
	// dataDir is the default of --data-dir, which may also stand in the YAML file settings.
	dataDir, settings string
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
		etcdDir: "server/db/etcd", config: "config", manifest: manifest, embeds: manifest == "",
	}
}

// comm is the name that the program gives to its process.
func (p program) comm() string { return p.name + "-" + p.role }

// etcd returns etcd's data directory if the program was started with these arguments. If its settings cannot be read,
// that is told, and the default is returned.
func (p program) etcd(args []string, files tree) (string, error) {
	dir, err := p.home(args, files)
	return path.Join(dir, p.etcdDir), err
}

// home returns the program's data directory: the flag's if there is one, else the settings' (k3s pkg/configfilearg).
func (p program) home(args []string, files tree) (string, error) {
	for len(args) > 0 && args[0] == p.role {
		args = args[1:]
	}
	told := flagSettings(args)
	for _, flag := range []string{"data-dir", "d"} {
		if filepath.IsAbs(told[flag]) {
			return told[flag], nil
		}
	}
	if p.settings == "" {
		return p.dataDir, nil
	}
	text, err := files.read(p.settings)
	if absent(err) {
		return p.dataDir, nil
	}
	if err != nil {
		return p.dataDir, fmt.Errorf("reading %s: %w", p.settings, plain(err))
	}
	var settings struct {
		DataDir string `json:"data-dir"`
	}
	if err := yaml.Unmarshal(text, &settings); err != nil {
		return p.dataDir, fmt.Errorf("parsing %s: %w", p.settings, err)
	}
	if filepath.IsAbs(settings.DataDir) {
		return settings.DataDir, nil
	}
	return p.dataDir, nil
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
	homes := []string{l.program.dataDir}
	add := func(args []string, whose string) {
		home, err := l.program.home(args, s.host.root)
		if err != nil {
			s.unknown = append(s.unknown, fmt.Sprintf("where %s has its data: %v", whose, err))
		}
		if !slices.Contains(homes, home) {
			homes = append([]string{home}, homes...)
		}
	}
	add(nil, l.name)
	for _, unit := range s.services {
		if len(unit.line) > 0 && path.Base(unit.line[0]) == l.program.name {
			add(unit.line[1:], "systemd unit "+unit.name)
		}
	}
	for _, home := range homes {
		at.dataDirs = append(at.dataDirs, path.Join(home, l.program.etcdDir))
		if l.program.manifest != "" {
			at.manifests = append(at.manifests, path.Join(home, l.program.manifest))
		}
	}
	return at
}
