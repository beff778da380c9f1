package etcddetect

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/systemd"
)

// coreosWrapper is the program with which CoreOS and Flatcar start etcd in a container. It
// mounts ETCD_SSL_DIR where etcd looks up public authorities, and the data directory at its
// own path.
const coreosWrapper = "etcd-wrapper"

// An etcdCommand describes the etcd server that a command line starts.
type etcdCommand struct {
	args []string
	// env are variables that the command itself sets.
	env map[string]string
	// envFiles are the environment files that a container engine reads.
	envFiles []string
	// volumes are the host's directories by the server's paths for them.
	volumes map[string]string
	// engineVolumes are the volumes that the container engine manages. volumes has their
	// default place.
	engineVolumes map[string]bool
	// inContainer is set if a container engine starts it. Only the paths in volumes are the
	// host's.
	inContainer bool
	// rootChange is the program that sets another root directory, or "".
	rootChange string
	// afterShell is set if a shell runs other commands before it, which may change the
	// directory or the variables.
	afterShell bool
	// isServer is set if the command names etcd. isCertain is set if it starts etcd, unlike
	// "systemctl restart etcd".
	isServer, isCertain bool
}

// parseCommand finds the etcd server in a unit's command. It understands etcd itself, a shell
// or env around it, `run` of a container engine, and any program whose last arguments are
// etcd's command. It does not see what a script starts.
func parseCommand(line []string, env map[string]string) etcdCommand {
	if len(line) == 0 {
		return etcdCommand{}
	}
	if text, ok := shellText(line); ok {
		return parseShellText(text, env)
	}
	at := -1
	for i, word := range line {
		if i > 0 && isArgumentOf(line[i-1], word) {
			continue
		}
		if isServerWord(word, !slices.ContainsFunc(line[:i], isProgram)) {
			at = i
			break
		}
	}
	if at < 0 {
		return etcdCommand{}
	}
	before, args := line[:at], line[at+1:]
	if len(args) > 0 && args[0] == "--" { // of start-stop-daemon
		args = args[1:]
	}
	c := etcdCommand{args: args, env: assignments(before), isServer: true}
	if dir := env["ETCD_SSL_DIR"]; path.Base(line[at]) == coreosWrapper && dir != "" {
		c.volumes = map[string]string{"/etc/ssl/certs": dir}
	}
	engine := slices.IndexFunc(before, func(word string) bool { return isEngine(path.Base(word)) })
	switch {
	case engine >= 0:
		c = parseEngineCommand(before[engine:], args, env)
	case len(args) > 0 && isServerWord(args[0], false):
		c.args = args[1:] // systemd's @ prefix: the first argument is the process name.
	}
	if isOtherMode(c.args) {
		return etcdCommand{}
	}
	if at := slices.IndexFunc(before, isRootChanger); at >= 0 {
		c.rootChange = path.Base(before[at])
	}
	hasFlag := slices.ContainsFunc(slices.Collect(maps.Keys(parseFlags(c.args))), isKnownFlag)
	first := slices.IndexFunc(before, isProgram)
	c.isCertain = c.isServer && (hasFlag || c.inContainer || first < 0 || isRunner(path.Base(before[first])))
	return c
}

// isArgumentOf reports whether a word belongs to the word before it, and so is no program. It is
// the name of a user, a group, a network or a container after an option or after a program that
// changes the user. Or it is the volume or a variable of a container.
func isArgumentOf(before, word string) bool {
	isOption := strings.HasPrefix(before, "-") && before != "--" && !strings.Contains(before, "=")
	isBare := !strings.ContainsAny(word, "/:@")
	return isBare && (isOption || changesUser(path.Base(before))) ||
		slices.Contains([]string{"-v", "--volume", "-e", "--env", "--name", "--hostname", "-h"}, before)
}

