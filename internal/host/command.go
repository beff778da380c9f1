package host

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// command is what a command line tells of the etcd server that it starts.
type command struct {
	args []string
	// env are variables that the command itself sets.
	env map[string]string
	// envFiles are environment files that a container engine is given for it.
	envFiles []string
	// volumes are the host's directories by the names that the server has for them.
	volumes map[string]string
	// named are those of them that the engine keeps, by default where volumes says.
	named map[string]bool
	// engine says that a container engine starts it: the server's paths are the host's only by volumes.
	engine bool
	// root is the program that gives it another root directory, empty if none does.
	root string
	// script says that a shell does something before, such as changing its directory or reading variables.
	script bool
	// server says that there is one at all, and sure that it is not the mere name of one: systemctl restart etcd.
	server, sure bool
}

// serverCommand finds the etcd server in a unit's command. etcd itself, a shell or env around it and a container engine's
// `run` are understood, and any other program that is given etcd's command as its last arguments. What a script of somebody's
// own starts is not seen here.
func serverCommand(line []string, env map[string]string) command {
	if len(line) == 0 {
		return command{}
	}
	if isShell(path.Base(line[0])) {
		for i := 1; i+1 < len(line); i++ {
			if strings.HasPrefix(line[i], "-") && strings.HasSuffix(line[i], "c") {
				return shellCommand(line[i+1], env)
			}
		}
	}
	at := -1
	for i, word := range line {
		named := i > 0 && slices.Contains([]string{"--name", "--hostname", "-v", "-h", "--volume", "-e", "--env"}, line[i-1])
		if !named && namesServer(word, !slices.ContainsFunc(line[:i], isProgram)) {
			at = i
			break
		}
	}
	if at < 0 {
		return command{}
	}
	before, args := line[:at], line[at+1:]
	c := command{args: args, env: assignments(before), server: true}
	if dir := env["ETCD_SSL_DIR"]; path.Base(line[at]) == wrapper && dir != "" {
		c.volumes = map[string]string{"/etc/ssl/certs": dir}
	}
	engine := slices.IndexFunc(before, func(word string) bool { return isEngine(path.Base(word)) })
	switch {
	case engine >= 0:
		c = engineCommand(before[engine:], args, env)
	case len(args) > 0 && namesServer(args[0], false): // systemd is told the name of the process besides: @/usr/bin/etcd etcd
		c.args = args[1:]
	}
	if isNoServer(c.args) {
		return command{}
	}
	if at := slices.IndexFunc(before, changesRoot); at >= 0 {
		c.root = path.Base(before[at])
	}
	tells := slices.ContainsFunc(slices.Collect(maps.Keys(flagSettings(c.args))), isRead)
	first := slices.IndexFunc(before, isProgram)
	c.sure = c.server && (tells || c.engine || first < 0 || isRunner(path.Base(before[first])))
	return c
}

// shellCommand finds it in the text of a shell's -c: the command that starts it, and the variables that are set before.
func shellCommand(text string, env map[string]string) command {
	before := map[string]string{}
	steps := commandLine(apart(expand(withoutOutput(text), env)), env)
	for i, script := 0, false; i < len(steps); script = true {
		end := i
		for end < len(steps) && !isSeparator(steps[end]) {
			end++
		}
		if c := serverCommand(steps[i:end], env); c.server {
			maps.Copy(before, c.env)
			c.env, c.script = before, c.script || script
			return c
		}
		maps.Copy(before, assignments(steps[i:end]))
		i = end + 1
	}
	return command{}
}

// withoutOutput puts gaps for what commands within a shell's text print: $(...) and `...`.
func withoutOutput(text string) string {
	for {
		at := strings.Index(text, "$(")
		if at < 0 {
			break
		}
		end, depth := at+2, 1
		for ; end < len(text) && depth > 0; end++ {
			depth += strings.Count(text[end:end+1], "(") - strings.Count(text[end:end+1], ")")
		}
		text = text[:at] + gap("output") + text[end:]
	}
	parts := strings.Split(text, "`")
	for i := 1; i < len(parts); i += 2 {
		parts[i] = gap("output")
	}
	return strings.Join(parts, "")
}

// assignments returns the variables among words such as NAME=value.
func assignments(line []string) map[string]string {
	var found map[string]string
	for _, word := range line {
		if name, text, is := strings.Cut(word, "="); is && isVariable(name) {
			if found == nil {
				found = map[string]string{}
			}
			found[name] = text
		}
	}
	return found
}

// apart puts blanks around what ends a command in a shell, unless that is quoted.
func apart(text string) string {
	var out strings.Builder
	var quote byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(text):
			out.WriteByte(c)
			i++
			out.WriteByte(text[i])
			continue
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && strings.IndexByte(";&|\n()", c) >= 0:
			if c == '\n' {
				c = ';'
			}
			out.WriteString(" " + string(c) + " ")
			continue
		}
		out.WriteByte(c)
	}
	return out.String()
}

func isSeparator(word string) bool { return len(word) == 1 && strings.Contains(";&|()", word) }

// changesRoot says whether a program gives another root directory to what it starts.
func changesRoot(word string) bool {
	return slices.Contains([]string{"chroot", "unshare", "nsenter", "bwrap", "proot", "systemd-nspawn"}, path.Base(word))
}

// isProgram says whether a word before etcd's is a program, and no variable for it or word of the shell's own.
func isProgram(word string) bool {
	name, _, assigned := strings.Cut(word, "=")
	return (!assigned || !isVariable(name)) && !slices.Contains([]string{"exec", "env", "command", "nohup", "then", "do", "else"}, path.Base(word))
}

// isRunner says whether a program runs what its last arguments are.
func isRunner(base string) bool {
	return changesRoot(base) || isShell(base) || slices.Contains([]string{
		"nice", "ionice", "numactl", "taskset", "chrt", "prlimit", "setpriv", "runuser", "sudo", "su", "gosu", "su-exec", "setsid",
		"stdbuf", "timeout", "time", "dumb-init", "tini", "catatonit", "systemd-inhibit", "systemd-cat",
	}, base)
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
	if first || strings.Contains(word, "/bin/") || strings.Contains(word, "/sbin/") {
		return true
	}
	// A relative name with a version may be that of a snapshot or a network; with a registry or a tag it is an image.
	return !path.IsAbs(word) && (isPlainServerName(base) || strings.ContainsAny(word, "/:@"))
}

// isNoServer says whether these arguments make etcd one of its other programs (etcdmain/main.go).
func isNoServer(args []string) bool {
	return len(args) > 0 && (args[0] == "gateway" || args[0] == "grpc-proxy")
}

func isShell(base string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env"}, base)
}
