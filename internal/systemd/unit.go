// Package systemd reads systemd units from their files and over D-Bus, and observes the
// shutdown of the host.
package systemd

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
)

// A Unit describes a service by its files. Specifiers are replaced, variables in commands are
// not.
type Unit struct {
	Name string
	// Files are the unit file and its drop-ins.
	Files []string
	// ExecStart is the command, ExecStartPre the commands before it.
	ExecStart    string
	ExecStartPre []string
	// WorkingDirectory is "" if the files set none.
	WorkingDirectory string
	// RootOption is the option that sets a root directory other than the host's, or "".
	RootOption string
	// Binds are the host's directories by the unit's paths for them.
	Binds map[string]string
	// Env are the variables that the files set.
	Env map[string]string
	// EnvFiles are the environment files that were read, in order.
	EnvFiles []EnvFile
	// EnvFilePatterns are the names of environment files, whether they exist or not.
	EnvFilePatterns []string
	// InstanceFiles are environment files of a template, with a marker for the instance.
	InstanceFiles []string
	// Unread are the reasons why the settings are incomplete.
	Unread []string
}

// An EnvFile is an environment file.
type EnvFile struct {
	Path string
	Env  map[string]string
}

// unitSettings are the relevant options of a unit's files, after resets.
type unitSettings struct {
	environment, envFiles []string
	execStart, workingDir string
	execStartPre          []string
	bindPaths             []string
	rootOption            string
	directories           map[string][]string // by option, such as StateDirectory
}

// ReadUnit reads a unit from its files. A file that does not exist was removed after it was
// listed.
func ReadUnit(root hostfs.Root, name string, files []string) Unit {
	u := Unit{Name: name, Files: files, Env: map[string]string{}}
	var all unitSettings
	for _, file := range files {
		data, err := root.ReadFile(file)
		if hostfs.IsAbsent(err) {
			continue
		}
		var options []unitOption
		if err == nil {
			options, err = parseUnitFile(data)
		}
		if err != nil {
			u.Unread = append(u.Unread, fmt.Sprintf("unit file %s: %v", file, hostfs.Reason(err)))
			continue
		}
		all.add(options)
	}
	replacer := specifiers(root, name)
	u.setDirectories(all.directories, replacer)
	for _, line := range all.environment {
		for _, assignment := range splitWords(replacer.Replace(line)) {
			variable, value, _ := strings.Cut(assignment, "=")
			u.Env[variable] = value
		}
	}
	for _, file := range all.envFiles {
		u.ReadEnvFiles(root, replacer.Replace(file))
	}
	u.WorkingDirectory = strings.TrimPrefix(replacer.Replace(all.workingDir), "-")
	u.ExecStart = replacer.Replace(all.execStart)
	for _, exec := range all.execStartPre {
		u.ExecStartPre = append(u.ExecStartPre, replacer.Replace(exec))
	}
	u.RootOption = all.rootOption
	u.setBinds(all.bindPaths, replacer)
	return u
}

// setDirectories sets the variables for the directories that systemd creates
// (systemd.exec(5), StateDirectory=).
func (u *Unit) setDirectories(directories map[string][]string, replacer *strings.Replacer) {
	for _, d := range []struct{ option, parent, variable string }{
		{"StateDirectory", "/var/lib", "STATE_DIRECTORY"},
		{"CacheDirectory", "/var/cache", "CACHE_DIRECTORY"},
		{"LogsDirectory", "/var/log", "LOGS_DIRECTORY"},
		{"RuntimeDirectory", "/run", "RUNTIME_DIRECTORY"},
		{"ConfigurationDirectory", "/etc", "CONFIGURATION_DIRECTORY"},
	} {
		var all []string
		for _, line := range directories[d.option] {
			for _, dir := range splitWords(replacer.Replace(line)) {
				dir, _, _ = strings.Cut(dir, ":") // a symbolic link to it follows
				all = append(all, path.Join(d.parent, dir))
			}
		}
		if len(all) > 0 {
			u.Env[d.variable] = strings.Join(all, ":")
		}
	}
}

// setBinds sets the directories that the unit has at other paths (systemd.exec(5),
// BindPaths=).
func (u *Unit) setBinds(lines []string, replacer *strings.Replacer) {
	for _, line := range lines {
		for _, bind := range splitWords(replacer.Replace(line)) {
			source, rest, renamed := strings.Cut(strings.TrimPrefix(bind, "-"), ":")
			if target, _, _ := strings.Cut(rest, ":"); renamed && target != "" {
				if u.Binds == nil {
					u.Binds = map[string]string{}
				}
				u.Binds[path.Clean(target)] = source
			}
		}
	}
}

func (s *unitSettings) add(options []unitOption) {
	for _, o := range options {
		if o.section != "Service" {
			continue
		}
		switch o.name {
		case "Environment":
			s.environment = appendOrReset(s.environment, o.value)
		case "EnvironmentFile":
			s.envFiles = appendOrReset(s.envFiles, o.value)
		case "ExecStart":
			s.execStart = o.value
		case "ExecStartPre":
			s.execStartPre = appendOrReset(s.execStartPre, o.value)
		case "WorkingDirectory":
			s.workingDir = o.value
		case "BindPaths", "BindReadOnlyPaths":
			s.bindPaths = appendOrReset(s.bindPaths, o.value)
		case "RootDirectory", "RootImage":
			s.rootOption = ""
			if o.value != "" && o.value != "/" {
				s.rootOption = o.name + "="
			}
		case "StateDirectory", "CacheDirectory", "LogsDirectory", "RuntimeDirectory", "ConfigurationDirectory":
			if s.directories == nil {
				s.directories = map[string][]string{}
			}
			s.directories[o.name] = appendOrReset(s.directories[o.name], o.value)
		}
	}
}

// appendOrReset adds a value to an option that is a list. An empty value resets the list.
func appendOrReset(values []string, value string) []string {
	if value == "" {
		return nil
	}
	return append(values, value)
}

// ReadEnvFiles adds the variables of the environment files that match a pattern. They
// override variables that were set before (systemd.exec(5), EnvironmentFile=). systemd fails
// on a missing file unless its name has the prefix "-"; ReadEnvFiles ignores missing files in
// both cases.
func (u *Unit) ReadEnvFiles(root hostfs.Root, pattern string) {
	pattern = strings.TrimPrefix(unquote(pattern), "-")
	if !filepath.IsAbs(pattern) {
		return
	}
	u.EnvFilePatterns = append(u.EnvFilePatterns, ReplaceUnresolved(pattern, "*"))
	if len(UnresolvedNames(pattern)) > 0 {
		u.InstanceFiles = append(u.InstanceFiles, pattern)
		return
	}
	matches, err := root.Glob(pattern)
	if err != nil {
		u.Unread = append(u.Unread, fmt.Sprintf("environment files %s: %v", pattern, hostfs.Reason(err)))
	}
	for _, file := range matches {
		data, err := root.ReadFile(file)
		if hostfs.IsAbsent(err) {
			continue
		}
		if err != nil {
			u.Unread = append(u.Unread, fmt.Sprintf("environment file %s: %v", file, hostfs.Reason(err)))
			continue
		}
		env := parseEnvFile(data)
		u.EnvFiles = append(u.EnvFiles, EnvFile{Path: file, Env: env})
		maps.Copy(u.Env, env)
	}
}
