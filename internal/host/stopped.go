package host

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// readStopped looks at the units. One whose server runs adds its name and what its files tell to that server; one with a
// data directory that holds a member and no process is a stopped member: still a voter of its cluster.
func (s *scan) readStopped() {
	for _, unit := range s.services {
		running := slices.IndexFunc(s.found, func(f server) bool { return f.Unit == unit.name })
		if !unit.server && running < 0 && len(unit.unread) == 0 {
			continue
		}
		found, unread := s.stopped(unit)
		if running < 0 {
			running = slices.IndexFunc(s.found, func(f server) bool { return f.same(found) })
		}
		if running >= 0 {
			s.found[running].join(found, s.host.prefer)
			continue
		}
		for _, reason := range unread {
			s.unknown = append(s.unknown, fmt.Sprintf("systemd unit %s: %s", unit.name, reason))
		}
		switch {
		case len(unread) > 0 || found.HasData == nil:
		case !*found.HasData && (unit.guessed || !unit.sure):
		case !*found.HasData:
			s.notes = append(s.notes, fmt.Sprintf("systemd unit %s does not run, and its data directory %s holds no member",
				unit.name, s.host.root.host(found.Config.DataDir)))
		default:
			s.found = append(s.found, found)
		}
	}
	s.readWrapped()
}

// stopped describes a unit's server by the unit's files alone. Unless something was unread, HasData is known.
func (s *scan) stopped(unit service) (found server, unread []string) {
	root := s.host.root
	outside := func(named string) (string, error) { return root.locate(unit.outside(named)) }
	read := func(named string) ([]byte, error) { return root.read(unit.outside(named)) }
	told, err := precedence(flagSettings(unit.args), envSettings(unit.env), read)
	unread = slices.Clone(unit.unread)
	found.Sighting = protect.Sighting{Source: protect.DataDirectory, Unit: unit.name, Config: told.config(cmp.Or(unit.workDir, "/"), true)}
	found.Config.DataDir = unit.outside(found.Config.DataDir)
	if found.named = found.Config.DataDir; len(gaps(found.named)) == 0 {
		found.look(root, root.locate)
	}
	doubt := unit.doubt(told, found)
	switch {
	case err != nil && len(gaps(told.file)) == 0:
		unread = append(unread, err.Error())
	case doubt != "" && (found.HasData == nil || !*found.HasData) && !s.mayRun(unit):
		unread = append(unread, doubt+"; name its data directory by its whole path on the host, or remove the unit if its member is gone")
	}
	found.Where = fmt.Sprintf("data directory %s of systemd unit %s, which does not run", found.named, unit.name)
	for name, value := range told.settings {
		told.settings[name] = fillGaps(value, "")
	}
	if found.Config.File = located(outside, told.file); told.file == "" {
		found.Config.File = located(root.locate, unit.envFile)
	}
	found.Credentials = s.host.credentials(told.settings, unit.envFile, outside)
	unread = append(unread, found.Problems...)
	found.Problems = nil
	return found, unread
}

// mayRun says that systemd has the unit running, and that a server was found that may be the unit's: in a container, say, which
// is no part of the unit.
func (s *scan) mayRun(unit service) bool {
	return unit.mainPID != 0 && slices.ContainsFunc(s.found, func(f server) bool { return f.PID != 0 && f.Unit == "" && !f.InCluster })
}

// readWrapped looks where the variables of a unit say that etcd's data is, if it is not seen to start etcd: a script of
// somebody's own may. Backups and the like have the same variables, so that they tell of a member only if one is there.
func (s *scan) readWrapped() {
	for _, unit := range s.services {
		dir := unit.env["ETCD_DATA_DIR"]
		if unit.server || !path.IsAbs(dir) || len(gaps(dir)) > 0 {
			continue
		}
		found := server{Sighting: protect.Sighting{Source: protect.DataDirectory, Unit: unit.name}}
		found.Config = envSettings(unit.env).config("/", true)
		found.look(s.host.root, s.host.root.locate)
		for _, problem := range found.Problems {
			s.unknown = append(s.unknown, fmt.Sprintf("systemd unit %s: %s", unit.name, problem))
		}
		known := slices.ContainsFunc(s.found, func(f server) bool { return f.same(found) })
		if known || found.HasData == nil || !*found.HasData {
			continue
		}
		found.Where = fmt.Sprintf("data directory %s, which ETCD_DATA_DIR of systemd unit %s names", found.named, unit.name)
		found.Config.File = located(s.host.root.locate, unit.envFile)
		found.Credentials = s.host.credentials(envSettings(unit.env), unit.envFile, s.host.root.locate)
		s.found = append(s.found, found)
	}
}

