package etcddetect

import (
	"path"
	"slices"
	"strings"
)

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
