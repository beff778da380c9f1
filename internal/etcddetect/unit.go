package etcddetect

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	systemdunit "github.com/coreos/go-systemd/v22/unit"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/systemd"
)

// An etcdUnit is a systemd unit that may run an etcd server, or a program that contains or
// starts one.
type etcdUnit struct {
	systemd.Unit
	// mainPID is 0 if systemd was not queried or the unit does not run.
	mainPID int
	// line is the command of the unit, in words.
	line []string
	// command is the etcd server in the command, if any.
	command etcdCommand
	// volumes are the host's directories by the server's paths for them.
	volumes map[string]string
	// envFile is the environment file with etcd's settings.
	envFile string
	// isGuess is set for an instance of a template that is known by its files alone.
	isGuess bool
	// rootChange names what sets a root directory other than the host's, or is "".
	rootChange string
}

// readUnit reads a unit and the etcd server in its command.
func readUnit(root hostfs.Root, name string, files []string) etcdUnit {
	u := etcdUnit{Unit: systemd.ReadUnit(root, name, files)}
	u.line = systemd.CommandLine(u.ExecStart, u.Env)
	u.command = parseCommand(u.line, u.Env)
	if !u.command.isServer && len(u.line) > 0 && isEngine(path.Base(u.line[0])) {
		for _, exec := range u.ExecStartPre { // which may start the container that ExecStart attaches to
			if c := parseCommand(systemd.CommandLine(exec, u.Env), u.Env); c.isServer {
				u.command = c
			}
		}
	}
	for _, file := range u.command.envFiles {
		u.ReadEnvFiles(root, file)
	}
	for _, file := range u.EnvFiles {
		if len(envSettings(file.Env)) > 0 {
			u.envFile = file.Path
		}
	}
	maps.Copy(u.Env, u.command.env)
	u.rootChange = cmp.Or(u.RootOption, u.command.rootChange)
	u.volumes = u.command.volumes
	if !u.command.inContainer && len(u.Binds) > 0 {
		u.volumes = maps.Clone(u.Binds)
		for target, source := range u.command.volumes {
			if _, bound := u.Binds[target]; !bound {
				u.volumes[target] = source
			}
		}
	}
	return u
}

// hostPath returns the host's path for a path of the server.
func (u *etcdUnit) hostPath(serverPath string) string {
	inside := u.volumeOf(serverPath)
	if inside == "" {
		return serverPath
	}
	return path.Join(u.volumes[inside], strings.TrimPrefix(serverPath, inside))
}

// volumeOf returns the server's path for the volume that contains a path of the server, or
// "".
func (u *etcdUnit) volumeOf(serverPath string) string {
	longest := ""
	for inside := range u.volumes {
		if strings.HasPrefix(serverPath+"/", inside+"/") && len(inside) > len(longest) {
			longest = inside
		}
	}
	return longest
}

// dataDirDoubt returns the reason why the data of the unit's server may not be where its
// files appear to put it, or "". With such a reason, an empty directory does not prove that
// the unit has no member.
func (u *etcdUnit) dataDirDoubt(loaded loadedSettings, found detectedServer) string {
	if !u.command.isCertain || len(u.Unread) > 0 || systemd.IsTemplate(u.Name) {
		return "" // an instance of a template is a unit of its own
	}
	dataDir := loaded.etcdSettings["data-dir"]
	unresolved := systemd.UnresolvedNames(loaded.file + found.serverDataDir)
	switch {
	case len(unresolved) > 0:
		return fmt.Sprintf("its data directory depends on %s, which its files do not set", strings.Join(unresolved, ", "))
	case u.rootChange != "":
		return fmt.Sprintf("it has another root directory (%s), and its data is not at the path that it names", u.rootChange)
	case u.command.inContainer && (!path.IsAbs(dataDir) || u.volumeOf(dataDir) == ""):
		return "its data is in the container and not in a directory of the host"
	case u.command.inContainer && found.dirInfo == nil && u.command.engineVolumes[u.volumeOf(dataDir)]:
		return fmt.Sprintf("its data is in a volume of the container engine, and the volume is not at %s",
			found.serverDataDir)
	case path.IsAbs(dataDir) && u.command.afterShell && loaded.file == "" && parseFlags(u.command.args)["data-dir"] == "":
		return fmt.Sprintf("a shell runs before it and may set a data directory other than %s", dataDir)
	case path.IsAbs(dataDir):
		return ""
	case u.command.afterShell:
		return "a shell runs before it, and its data directory depends on the working directory"
	case u.WorkingDirectory == "~":
		return "its data directory depends on its user's home directory"
	case dataDir == "" && u.WorkingDirectory == "":
		return "its files do not set a data directory"
	}
	return ""
}

// addInstances adds the instances of templates that are known by their files alone. An
// instance that was started by hand leaves nothing else when it has stopped. Only those
// matter that have the data of a member, or settings of their own, which name the data
// directory.
func (s *hostScan) addInstances() {
	exists := func(path string) bool { _, err := s.root.Stat(path); return !hostfs.IsAbsent(err) }
	holdsData := func(dir string) bool { has, err := hasMember(s.root, dir); return has || err != nil }
	for _, template := range s.units {
		if !systemd.IsTemplate(template.Name) {
			continue
		}
		flags, env := parseFlags(template.command.args), envSettings(template.Env)
		workDir := cmp.Or(template.WorkingDirectory, "/")
		loaded, _ := loadSettings(flags, env, workDir, s.root.ReadFile) // a path with a marker is no file
		dir := loaded.config(workDir, true).DataDir
		names := s.instances(template, template.hostPath(dir), holdsData)
		for _, file := range append(slices.Clone(template.InstanceFiles), loaded.file) {
			names = append(names, s.instances(template, file, exists)...)
		}
		for _, name := range names {
			if slices.ContainsFunc(s.units, func(known etcdUnit) bool { return known.Name == name }) {
				continue
			}
			instance := readUnit(s.root, name, template.Files)
			instance.isGuess = true
			s.units = append(s.units, instance)
		}
	}
}

// instances returns the names of the instances that have a path on the host. pattern is that
// path with a marker for the instance, and isInstance checks the path of one instance.
func (s *hostScan) instances(template etcdUnit, pattern string, isInstance func(string) bool) (names []string) {
	before, after, found := strings.Cut(pattern, systemd.Unresolved("%i"))
	nameOf := func(instance string) string { return instance }
	if !found {
		before, after, found = strings.Cut(pattern, systemd.Unresolved("%I"))
		nameOf = systemdunit.UnitNameEscape
	}
	if !found || len(systemd.UnresolvedNames(before+after)) > 0 {
		return nil
	}
	dir, prefix := path.Split(before)
	suffix, _, _ := strings.Cut(after, "/")
	entries, err := s.root.ReadDir(dir)
	if err != nil {
		s.addUnknown("the instances of systemd unit %s: %v", template.Name, err)
	}
	for _, entry := range entries {
		rest, begins := strings.CutPrefix(entry.Name(), prefix)
		instance, ends := strings.CutSuffix(rest, suffix)
		if begins && ends && instance != "" && isInstance(before+instance+after) {
			names = append(names, strings.Replace(template.Name, "@", "@"+nameOf(instance), 1))
		}
	}
	return names
}