// join adds what a unit's files tell of a server that was found already. Its own settings stand; the files add the unit's
// name, and the credentials that they name for etcdctl, which the server itself need not know.
func (f *server) join(unit server, prefer func([]protect.Credential, protect.Credential) []protect.Credential) {
	if f.Unit == "" && f.PID != 0 && !f.InCluster {
		f.setUnit(unit.Unit)
	}
	if f.Config.File == "" {
		f.Config.File = unit.Config.File
	}
	for _, c := range slices.Backward(unit.Credentials) {
		if strings.HasPrefix(c.Origin, ctlOrigin) {
			f.Credentials = prefer(f.Credentials, c)
		}
	}
}

// same says that two sightings are of one server: they have one data directory, or the name and peer URLs that no two
// members of a cluster share.
func (f server) same(other server) bool {
	if f.dir != nil && other.dir != nil {
		return os.SameFile(f.dir, other.dir)
	}
	return f.Config.Name != defaultName && f.Config.Name != "" && f.Config.Name == other.Config.Name &&
		slices.Equal(f.Config.InitialPeerURLs, other.Config.InitialPeerURLs)
}

// readDataDirs looks where etcd's data lies by the layouts, for members that nothing else told of.
func (s *scan) readDataDirs() {
	unread := "\x00" // a directory that could not be looked at hides what lies below it: told once
	seenBefore := layout{dataDirs: s.host.traces.knownDataDirs()}
	for _, l := range append(layouts(), seenBefore) {
		at := s.place(l)
		for _, dir := range at.dataDirs {
			if strings.HasPrefix(dir+"/", unread+"/") {
				continue
			}
			config := at.config
			if l.program.config != "" {
				config = path.Join(dir, l.program.config)
			}
			if err := s.readDataDir(l, dir, config); err != nil {
				unread = dir
				s.unknown = append(s.unknown, fmt.Sprintf("the data directory %s: %v", dir, plain(err)))
			}
		}
	}
}

func (s *scan) readDataDir(l layout, dir, config string) error {
	root := s.host.root
	info, err := root.stat(dir)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(s.found, func(f server) bool { return f.dir != nil && os.SameFile(f.dir, info) }) {
		return nil
	}
	has, err := holdsMember(root, dir)
	if err != nil || !has {
		return err
	}
	found := server{dir: info, Sighting: protect.Sighting{
		Source: protect.DataDirectory, Where: "data directory " + dir, HasData: &has,
	}}
	found.configure(s.host, config, info)
	found.Config.DataDir = located(root.locate, dir)
	for _, unit := range s.services {
		if slices.Contains(l.units, unit.name) {
			found.Unit = unit.name
			found.Where += fmt.Sprintf(" (%s, systemd unit %s)", l.name, unit.name)
			break
		}
	}
	if found.Unit == "" {
		found.Where += ", with no server running on it"
	}
	s.found = append(s.found, found)
	return nil
}

// configure adds what a layout's configuration file tells of the server on a data directory, if it is that server's. The
// data speaks for itself: a file that cannot be read takes nothing from it.
func (f *server) configure(h *Host, file string, dir fs.FileInfo) {
	if file == "" {
		return
	}
	told, err := precedence(settings{"config-file": file}, nil, h.root.read)
	if err != nil {
		return
	}
	if its, err := h.root.stat(told.settings["data-dir"]); err != nil || !os.SameFile(its, dir) {
		return
	}
	f.Config = told.config("/", true)
	f.Config.File = located(h.root.locate, file)
	f.Credentials = h.credentials(told.settings, file, h.root.locate)
}
