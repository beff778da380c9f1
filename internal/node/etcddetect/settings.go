package etcddetect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// etcdSettings are the settings of an etcd server by the name of the flag without dashes.
// Settings of etcdctl in the same environment keep the name of the variable.
type etcdSettings map[string]string

// ctlPrefix is the prefix of the variables of etcdctl.
const ctlPrefix = "ETCDCTL_"

// parseFlags reads a command line without its program. A flag without "=" takes the next
// argument unless that looks like a flag. Flags that Holdfast reads always take it, as
// package flag does.
func parseFlags(args []string) etcdSettings {
	flags := etcdSettings{}
	for i := 0; i < len(args); i++ {
		name, dashed := strings.CutPrefix(args[i], "-")
		if !dashed || name == "" || name == "-" {
			return flags // package flag stops here, and etcd then refuses to start
		}
		name, value, joined := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		isKnown := slices.Contains(strings.Split(knownSettings, "|"), name)
		switch {
		case joined:
			flags[name] = value
		case i+1 < len(args) && (isKnown || !strings.HasPrefix(args[i+1], "-")):
			i++
			flags[name] = args[i]
		default:
			flags[name] = "true"
		}
	}
	return flags
}

// envSettings reads ETCD_* and ETCDCTL_* variables. An empty value is no setting (etcd
// pkg/flags, SetFlagsFromEnv).
func envSettings(env map[string]string) etcdSettings {
	settings := etcdSettings{}
	for name, value := range env {
		if value == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(name, "ETCD_"); ok {
			settings[strings.ToLower(strings.ReplaceAll(rest, "_", "-"))] = value
		} else if strings.HasPrefix(name, ctlPrefix) {
			settings[name] = value
		}
	}
	return settings
}

// maxYAMLSize is the most YAML that is decoded, in bytes. A configuration of etcd has a few
// kibibytes, and a byte of YAML can take a hundred bytes of memory.
const maxYAMLSize = 64 << 10

var (
	errYAMLSize = errors.New("it is larger than 64 KiB")
	errYAMLForm = errors.New("its YAML does not have the expected form")
)

// parseConfigFile reads an etcd configuration file (etcd embed/config.go, configYAML), which can be
// that of any user. Its errors name a line at most and quote nothing: such files contain tokens,
// and errors are visible in logs and on the Node.
func parseConfigFile(text []byte) (etcdSettings, error) {
	if len(text) > maxYAMLSize {
		return nil, errYAMLSize
	}
	var document yaml.Node // in this tree, an alias takes no more memory than its name
	if err := yaml.Unmarshal(text, &document); err != nil {
		if line := regexp.MustCompile(`\bline (\d+)`).FindStringSubmatch(err.Error()); line != nil {
			return nil, fmt.Errorf("it is not valid YAML, line %s", line[1])
		}
		return nil, errors.New("it is not valid YAML")
	}
	settings := etcdSettings{}
	for _, root := range document.Content { // one, or none
		others := settings.addYAML("", root)
		for name, prefix := range map[string]string{"client-transport-security": "", "peer-transport-security": "peer-"} {
			if section := others[name]; section != nil && settings.addYAML(prefix, section)["<<"] != nil {
				return nil, errYAMLForm
			}
		}
		if root.Kind != yaml.MappingNode || others["<<"] != nil {
			return nil, errYAMLForm
		}
	}
	return settings, nil
}

// addYAML adds the scalars in a mapping, and returns its other values. No setting that Holdfast
// uses is a list.
func (s etcdSettings) addYAML(prefix string, mapping *yaml.Node) (others map[string]*yaml.Node) {
	others = map[string]*yaml.Node{}
	for i := 0; mapping.Kind == yaml.MappingNode && i < len(mapping.Content); i += 2 {
		name, value := mapping.Content[i].Value, mapping.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		var number int64
		switch {
		case value.Kind != yaml.ScalarNode:
			others[name] = value
		case value.ShortTag() == "!!int" && value.Decode(&number) == nil:
			s[prefix+name] = strconv.FormatInt(number, 10)
		case value.ShortTag() != "!!null":
			s[prefix+name] = value.Value
		}
	}
	return others
}

// loadSettings combines the sources as etcd does (etcdmain/config.go, parse). A configuration
// file overrides all flags and variables; without one, flags override variables. ETCDCTL_*
// variables always stay, and so does the path of the file. Paths of files become absolute with the
// working directory of the server. They stay as they are if it is not known.
func loadSettings(
	flags, env etcdSettings, workDir string, read func(path string) ([]byte, error),
) (etcdSettings, error) {
	path := configFile(flags, env, workDir)
	if path == "" {
		all := maps.Clone(env)
		maps.Copy(all, flags)
		return all.withAbsolutePaths(workDir), nil
	}
	kept := etcdSettings{"config-file": path}
	for name, value := range env {
		if strings.HasPrefix(name, ctlPrefix) {
			kept[name] = value
		}
	}
	data, err := read(path)
	if err != nil {
		return kept, fmt.Errorf("reading the configuration file %s: %w", path, hostfs.Reason(err))
	}
	settings, err := parseConfigFile(data)
	if err != nil {
		return kept, fmt.Errorf("parsing the configuration file %s: %w", path, err)
	}
	maps.Copy(settings, kept)
	return settings.withAbsolutePaths(workDir), nil
}

// withAbsolutePaths returns the settings with absolute paths of files and of the WAL. The data
// directory has a default, so config resolves it.
func (s etcdSettings) withAbsolutePaths(workDir string) etcdSettings {
	for _, name := range []string{
		"wal-dir", "cert-file", "key-file", "trusted-ca-file", "peer-cert-file", "peer-key-file", "peer-trusted-ca-file",
	} {
		if s[name] != "" {
			s[name] = absolutePath(workDir, s[name])
		}
	}
	return s
}

// absolutePath returns a path of a server with this working directory, which may be unknown.
func absolutePath(workDir, path string) string {
	if path == "" || filepath.IsAbs(path) || !filepath.IsAbs(workDir) {
		return path
	}
	return filepath.Join(workDir, path)
}

// configFile returns the configuration file of a server, or "".
func configFile(flags, env etcdSettings, workDir string) string {
	return absolutePath(workDir, cmp.Or(flags["config-file"], env["config-file"]))
}

// config returns the settings that Holdfast uses. If the settings are complete, missing ones
// have etcd's defaults (embed/config.go, NewConfig). If they are not, a default would be a
// guess, and another server might answer a probe of localhost.
//
// The data directory is the server's path, made absolute with its working directory. It is ""
// if the working directory is needed and not known.
func (s etcdSettings) config(workDir string, isComplete bool) evidence.Config {
	or := func(value, byDefault string) string {
		if value == "" && isComplete {
			return byDefault
		}
		return value
	}
	name := or(s["name"], "default")
	dir := absolutePath(workDir, or(s["data-dir"], name+".etcd"))
	if !filepath.IsAbs(dir) {
		dir = ""
	}
	return evidence.Config{
		Name:                name,
		DataDir:             dir,
		WALDir:              s["wal-dir"],
		ListenClientURLs:    splitURLs(or(s["listen-client-urls"], "http://localhost:2379")),
		AdvertiseClientURLs: splitURLs(or(s["advertise-client-urls"], "http://localhost:2379")),
		InitialPeerURLs:     splitURLs(or(s["initial-advertise-peer-urls"], "http://localhost:2380")),
	}
}

func splitURLs(list string) []string {
	var all []string
	for url := range strings.SplitSeq(list, ",") {
		if url = strings.TrimSpace(url); url != "" {
			all = append(all, url)
		}
	}
	return all
}
