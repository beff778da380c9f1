package host

import (
	"path"
	"slices"
	"strings"
)

func isEngine(base string) bool {
	return slices.Contains([]string{"docker", "podman", "nerdctl", "ctr", "rkt", "crictl"}, base)
}

// engineCommand is what a container engine starts of an image of etcd's: etcd, unless something else is named.
func engineCommand(before, args []string, env map[string]string) command {
	engine := path.Base(before[0])
	starts := func(word string) bool { return word == "run" || word == "create" }
	other := func(entry string) bool { return !isServerName(path.Base(entry)) && !isShell(path.Base(entry)) }
	if !slices.ContainsFunc(before, starts) || slices.ContainsFunc(flagValues(slices.Concat(before, args), "--exec"), other) ||
		slices.ContainsFunc(flagValues(before, "--entrypoint"), other) {
		return command{} // it follows or ends a container that something else started, or makes a backup
	}
	if end := slices.Index(args, "--"); engine == "rkt" && end >= 0 {
		args = args[end+1:]
	}
	if engine == "ctr" && len(args) > 0 {
		args = args[1:] // the container's name
	}
	c := command{args: args, server: true}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if c = serverCommand(args, env); !c.server {
			return command{}
		}
	}
	c.engine, c.envFiles = true, flagValues(before, "--env-file")
	c.volumes, c.named = volumes(before)
	c.env = assignments(slices.Concat(flagValues(before, "-e"), flagValues(before, "--env"), args[:max(0, len(args)-len(c.args))]))
	return c
}

// volumes returns the mounts in the arguments of an engine's `run`: -v, --volume and --mount type=bind.
func volumes(line []string) (found map[string]string, named map[string]bool) {
	found, named = map[string]string{}, map[string]bool{}
	for _, value := range slices.Concat(flagValues(line, "-v"), flagValues(line, "--volume")) {
		if parts := strings.Split(value, ":"); len(parts) > 1 && path.IsAbs(parts[1]) {
			found[path.Clean(parts[1])] = volumePlace(path.Base(line[0]), parts[0])
			named[path.Clean(parts[1])] = !path.IsAbs(parts[0])
		}
	}
	for _, value := range flagValues(line, "--mount") {
		told := map[string]string{}
		for field := range strings.SplitSeq(value, ",") {
			name, text, _ := strings.Cut(field, "=")
			told[name] = text
		}
		source, target := told["source"]+told["src"], told["target"]+told["destination"]+told["dst"]
		if (told["type"] == "bind" && path.IsAbs(source) || source != "" && told["type"] != "bind") && path.IsAbs(target) {
			found[path.Clean(target)] = volumePlace(path.Base(line[0]), source)
			named[path.Clean(target)] = !path.IsAbs(source)
		}
	}
	return found, named
}

// volumePlace returns where the source of a mount is: a path, or a volume of the engine's, by the engines' defaults.
func volumePlace(engine, source string) string {
	switch {
	case path.IsAbs(source):
		return source
	case engine == "podman":
		return path.Join("/var/lib/containers/storage/volumes", source, "_data")
	}
	return path.Join("/var/lib/docker/volumes", source, "_data")
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
