package host

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	sdunit "github.com/coreos/go-systemd/v22/unit"
)

// unitDirs are systemd's directories of system units, the strongest first (systemd.unit(5)).
func unitDirs() []string {
	return []string{
		"/etc/systemd/system", "/run/systemd/system", "/run/systemd/transient", "/run/systemd/generator",
		"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
	}
}

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
	workDir string
	// unread is why its settings are not known, empty if they are.
	unread []string
}

// fragment is the part of a unit's files that matters here, resets applied.
type fragment struct {
	environment, envFiles []string
	exec, workDir         string
	// before are the commands that systemd runs first.
	before []string
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
		options, err := sdunit.DeserializeOptions(bytes.NewReader(data))
		if err != nil {
			s.unread = append(s.unread, fmt.Sprintf("unit file %s: %v", file, err))
			continue
		}
		all.add(options)
	}
	expand := h.specifiers(name)
	for _, line := range all.environment {
		for _, assignment := range words(expand.Replace(line)) {
			variable, value, _ := strings.Cut(assignment, "=")
			s.env[variable] = value
		}
	}
	for _, file := range all.envFiles {
		s.readEnvFile(h, expand.Replace(file))
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
		s.readEnvFile(h, file)
	}
	return s
}

// outside returns the host's name for a path of the server's.
func (s *service) outside(named string) string {
	longest := ""
	for inside := range s.volumes {
		if strings.HasPrefix(named+"/", inside+"/") && len(inside) > len(longest) {
			longest = inside
		}
	}
	if longest == "" {
		return named
	}
	return path.Join(s.volumes[longest], strings.TrimPrefix(named, longest))
}

func (f *fragment) add(options []*sdunit.UnitOption) {
	list := func(to *[]string, value string) {
		if *to = append(*to, value); value == "" {
			*to = nil
		}
	}
	for _, o := range options {
		if o.Section != "Service" {
			continue
		}
		switch o.Name {
		case "Environment":
			list(&f.environment, o.Value)
		case "EnvironmentFile":
			list(&f.envFiles, o.Value)
		case "ExecStart":
			f.exec = o.Value
		case "ExecStartPre":
			list(&f.before, o.Value)
		case "WorkingDirectory":
			f.workDir = o.Value
		}
	}
}

// readEnvFile adds a file's variables; they win over those set before (systemd.exec(5), EnvironmentFile=). A missing file
// is a dash's business with systemd; to us it says nothing either way.
func (s *service) readEnvFile(h *Host, file string) {
	file = strings.TrimPrefix(unquote(file), "-")
	if !filepath.IsAbs(file) {
		return
	}
	s.settingsFiles = append(s.settingsFiles, file)
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

// specifiers replaces those of systemd's specifiers that etcd's units use (systemd.unit(5)).
func (h *Host) specifiers(name string) *strings.Replacer {
	line := func(file string) string {
		data, err := h.root.read(file)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	prefix := strings.TrimSuffix(name, path.Ext(name))
	_, instance, _ := strings.Cut(prefix, "@")
	return strings.NewReplacer("%%", "%", "%n", name, "%N", prefix, "%p", strings.TrimSuffix(prefix, "@"+instance),
		"%i", instance, "%H", line("/etc/hostname"), "%m", line("/etc/machine-id"))
}

// unitFiles returns the files of every unit on disk whose name matches, by unit: the strongest unit file first, then its
// drop-ins in systemd's order.
func (h *Host) unitFiles(patterns []string) (files map[string][]string, unread []string) {
	files = map[string][]string{}
	dropIns := map[string]map[string]string{}
	for _, dir := range unitDirs() {
		entries, err := h.list(dir)
		if err != nil {
			unread = append(unread, fmt.Sprintf("the unit files: %v", err))
			continue
		}
		for _, entry := range entries {
			name, isDropIn := strings.CutSuffix(entry.Name(), ".d")
			switch {
			case !matchesAny(patterns, name):
			case !isDropIn && files[name] == nil && !h.masked(filepath.Join(dir, name)):
				files[name] = []string{filepath.Join(dir, name)}
			case isDropIn:
				unread = append(unread, h.dropIns(dropIns, name, filepath.Join(dir, entry.Name()))...)
			}
		}
	}
	maps.DeleteFunc(files, func(name string, its []string) bool { return h.isAlias(name, its[0], files) })
	for name := range files {
		for _, conf := range slices.Sorted(maps.Keys(dropIns[name])) {
			files[name] = append(files[name], dropIns[name][conf])
		}
	}
	return files, unread
}

// isAlias says that a unit file is a link to that of another unit, which is the same unit (systemd.unit(5)). An
// instance is a unit of its own.
func (h *Host) isAlias(name, file string, files map[string][]string) bool {
	at, err := h.root.locate(file)
	if err != nil {
		return false
	}
	if at, err = filepath.EvalSymlinks(at); err != nil { // in the agent's own root links are left in place
		return false
	}
	other := filepath.Base(at)
	return other != name && !strings.Contains(name, "@") && len(files[other]) > 0
}

// masked says that a unit is a link to /dev/null. It cannot start then, but the weaker unit file behind it still tells
// where a member has its data.
func (h *Host) masked(file string) bool {
	at, err := h.root.locate(file)
	if err != nil {
		return false
	}
	info, err := os.Stat(at)
	return strings.HasSuffix(at, "/dev/null") || err == nil && info.Mode()&os.ModeCharDevice != 0
}

// dropIns notes the drop-ins in dir; one of the same name in a stronger directory has been noted before and stays.
func (h *Host) dropIns(all map[string]map[string]string, unit, dir string) (unread []string) {
	entries, err := h.list(dir)
	if err != nil {
		return []string{fmt.Sprintf("the unit files: %v", err)}
	}
	if all[unit] == nil {
		all[unit] = map[string]string{}
	}
	confs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return filepath.Ext(e.Name()) != ".conf" })
	for _, conf := range confs {
		if all[unit][conf.Name()] == "" {
			all[unit][conf.Name()] = filepath.Join(dir, conf.Name())
		}
	}
	return nil
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}
