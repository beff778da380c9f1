package etcddetect

import (
	"errors"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/node/systemd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A starterKind is a kind of starter in words.
type starterKind string

const (
	unitStarter    starterKind = "systemd unit"
	podStarter     starterKind = "static pod"
	serviceStarter starterKind = "service"
)

// A starter is what may start a server: a systemd unit, a static pod, or a service of another
// supervisor.
type starter struct {
	*texts
	kind starterKind
	// name is that of the unit, or the file of the static pod or service.
	name string
	// commands are the commands of the unit, in words.
	commands [][]string
	// program is the program that contains etcd, if the unit is one of its own, or nil.
	program *parentProgram
	// isKnown is set if its server or proxy was found, running or not.
	isKnown bool
}

// addUnits reads the units that may start etcd.
func (s *hostScan) addUnits() {
	files, unread := systemd.UnitFiles(s.root, unitPatterns())
	s.unknown = append(s.unknown, unread...)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		own := files[name]
		unit := &starter{kind: unitStarter, name: name, program: programOf(name), texts: s.readTexts(name, own...)}
		for _, text := range unit.all[:len(own)] {
			unit.addCommands(text.content)
			unit.checkMount(text.file)
		}
		s.starters = append(s.starters, unit)
	}
}

var (
	specifierPattern = regexp.MustCompile(`%[%A-Za-z]`)
	// commandPattern also matches the unit that a timer, a path or a socket starts.
	commandPattern = regexp.MustCompile(`(?m)^[ \t]*(?:ExecStart(Pre)?|Unit|Service)[ \t]*=[-@:+!| \t]*(.*)$`)
	// hostPathPattern matches a directory of the host in a static pod.
	hostPathPattern = regexp.MustCompile(`\bpath["']?:\s*["']?(/[^\s"',}]*)`)
)

// expandSpecifiers replaces the specifiers in a unit file that the name of the unit tells
// (systemd.unit(5)), and all others by a wildcard.
func expandSpecifiers(name, content string) string {
	whole := strings.TrimSuffix(name, path.Ext(name))
	prefix, instance, _ := strings.Cut(whole, "@")
	pairs := []string{"%n", name, "%N", whole, "%p", prefix}
	if instance != "" {
		pairs = append(pairs, "%i", instance)
	}
	return specifierPattern.ReplaceAllString(strings.NewReplacer(pairs...).Replace(content), "*")
}

// addCommands adds the commands in a unit file. A unit of the type oneshot has several, and an
// empty value removes all before it. If the first one is a container engine, which may attach to
// the container of an earlier command, the commands before the start count too.
func (st *starter) addCommands(content string) {
	var before [][]string
	for _, found := range commandPattern.FindAllStringSubmatch(content, -1) {
		isSeparator := func(r rune) bool { return strings.ContainsRune(" \t\"'\\;&|()`", r) }
		words := strings.FieldsFunc(found[2], isSeparator)
		switch {
		case found[1] != "" && len(words) > 0:
			before = append(before, words)
		case found[1] != "":
			before = nil
		case len(words) > 0:
			st.commands = append(st.commands, words)
		default:
			st.commands = nil
		}
	}
	if len(st.commands) > 0 && isEngine(path.Base(st.commands[0][0])) {
		st.commands = append(st.commands, before...)
	}
}

// rank orders the starters. The first one that mentions a directory names its server: an instance
// comes before its template, and a backup last.
func (st *starter) rank() int {
	switch {
	case !st.isServer():
		return 3
	case st.kind != unitStarter:
		return 2
	case systemd.IsTemplate(st.name):
		return 1
	}
	return 0
}

// place describes the starter in words.
func (st *starter) place() string {
	if st.kind == podStarter {
		return "static pod " + path.Base(st.name)
	}
	return string(st.kind) + " " + st.name
}

// isServer reports whether the mentions of a starter are those of a server, and not those of a
// backup or another tool.
func (st *starter) isServer() bool {
	isNamed := saysEtcd(st.name) && !slices.ContainsFunc(st.commands, namesTool)
	return st.kind != unitStarter || st.program != nil || isNamed || slices.ContainsFunc(st.commands, runsServer)
}

// mayStart reports whether a starter may start a server whose data its texts do not mention.
func (st *starter) mayStart() bool {
	// microk8s has such a unit, and no etcd by default.
	isOfSnap := strings.HasPrefix(st.name, "snap.") && slices.ContainsFunc(distroLayouts(), func(l distroLayout) bool {
		return slices.Contains(l.units, st.name)
	})
	switch {
	case st.kind == serviceStarter, st.kind == unitStarter && len(st.commands) == 0 && len(st.unread) > 0:
		return true
	case st.kind == podStarter:
		dirs, isCertain := st.places(st.isHost)
		base := strings.TrimSuffix(path.Base(st.name), path.Ext(st.name))
		return isServerName(base) || saysEtcd(base) && (len(dirs) > 0 || !isCertain)
	case st.program != nil:
		_, isCertain := st.places(st.isHost)
		return !isCertain && slices.ContainsFunc(st.all, func(text text) bool {
			return slices.Contains(strings.Fields(text.content), st.program.role)
		})
	}
	isUnused := systemd.IsTemplate(st.name) && len(st.unread) == 0 // an instance is a unit of its own
	return !isOfSnap && !isUnused && slices.ContainsFunc(st.commands, func(words []string) bool {
		return runsServer(words) || saysEtcd(st.name) && isOpaque(words)
	})
}