// parseShellText finds the etcd server in the text of a shell, and the variables that are set
// before it.
func parseShellText(text string, env map[string]string) etcdCommand {
	before := map[string]string{}
	for i, words := range shellCommands(text, env) {
		if c := parseCommand(words, env); c.isServer {
			maps.Copy(before, c.env)
			c.env, c.afterShell = before, c.afterShell || i > 0
			return c
		}
		maps.Copy(before, assignments(words))
	}
	return etcdCommand{}
}

// assignments returns the variables among words such as NAME=value.
func assignments(line []string) map[string]string {
	var found map[string]string
	for _, word := range line {
		if name, text, ok := strings.Cut(word, "="); ok && systemd.IsVariableName(name) {
			if found == nil {
				found = map[string]string{}
			}
			found[name] = text
		}
	}
	return found
}

// isProgram reports whether a word before etcd's is a program, and not a variable or a word
// of the shell.
func isProgram(word string) bool {
	name, _, assigned := strings.Cut(word, "=")
	shellWords := []string{"exec", "env", "command", "nohup", "then", "do", "else"}
	return (!assigned || !systemd.IsVariableName(name)) && !slices.Contains(shellWords, path.Base(word))
}

// isRootChanger reports whether a program sets another root directory for the program that it
// starts.
func isRootChanger(word string) bool {
	return slices.Contains([]string{"chroot", "unshare", "nsenter", "bwrap", "proot", "systemd-nspawn"}, path.Base(word))
}

// isRunner reports whether a program runs the command in its last arguments.
func isRunner(base string) bool {
	return isRootChanger(base) || isShell(base) || slices.Contains([]string{
		"nice", "ionice", "numactl", "taskset", "chrt", "prlimit", "setpriv", "runuser", "sudo", "su", "gosu", "su-exec",
		"setsid", "stdbuf", "timeout", "time", "dumb-init", "tini", "catatonit", "systemd-inhibit", "systemd-cat",
	}, base)
}

func isShell(base string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"}, base)
}

// isServerWord reports whether a word of a command is the etcd program or its image. A path
// that merely ends in etcd, such as the data directory, is neither. isFirst is set if no
// program is before the word.
func isServerWord(word string, isFirst bool) bool {
	if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	base, _, _ := strings.Cut(path.Base(word), "@")
	base, _, _ = strings.Cut(base, ":")
	switch {
	case base == coreosWrapper:
		return true
	case !isServerName(base):
		return false
	}
	if isFirst || strings.Contains(word, "/bin/") || strings.Contains(word, "/sbin/") {
		return true
	}
	// A relative name with a version may be that of a snapshot or a network. With a registry
	// or a tag it is an image.
	return !path.IsAbs(word) && (base == "etcd" || base == "etcd2" || strings.ContainsAny(word, "/:@"))
}

// isOtherMode reports whether the arguments make etcd another program than a server
// (etcdmain/main.go).
func isOtherMode(args []string) bool {
	return len(args) > 0 && (args[0] == "gateway" || args[0] == "grpc-proxy")
}

// isServerName reports whether a program of this name is etcd. CoreOS had etcd2 next to the
// first version. A release that is unpacked by hand, or one of several versions, is
// etcd-v3.5.12 or etcd-v3.5.12-linux-amd64. Any other word after the name makes another
// program: etcdctl, etcd-backup, etcd_exporter.
func isServerName(name string) bool {
	rest, ok := strings.CutPrefix(name, "etcd")
	if !ok {
		return false
	}
	parts := strings.FieldsFunc(rest, func(r rune) bool { return r == '-' || r == '_' || r == '+' })
	return !slices.ContainsFunc(parts, func(part string) bool { return !isVersionPart(part) })
}

// isVersionPart reports whether a part of a name is a version (v3, 3.5.12, rc.1, k3s1) or a
// platform.
func isVersionPart(part string) bool {
	for _, prefix := range []string{"v", "rc", "alpha", "beta", "k3s"} {
		if rest, ok := strings.CutPrefix(part, prefix); ok {
			return isNumber(strings.TrimPrefix(rest, "."))
		}
	}
	platforms := []string{"linux", "amd64", "x86", "arm64", "arm", "aarch64", "ppc64le", "s390x"}
	return isNumber(part) || slices.Contains(platforms, part)
}

