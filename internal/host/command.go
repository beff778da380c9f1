package host

import (
	"os"
	"path"
	"slices"
	"strings"
)

// command is what a command line tells of the etcd server that it starts.
type command struct {
	args []string
	// envFiles are environment files that a container engine is given for it.
	envFiles []string
	// volumes are the host's directories by the names that the server has for them.
	volumes map[string]string
	// server says that there is one at all.
	server bool
}

// serverCommand finds the etcd server in a unit's ExecStart. etcd itself, a shell around it and a container engine's `run`
// are understood; of any other wrapper only its variables tell anything.
func serverCommand(line []string, env map[string]string) command {
	if len(line) == 0 {
		return command{}
	}
	if isShell(path.Base(line[0])) {
		for i := 1; i+1 < len(line); i++ {
			if strings.HasPrefix(line[i], "-") && strings.HasSuffix(line[i], "c") {
				return serverCommand(commandLine(expand(line[i+1], env), env), env)
			}
		}
	}
	at := -1
	for i, word := range line {
		named := i > 0 && slices.Contains([]string{"--name", "--hostname", "-v", "-h", "--volume"}, line[i-1])
		if !named && namesServer(word, i == 0) {
			at = i
			break
		}
	}
	if at < 0 {
		return command{}
	}
	c := command{server: true}
	if isEngine(path.Base(line[0])) {
		if !slices.ContainsFunc(line[1:at], func(word string) bool { return word == "run" || word == "create" }) {
			return command{} // it follows or ends a container that something else started
		}
		c.envFiles, c.volumes = flagValues(line[:at], "--env-file"), volumes(line[:at])
	}
	if dir := env["ETCD_SSL_DIR"]; path.Base(line[at]) == wrapper && dir != "" {
		c.volumes = map[string]string{"/etc/ssl/certs": dir}
	}
	// An image is followed by the program in it, unless that is the image's entry point.
	if at+1 < len(line) && namesServer(line[at+1], false) {
		at++
	}
	c.args = line[at+1:]
	if isNoServer(c.args) {
		return command{}
	}
	return c
}

// commandLine splits a command as systemd does, variables replaced.
func commandLine(exec string, env map[string]string) []string {
	return expandAll(words(strings.TrimLeft(exec, "@-:+!|")), env)
}

// wrapper is what CoreOS and Flatcar start etcd with in a container: it mounts ETCD_SSL_DIR where etcd looks for public
// authorities, and the data directory under its own name.
const wrapper = "etcd-wrapper"

// namesServer says whether a word of a command is the etcd program or its image. A path that merely ends in etcd, such
// as the data directory, is neither.
func namesServer(word string, first bool) bool {
	if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	base, _, _ := strings.Cut(path.Base(word), "@")
	base, _, _ = strings.Cut(base, ":")
	switch {
	case base == wrapper:
		return true
	case !isServerName(base):
		return false
	}
	return first || !path.IsAbs(word) || strings.Contains(word, "/bin/")
}

// isNoServer says whether these arguments make etcd one of its other programs (etcdmain/main.go).
func isNoServer(args []string) bool {
	return len(args) > 0 && (args[0] == "gateway" || args[0] == "grpc-proxy")
}

func isShell(base string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"}, base)
}

func isEngine(base string) bool {
	return slices.Contains([]string{"docker", "podman", "nerdctl", "ctr", "rkt", "crictl"}, base)
}

// volumes returns the bind mounts in the arguments of an engine's `run`: -v, --volume and --mount type=bind.
func volumes(line []string) map[string]string {
	found := map[string]string{}
	for _, value := range slices.Concat(flagValues(line, "-v"), flagValues(line, "--volume")) {
		if parts := strings.Split(value, ":"); len(parts) > 1 && path.IsAbs(parts[0]) && path.IsAbs(parts[1]) {
			found[path.Clean(parts[1])] = parts[0]
		}
	}
	for _, value := range flagValues(line, "--mount") {
		told := map[string]string{}
		for field := range strings.SplitSeq(value, ",") {
			name, text, _ := strings.Cut(field, "=")
			told[name] = text
		}
		source, target := told["source"]+told["src"], told["target"]+told["destination"]+told["dst"]
		if told["type"] == "bind" && path.IsAbs(source) && path.IsAbs(target) {
			found[path.Clean(target)] = source
		}
	}
	return found
}

// expandAll replaces variables as systemd does (systemd.service(5)): $NAME alone becomes as many words as it holds,
// ${NAME} within a word stays one.
func expandAll(line []string, env map[string]string) []string {
	var all []string
	for _, word := range line {
		name, alone := strings.CutPrefix(word, "$")
		if alone && isVariable(name) {
			all = append(all, words(env[name])...)
			continue
		}
		all = append(all, expandBraced(word, env))
	}
	return all
}

func expandBraced(word string, env map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(word, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			out.WriteString(word)
			return out.String()
		}
		out.WriteString(before)
		out.WriteString(env[name])
		word = after
	}
}

// expand replaces variables as a shell does, near enough.
func expand(line string, env map[string]string) string {
	return os.Expand(line, func(name string) string { return env[name] })
}

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