// isHost reports whether a path in the texts is one of the host, or is mounted from there. A static
// pod has the directory, or one above it, from a path of the host. The wrapper of CoreOS and
// Flatcar mounts the data directory at its own path.
func (st *starter) isHost(dir string) bool {
	if st.kind == podStarter {
		return slices.ContainsFunc(hostPathPattern.FindAllStringSubmatch(st.all[0].content, -1), func(found []string) bool {
			return strings.HasPrefix(dir+"/", path.Clean(found[1])+"/")
		})
	}
	isWrapper := func(words []string) bool { return path.Base(words[0]) == coreosWrapper }
	return !st.isIsolated || slices.ContainsFunc(st.commands, isWrapper) || st.bindOf(dir) != ""
}

// addOpaque adds what may start etcd and leads to nothing that was found, and does not tell either
// where its data would be. The data that the search of the local disks found may be its own.
// Without any, the host is unknown, and never without etcd. So it is with a container, whose data
// may be in its own layers.
//
// A server whose unit is not known may be what one of them started.
func (s *hostScan) addOpaque() {
	isUnexplained := func(f detectedServer) bool {
		return f.Unit == "" && f.Source != evidence.SystemdUnit && !f.InCluster
	}
	var opaque []string
	for _, st := range s.starters {
		if where := s.opaquePlace(st); where != "" {
			opaque = append(opaque, where)
		}
	}
	containers := s.opaqueContainers()
	for i := range s.found {
		if len(opaque)+len(containers) > 0 {
			s.found[i].Old = nil // what may start a server may have other data
		}
	}
	if slices.ContainsFunc(s.found, isUnexplained) {
		return
	}
	for _, where := range opaque {
		for i := range s.data {
			s.data[i].Starter = where
		}
	}
	if len(s.data) > 0 {
		opaque = nil
	}
	for _, where := range append(opaque, containers...) {
		s.addUnknown("%s may start etcd, and does not tell where its data is; set its data directory to an absolute "+
			"path of the host, or remove it if its member no longer exists", where)
	}
}

// opaquePlace returns the place of a starter that leads to nothing, or "". It adds a note for one
// whose data directory is known and holds no member.
func (s *hostScan) opaquePlace(st *starter) string {
	isRunning := slices.ContainsFunc(s.found, func(f detectedServer) bool {
		return f.Unit == st.name || st.kind == podStarter && f.InCluster
	})
	if st.isKnown || isRunning || !st.mayStart() {
		return ""
	}
	dirs, reasons := s.knownPlaces(st)
	switch {
	case len(reasons) > 0:
		return st.place() + " (" + strings.Join(reasons, ", ") + ")"
	case len(dirs) == 0:
		return st.place()
	}
	s.addNote("%s does not run, and its data directory %s holds no member", st.place(), dirs[len(dirs)-1])
	return ""
}

// knownPlaces returns the data directories of a starter. It returns none if its data may be in
// another place, and the reasons as far as there are any.
func (s *hostScan) knownPlaces(st *starter) (dirs, reasons []string) {
	reasons = slices.Concat(st.unread, st.skipped)
	loaded, _, err := s.settingsOf(st)
	if err != nil {
		reasons = append(reasons, err.Error())
	}
	dirs, isCertain := st.places(st.isHost)
	isByDefault := loaded["config-file"] != "" && loaded["data-dir"] == "" // and flags do not count
	if len(reasons) > 0 || !isCertain || isByDefault {
		return nil, reasons
	}
	return dirs, nil
}

// settingsOf returns the settings in the texts of a starter, and its file with variables.
func (s *hostScan) settingsOf(st *starter) (loaded etcdSettings, envFile string, err error) {
	flags, env, envFile := st.settings()
	if dir := env["ssl-dir"]; dir != "" {
		st.binds["/etc/ssl/certs"] = dir
	}
	read := func(name string) ([]byte, error) {
		if at := st.hostPath(name); !st.isSkipped(at) {
			return s.root.ReadFile(at)
		}
		return nil, errors.New("its file system may hang")
	}
	loaded, err = loadSettings(flags, env, "", read)
	return loaded, envFile, err
}