func isNumber(text string) bool {
	return text != "" && text[0] >= '0' && text[0] <= '9' && strings.Trim(text, "0123456789.") == ""
}

func isEngine(base string) bool {
	return slices.Contains([]string{"docker", "podman", "nerdctl", "ctr", "rkt", "crictl"}, base)
}

// parseEngineCommand describes the container that an engine starts of an image of etcd.
// before are the words up to the image, args those after it. The container runs etcd unless
// another program is named.
func parseEngineCommand(before, args []string, env map[string]string) etcdCommand {
	engine := path.Base(before[0])
	starts := func(word string) bool { return word == "run" || word == "create" }
	isOther := func(entry string) bool { return !isServerName(path.Base(entry)) && !isShell(path.Base(entry)) }
	if !slices.ContainsFunc(before, starts) ||
		slices.ContainsFunc(flagValues(slices.Concat(before, args), "--exec"), isOther) ||
		slices.ContainsFunc(flagValues(before, "--entrypoint"), isOther) {
		return etcdCommand{} // it attaches to a container, stops one, or makes a backup
	}
	if end := slices.Index(args, "--"); engine == "rkt" && end >= 0 {
		args = args[end+1:]
	}
	if engine == "ctr" && len(args) > 0 {
		args = args[1:] // the container's name
	}
	c := etcdCommand{args: args, isServer: true}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if c = parseCommand(args, env); !c.isServer {
			return etcdCommand{}
		}
	}
	c.inContainer, c.envFiles = true, flagValues(before, "--env-file")
	c.volumes, c.engineVolumes = parseVolumes(before)
	words := slices.Concat(flagValues(before, "-e"), flagValues(before, "--env"), args[:max(0, len(args)-len(c.args))])
	c.env = assignments(words)
	return c
}

// parseVolumes returns the mounts in the arguments of an engine's `run`: -v, --volume and
// --mount. It also returns which of them the engine manages.
func parseVolumes(line []string) (volumes map[string]string, managed map[string]bool) {
	volumes, managed = map[string]string{}, map[string]bool{}
	add := func(source, target string) {
		volumes[path.Clean(target)] = volumePath(path.Base(line[0]), source)
		managed[path.Clean(target)] = !path.IsAbs(source)
	}
	for _, value := range slices.Concat(flagValues(line, "-v"), flagValues(line, "--volume")) {
		if parts := strings.Split(value, ":"); len(parts) > 1 && path.IsAbs(parts[1]) {
			add(parts[0], parts[1])
		}
	}
	for _, value := range flagValues(line, "--mount") {
		fields := map[string]string{}
		for field := range strings.SplitSeq(value, ",") {
			name, text, _ := strings.Cut(field, "=")
			fields[name] = text
		}
		source, target := fields["source"]+fields["src"], fields["target"]+fields["destination"]+fields["dst"]
		isBind := fields["type"] == "bind"
		if path.IsAbs(target) && (isBind && path.IsAbs(source) || !isBind && source != "") {
			add(source, target)
		}
	}
	return volumes, managed
}

// volumePath returns the host's path for the source of a mount: a path, or the default place
// of a volume that the engine manages.
func volumePath(engine, source string) string {
	switch {
	case path.IsAbs(source):
		return source
	case engine == "podman":
		return path.Join("/var/lib/containers/storage/volumes", source, "_data")
	}
	return path.Join("/var/lib/docker/volumes", source, "_data")
}

// flagValues returns the values of a flag.
func flagValues(line []string, flag string) []string {
	var values []string
	for i, word := range line {
		if value, joined := strings.CutPrefix(word, flag+"="); joined {
			values = append(values, value)
		} else if word == flag && i+1 < len(line) {
			values = append(values, line[i+1])
		}
	}
	return values
}
