package host

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// settings are what an etcd server was told, by the name of the flag without its dashes. An etcdctl setting, which
// stands beside them in environments, keeps the name of its variable.
type settings map[string]string

// flagSettings reads a command line without its program. A flag without `=` takes the next argument unless that looks
// like a flag; those that name something we read take it whatever it looks like, as package flag does.
func flagSettings(args []string) settings {
	told := settings{}
	for i := 0; i < len(args); i++ {
		name, dashed := strings.CutPrefix(args[i], "-")
		if !dashed || name == "" || name == "-" {
			return told // package flag stops here, and etcd then refuses to start
		}
		name, value, joined := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		switch {
		case joined:
			told[name] = value
		case i+1 < len(args) && (isRead(name) || !strings.HasPrefix(args[i+1], "-")):
			i++
			told[name] = args[i]
		default:
			told[name] = "true"
		}
	}
	return told
}

func isRead(name string) bool {
	switch name {
	case "config-file", "name", "data-dir", "listen-client-urls", "advertise-client-urls", "initial-advertise-peer-urls",
		"cert-file", "key-file", "trusted-ca-file", "peer-cert-file", "peer-key-file", "peer-trusted-ca-file":
		return true
	}
	return false
}

// envSettings reads ETCD_* and ETCDCTL_* variables. An empty value is no setting (etcd pkg/flags, SetFlagsFromEnv).
func envSettings(env map[string]string) settings {
	told := settings{}
	for name, value := range env {
		if value == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(name, "ETCD_"); ok {
			told[strings.ToLower(strings.ReplaceAll(rest, "_", "-"))] = value
		} else if strings.HasPrefix(name, "ETCDCTL_") {
			told[name] = value
		}
	}
	return told
}

// fileSettings reads an etcd configuration file (etcd embed/config.go, configYAML).
func fileSettings(data []byte) (settings, error) {
	var file map[string]any
	exact := func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d } // a name may be 1000000, which is not 1e+06
	if err := decodeYAML(data, &file, exact); err != nil {
		return nil, err
	}
	told := settings{}
	for name, value := range file {
		section, nested := value.(map[string]any)
		switch {
		case !nested:
			told[name] = scalar(value)
		case name == "client-transport-security":
			for inner, v := range section {
				told[inner] = scalar(v)
			}
		case name == "peer-transport-security":
			for inner, v := range section {
				told["peer-"+inner] = scalar(v)
			}
		}
	}
	return told, nil
}

func scalar(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []any:
		parts := make([]string, 0, len(v))
		for _, part := range v {
			parts = append(parts, scalar(part))
		}
		return strings.Join(parts, ",")
	default:
		return fmt.Sprint(v)
	}
}

// told is what a server was told, and by what.
type told struct {
	settings
	// file is the configuration file, as the server names it; empty if there is none.
	file string
}

// precedence puts the sources together as etcd does: a configuration file silences all flags and variables, otherwise
// flags win over variables (etcdmain/config.go, parse). ETCDCTL_* variables are no part of that and always stay.
func precedence(flags, env settings, read func(path string) ([]byte, error)) (told, error) {
	path := configFile(flags, env)
	if path == "" {
		all := maps.Clone(env)
		maps.Copy(all, flags)
		return told{settings: all}, nil
	}
	data, err := read(path)
	if err != nil {
		return told{settings: ctl(env), file: path}, fmt.Errorf("reading the configuration file %s: %w", path, plain(err))
	}
	file, err := fileSettings(data)
	if err != nil {
		return told{settings: ctl(env), file: path}, fmt.Errorf("parsing the configuration file %s: %w", path, err)
	}
	maps.Copy(file, ctl(env))
	return told{settings: file, file: path}, nil
}

// configFile is the configuration file that a server was told of, empty if it has none.
func configFile(flags, env settings) string { return cmp.Or(flags["config-file"], env["config-file"]) }

func ctl(env settings) settings {
	kept := settings{}
	for name, value := range env {
		if strings.HasPrefix(name, "ETCDCTL_") {
			kept[name] = value
		}
	}
	return kept
}

// defaultName is the name of a member that was given none.
const defaultName = "default"

// config returns what Holdfast reads of the settings, with etcd's defaults (embed/config.go, NewConfig) if the settings
// are complete: of a server whose settings could be read in part only, a default would be a guess, and a probe of
// localhost might be answered by another server. The data directory is as the server names it, made absolute with the
// server's working directory, and empty if that is needed and not known.
func (s settings) config(workDir string, complete bool) protect.Config {
	or := func(value, byDefault string) string {
		if value == "" && complete {
			return byDefault
		}
		return value
	}
	name := or(s["name"], defaultName)
	dir := or(s["data-dir"], name+".etcd")
	switch {
	case filepath.IsAbs(dir) || dir == "":
	case workDir == "":
		dir = ""
	default:
		dir = filepath.Join("/", workDir, dir)
	}
	return protect.Config{
		Name:                name,
		DataDir:             dir,
		ListenClientURLs:    urls(or(s["listen-client-urls"], "http://localhost:2379")),
		AdvertiseClientURLs: urls(or(s["advertise-client-urls"], "http://localhost:2379")),
		InitialPeerURLs:     urls(or(s["initial-advertise-peer-urls"], "http://localhost:2380")),
	}
}

func urls(list string) []string {
	var all []string
	for url := range strings.SplitSeq(list, ",") {
		if url = strings.TrimSpace(url); url != "" {
			all = append(all, url)
		}
	}
	return all
}