// addServices reads the services of other supervisors whose name says etcd: of OpenRC and System
// V, Upstart, dinit, runit, s6, supervisord and Monit, and of the users of systemd and podman.
// Debian's package has an init script beside its unit, and the unit takes precedence.
func (s *hostScan) addServices() {
	for _, dir := range []string{
		"/etc/init.d", "/etc/init", "/etc/dinit.d", "/etc/service", "/etc/sv", "/etc/runit/sv", "/etc/s6/sv",
		"/etc/supervisor/conf.d", "/etc/supervisor.d", "/etc/supervisord.d", "/etc/monit/conf.d", "/etc/monit.d",
		"/etc/s6-rc/source", "/etc/local.d", "/etc/systemd/user", "/etc/containers/systemd/users",
	} {
		entries, err := s.root.ReadDir(dir)
		if err != nil {
			s.addUnknown("the services: %v", err)
		}
		for _, entry := range entries {
			name := entry.Name()
			service := name
			if slices.Contains([]string{".conf", ".ini", ".start", ".service", ".container", ".kube"}, path.Ext(name)) {
				service = strings.TrimSuffix(name, path.Ext(name))
			}
			isUnit := func(st *starter) bool { return st.name == service+".service" }
			if !saysEtcd(service) || slices.ContainsFunc(s.starters, isUnit) {
				continue
			}
			file := path.Join(dir, name)
			files := []string{file, path.Join("/etc/conf.d", name), path.Join("/etc/default", name)}
			if info, err := s.root.Stat(file); err == nil && info.IsDir() {
				files = []string{path.Join(file, "run")}
			}
			found := &starter{kind: serviceStarter, name: file, texts: s.readTexts("", files...)}
			s.starters = append(s.starters, found)
		}
	}
}

// saysEtcd reports whether the name of a unit or service is that of etcd, and not of a client, a
// backup or another tool for it. A short word of a tool counts only as a whole: etcd-catalog and
// etcd@checkout may be servers.
func saysEtcd(name string) bool {
	isSeparator := func(r rune) bool { return strings.ContainsRune("-_.@", r) }
	words := strings.FieldsFunc(strings.ToLower(strings.TrimSuffix(name, ".service")), isSeparator)
	isEtcd := func(word string) bool {
		return isServerName(word) || strings.HasSuffix(word, "etcd") || word == "etcdserver"
	}
	isTool := func(word string) bool {
		return containsAny(word, "client", "backup", "snapshot", "restore", "defrag", "compact", "maintenance", "metric",
			"exporter", "monitor", "health", "keeper", "browser", "gateway", "notify", "tuning", "prepare", "install",
			"download", "clean", "rotate") || slices.Contains([]string{
			"cert", "certificate", "renew", "renewal", "alarm", "check", "checker", "proxy", "delete", "watch", "watcher",
			"watchdog", "setup", "mount", "log",
		}, strings.TrimSuffix(word, "s"))
	}
	return slices.ContainsFunc(words, isEtcd) && !slices.ContainsFunc(words, isTool)
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// unitOf returns the host's unit that runs the process, or nil.
func (s *hostScan) unitOf(p etcdProcess) *starter {
	at := slices.IndexFunc(s.starters, func(st *starter) bool { return st.name == p.owner.hostUnit })
	if at < 0 {
		return nil
	}
	return s.starters[at]
}

// addStaticPods reads the static pods that may contain etcd: their name or their text has the word.
// The kubelet reads every regular file in the directory whose name begins with no dot, also by a
// link (pkg/kubelet/config/file.go, extractFromDir).
func (s *hostScan) addStaticPods() {
	for _, dir := range s.manifestDirs() {
		entries, err := s.root.ReadDir(dir)
		if err != nil {
			s.addUnknown("the static pods: %v", err)
		}
		for _, entry := range entries {
			file := path.Join(dir, entry.Name())
			info, err := s.root.Stat(file)
			if strings.HasPrefix(entry.Name(), ".") || err == nil && !info.Mode().IsRegular() {
				continue
			}
			pod := &starter{kind: podStarter, name: file, texts: s.readTexts("", file)}
			switch {
			case strings.Contains(entry.Name()+pod.all[0].content, "etcd"):
				s.starters = append(s.starters, pod)
			case pod.all[0].content == "" && len(pod.unread) > 0:
				s.addUnknown("the static pod %s", pod.unread[0])
			}
		}
	}
}

// manifestDirs returns the directories of static pods: those of the layouts, and those of programs
// whose units or settings place the data of etcd elsewhere.
func (s *hostScan) manifestDirs() (dirs []string) {
	for _, l := range distroLayouts() {
		dirs = append(dirs, l.manifests...)
		if l.program.manifests == "" {
			continue
		}
		dataDirs := s.dataDirs(l)
		for _, st := range s.starters {
			for _, dir := range st.dirs {
				dataDirs = append(dataDirs, dir.path)
			}
		}
		for _, dir := range dataDirs {
			if programDir, ok := strings.CutSuffix(dir, "/"+l.program.etcdDir); ok {
				dirs = append(dirs, path.Join(programDir, l.program.manifests))
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
