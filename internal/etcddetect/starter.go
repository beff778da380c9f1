package etcddetect

import (
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
)

// addStarters adds what may start etcd and leads to nothing that was found. Its name contains etcd,
// and its command does not name the data: it is a script, or starts a container that was made
// before. The data that the search of the local disks found may be its own. Without any, the host
// is unknown, and never without etcd.
//
// A server whose unit is not known may be what one of them started.
func (s *hostScan) addStarters() {
	if slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.Unit == "" && !f.InCluster }) {
		return
	}
	for _, starter := range slices.Concat(s.opaqueUnits(), s.supervisedServices()) {
		if len(s.data) == 0 {
			s.addUnknown("%s: its name says etcd, and its command does not tell where the data is; "+
				"remove it if its member no longer exists", starter)
		}
		for i := range s.data {
			s.data[i].Starter = starter
		}
	}
}

// opaqueUnits returns the units without a known server whose name says etcd.
func (s *hostScan) opaqueUnits() (all []string) {
	for _, unit := range s.units {
		isKnown := slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.Unit == unit.Name })
		if !isKnown && !unit.namesPlace() && saysEtcd(unit.Name) && isOpaque(unit.line) {
			all = append(all, "systemd unit "+unit.Name)
		}
	}
	return all
}

// namesPlace reports whether the place of the unit's data is known, or is reported as unknown
// already: its command or a variable names it, or it belongs to a snap of a layout. microk8s has
// such a unit, and no etcd by default.
func (u *etcdUnit) namesPlace() bool {
	isOfSnap := strings.HasPrefix(u.Name, "snap.") && slices.ContainsFunc(distroLayouts(), func(l distroLayout) bool {
		return slices.Contains(l.units, u.Name)
	})
	return u.command.isCertain || len(u.Unread) > 0 || path.IsAbs(u.Env["ETCD_DATA_DIR"]) || isOfSnap
}

// supervisedServices returns the services of other supervisors whose name says etcd: of OpenRC and
// System V, runit, s6 and supervisord. Their files are in languages of their own. Debian's package
// has an init script beside its unit, and the unit takes precedence.
func (s *hostScan) supervisedServices() (all []string) {
	for _, dir := range []string{
		"/etc/init.d", "/etc/service", "/etc/sv", "/etc/s6/sv", "/etc/supervisor/conf.d", "/etc/supervisord.d",
	} {
		names, err := s.root.ReadNames(dir)
		if err != nil && !hostfs.IsAbsent(err) {
			s.addUnknown("the services in %s: %v", dir, hostfs.Reason(err))
		}
		for _, name := range names {
			service := strings.TrimSuffix(strings.TrimSuffix(name, ".conf"), ".ini")
			isUnit := func(unit etcdUnit) bool { return unit.Name == service+".service" }
			if saysEtcd(service) && !slices.ContainsFunc(s.units, isUnit) {
				all = append(all, "service "+path.Join(dir, name))
			}
		}
	}
	return all
}

// saysEtcd reports whether the name of a unit or service is that of etcd, and not of a client, a
// backup or another tool for it.
func saysEtcd(name string) bool {
	isSeparator := func(r rune) bool { return strings.ContainsRune("-_.@", r) }
	words := strings.FieldsFunc(strings.TrimSuffix(name, ".service"), isSeparator)
	return slices.ContainsFunc(words, isServerName) && !containsAny(name,
		"backup", "snapshot", "restore", "defrag", "compact", "maintenance", "cert", "renew", "metric", "exporter",
		"monitor", "health", "check", "alarm", "keeper", "browser", "proxy", "gateway", "clean", "delete", "notify",
		"watch", "tuning", "prepare", "setup", "install", "download", "mount", "log")
}

// namesTool reports whether a word of a command is the path of a client of etcd or a tool for it.
// The options of a server have some of these words too.
func namesTool(word string) bool {
	return !strings.HasPrefix(word, "-") &&
		containsAny(word, "etcdctl", "etcdutl", "backup", "snapshot", "defrag", "keeper", "browser", "exporter", "metrics",
			"gateway", "grpc-proxy")
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// isOpaque reports whether the command of a unit may start a server that it does not show: it
// starts a container that was made before, or a program that is not one of the system.
func isOpaque(line []string) bool {
	if len(line) == 0 || slices.ContainsFunc(line, namesTool) {
		return false
	}
	base := path.Base(line[0])
	if isEngine(base) || strings.Contains(base, "compose") {
		return slices.ContainsFunc(line[1:], func(word string) bool {
			return slices.Contains([]string{"run", "start", "restart", "create", "up", "play"}, word)
		})
	}
	isOfSystem := slices.Contains([]string{"/bin", "/sbin", "/usr/bin", "/usr/sbin"}, path.Dir(line[0]))
	return !isOfSystem || isRunner(base) || base == "snap"
}
