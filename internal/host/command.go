package host

import (
	"os"
	"path"
	"slices"
	"strings"
)

// serverCommand finds the etcd server in a unit's ExecStart: its arguments, the environment files that a container
// engine is given for it, and whether there is one at all. etcd itself, a shell around it and a container engine's `run`
// are understood; of any other wrapper only its variables tell anything.
func serverCommand(exec string, env map[string]string) (args, envFiles []string, server bool) {
	line := expandAll(words(strings.TrimLeft(exec, "@-:+!|")), env)
	if len(line) == 0 {
		return nil, nil, false
	}
	if isShell(path.Base(line[0])) {
		for i := 1; i+1 < len(line); i++ {
			if strings.HasPrefix(line[i], "-") && strings.HasSuffix(line[i], "c") {
				return serverCommand(expand(line[i+1], env), env)
			}
		}
	}
	if isEngine(path.Base(line[0])) {
		envFiles = flagValues(line, "--env-file")
	}
	at := -1
	for i, word := range line {
		named := i > 0 && (line[i-1] == "--name" || line[i-1] == "--hostname" || line[i-1] == "-v" || line[i-1] == "-h")
		if !named && namesServer(word, i == 0) {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, nil, false
	}
	// An image is followed by the program in it, unless that is the image's entry point.
	if at+1 < len(line) && namesServer(line[at+1], false) {
		at++
	}
	args = line[at+1:]
	if isNoServer(args) {
		return nil, nil, false
	}
	return args, envFiles, true
}

// namesServer says whether a word of a command is the etcd program or its image. A path that merely ends in etcd, such
// as the data directory, is neither.
func namesServer(word string, first bool) bool {
	if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	base, _, _ := strings.Cut(path.Base(word), "@")
	base, _, _ = strings.Cut(base, ":")
	switch {
	case base == "etcd-wrapper":
		return true
	case base != "etcd":
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
