package host

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// service is what a systemd unit says of the etcd server that it runs.
type service struct {
	name string
	// mainPID is 0 if systemd was not asked or runs none.
	mainPID int
	// files are the unit's own, and settingsFiles those that they name, whether they are there or not.
	files, settingsFiles []string
	// line is what the unit starts, in words.
	line []string
	// command is the etcd server in it. Units without one are those of programs that contain or start etcd.
	command
	// env are its variables, as far as the unit's files tell. envFile is the file that has etcd's.
	env     map[string]string
	envFile string
	// perInstance are files with settings that a template has for each of its instances, with a gap for it.
	perInstance []string
	workDir     string
	// guessed says that it is an instance of a template of which nothing tells but its files.
	guessed bool
	// inRoot is what gives it a root directory that is not the host's, empty if nothing does.
	inRoot string
	// unread is why its settings are not known, empty if they are.
	unread []string
}

// fragment is the part of a unit's files that matters here, resets applied.
type fragment struct {
	environment, envFiles []string
	exec, workDir         string
	// before are the commands that systemd runs first.
	before []string
	// binds are the host's directories that the unit has under other names, and root is what it has for its root directory.
	binds []string
	root  string
	// dirs are the directories that systemd makes for it, by the variable that names them.
	dirs map[string][]string
}

// service reads a unit from its files. A file that is listed and gone has vanished meanwhile.
func (h *Host) service(name string, files []string) service {
	s := service{name: name, files: files, env: map[string]string{}}
	var all fragment
	for _, file := range files {
		data, err := h.root.read(file)
		if absent(err) {
			continue
		}
		if err != nil {
			s.unread = append(s.unread, fmt.Sprintf("unit file %s: %v", file, plain(err)))
			continue
		}
		options, err := unitOptions(data)
		if err != nil {
			s.unread = append(s.unread, fmt.Sprintf("unit file %s: %v", file, err))
			continue
		}
		all.add(options)
	}
	expand := h.specifiers(name)
	s.setDirectories(all.dirs, expand)
	for _, line := range all.environment {
		for _, assignment := range words(expand.Replace(line)) {
			variable, value, _ := strings.Cut(assignment, "=")
			s.env[variable] = value
		}
	}
	for _, file := range all.envFiles {
		s.readEnvFiles(h, expand.Replace(file))
	}
	s.workDir = strings.TrimPrefix(expand.Replace(all.workDir), "-")
	s.line = commandLine(expand.Replace(all.exec), s.env)
	s.command = serverCommand(s.line, s.env)
	if !s.server && len(s.line) > 0 && isEngine(path.Base(s.line[0])) {
		for _, before := range all.before { // which may have started the container that the unit's command follows
			if c := serverCommand(commandLine(expand.Replace(before), s.env), s.env); c.server {
				s.command = c
			}
		}
	}
	for _, file := range s.envFiles {
		s.readEnvFiles(h, file)
	}
	maps.Copy(s.env, s.command.env)
	s.setRoot(all, expand)
	return s
}

// setDirectories sets the variables for the directories that systemd makes (systemd.exec(5), StateDirectory=).
func (s *service) setDirectories(dirs map[string][]string, expand *strings.Replacer) {
	for _, d := range []struct{ name, parent, variable string }{
		{"StateDirectory", "/var/lib", "STATE_DIRECTORY"},
		{"CacheDirectory", "/var/cache", "CACHE_DIRECTORY"},
		{"LogsDirectory", "/var/log", "LOGS_DIRECTORY"},
		{"RuntimeDirectory", "/run", "RUNTIME_DIRECTORY"},
		{"ConfigurationDirectory", "/etc", "CONFIGURATION_DIRECTORY"},
	} {
		var all []string
		for _, line := range dirs[d.name] {
			for _, dir := range words(expand.Replace(line)) {
				dir, _, _ = strings.Cut(dir, ":") // what follows is another name for it
				all = append(all, path.Join(d.parent, dir))
			}
		}
		if len(all) > 0 {
			s.env[d.variable] = strings.Join(all, ":")
		}
	}
}

// setRoot says under which names the unit has the host's files (systemd.exec(5), RootDirectory= and BindPaths=).
func (s *service) setRoot(all fragment, expand *strings.Replacer) {
	s.inRoot = cmp.Or(all.root, s.root)
	for _, line := range all.binds {
		for _, bind := range words(expand.Replace(line)) {
			source, rest, renamed := strings.Cut(strings.TrimPrefix(bind, "-"), ":")
			if target, _, _ := strings.Cut(rest, ":"); renamed && target != "" && !s.engine {
				if s.volumes == nil {
					s.volumes = map[string]string{}
				}
				s.volumes[path.Clean(target)] = source
			}
		}
	}
}

// outside returns the host's name for a path of the server's.
func (s *service) outside(named string) string {
	inside := s.volume(named)
	if inside == "" {
		return named
	}
	return path.Join(s.volumes[inside], strings.TrimPrefix(named, inside))
}

// volume returns the server's name for the volume that a path of its own lies in, empty if it lies in none.
func (s *service) volume(named string) string {
	longest := ""
	for inside := range s.volumes {
		if strings.HasPrefix(named+"/", inside+"/") && len(inside) > len(longest) {
			longest = inside
		}
	}
	return longest
}

func (f *fragment) add(options []option) {
	for _, o := range options {
		if o.section != "Service" {
			continue
		}
		switch o.name {
		case "Environment":
			f.environment = extended(f.environment, o.value)
		case "EnvironmentFile":
			f.envFiles = extended(f.envFiles, o.value)
		case "ExecStart":
			f.exec = o.value
		case "ExecStartPre":
			f.before = extended(f.before, o.value)
		case "WorkingDirectory":
			f.workDir = o.value
		case "BindPaths", "BindReadOnlyPaths":
			f.binds = extended(f.binds, o.value)
		case "RootDirectory", "RootImage":
			f.root = ""
			if o.value != "" && o.value != "/" {
				f.root = o.name + "="
			}
		case "StateDirectory", "CacheDirectory", "LogsDirectory", "RuntimeDirectory", "ConfigurationDirectory":
			if f.dirs == nil {
				f.dirs = map[string][]string{}
			}
			f.dirs[o.name] = extended(f.dirs[o.name], o.value)
		}
	}
}

// extended is a setting that lists what its lines say; an empty line takes back those before it.
func extended(values []string, value string) []string {
	if value == "" {
		return nil
	}
	return append(values, value)
}

// readEnvFiles adds the variables of a file, or of those that a pattern names; they win over those set before (systemd.exec(5),
// EnvironmentFile=). A missing file is a dash's business with systemd; to us it says nothing either way.
func (s *service) readEnvFiles(h *Host, pattern string) {
	pattern = strings.TrimPrefix(unquote(pattern), "-")
	if !filepath.IsAbs(pattern) {
		return
	}
	s.settingsFiles = append(s.settingsFiles, fillGaps(pattern, "*"))
	if len(gaps(pattern)) > 0 {
		s.perInstance = append(s.perInstance, pattern)
		return
	}
	matches, err := h.glob(pattern)
	if err != nil {
		s.unread = append(s.unread, fmt.Sprintf("environment files %s: %v", pattern, plain(err)))
	}
	for _, file := range matches {
		s.readEnvFile(h, file)
	}
}

func (s *service) readEnvFile(h *Host, file string) {
	data, err := h.root.read(file)
	if absent(err) {
		return
	}
	if err != nil {
		s.unread = append(s.unread, fmt.Sprintf("environment file %s: %v", file, plain(err)))
		return
	}
	env := parseEnvFile(data)
	maps.Copy(s.env, env)
	if len(envSettings(env)) > 0 {
		s.envFile = file
	}
}

// glob returns what on the host a pattern names, sorted. What is no pattern names itself, whether it is there or not.
func (h *Host) glob(pattern string) ([]string, error) {
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}, nil
	}
	dirs, err := h.glob(path.Dir(pattern))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, dir := range dirs {
		entries, err := h.list(dir)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			hidden := strings.HasPrefix(entry.Name(), ".") && !strings.HasPrefix(path.Base(pattern), ".")
			if !hidden && matchesAny([]string{path.Base(pattern)}, entry.Name()) {
				all = append(all, path.Join(dir, entry.Name()))
			}
		}
	}
	return all, nil
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}
