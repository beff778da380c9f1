package etcddetect

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
	"github.com/holdfast-dev/holdfast/internal/systemd"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// addStoppedUnits adds the servers of units that do not run and have the data of a member.
// Such a member is still a voter of its cluster. For a unit whose server runs, it adds the
// unit's name and files to that server.
func (s *hostScan) addStoppedUnits() {
	for _, unit := range s.units {
		running := slices.IndexFunc(s.found, func(f detectedServer) bool { return f.Unit == unit.Name })
		if !unit.command.isServer && running < 0 && len(unit.Unread) == 0 || slices.Contains(s.proxyUnits, unit.Name) {
			continue
		}
		found, unread := s.describeUnit(unit)
		if running < 0 {
			running = slices.IndexFunc(s.found, func(f detectedServer) bool { return f.isSame(found) })
		}
		if running >= 0 {
			s.addUnitInfo(&s.found[running], found)
			continue
		}
		for _, reason := range unread {
			s.addUnknown("systemd unit %s: %s", unit.Name, reason)
		}
		switch {
		case len(unread) > 0 || found.HasData == nil:
		case !*found.HasData && (unit.isGuess || !unit.command.isCertain):
		case !*found.HasData:
			s.addNote("systemd unit %s does not run, and its data directory %s holds no member",
				unit.Name, s.root.HostPath(found.Config.DataDir))
		default:
			s.found = append(s.found, found)
		}
	}
}

// describeUnit describes the server of a unit by the unit's files alone. HasData is known
// unless something is unread.
func (s *hostScan) describeUnit(unit etcdUnit) (found detectedServer, unread []string) {
	find := func(serverPath string) (string, error) { return s.root.Resolve(unit.hostPath(serverPath)) }
	read := func(serverPath string) ([]byte, error) { return s.root.ReadFile(unit.hostPath(serverPath)) }
	workDir := cmp.Or(unit.WorkingDirectory, "/")
	loaded, err := loadSettings(parseFlags(unit.command.args), envSettings(unit.Env), workDir, read)
	unread = slices.Clone(unit.Unread)
	found.Server = evidence.Server{Source: evidence.DataDirectory, Unit: unit.Name}
	found.Config = loaded.config(workDir, true)
	found.Config.DataDir = unit.hostPath(found.Config.DataDir)
	if found.serverDataDir = found.Config.DataDir; len(systemd.UnresolvedNames(found.serverDataDir)) == 0 {
		found.inspectDataDir(s.root, s.root.Resolve)
	}
	doubt := unit.dataDirDoubt(loaded, found)
	switch {
	case err != nil && len(systemd.UnresolvedNames(loaded.file)) == 0:
		unread = append(unread, err.Error())
	case doubt != "" && (found.HasData == nil || !*found.HasData) && !s.canBeRunning(unit):
		unread = append(unread, doubt+
			"; set its data directory to an absolute path of the host, or remove the unit if its member no longer exists")
	}
	found.Where = fmt.Sprintf("data directory %s of systemd unit %s, which does not run", found.serverDataDir, unit.Name)
	if len(systemd.UnresolvedNames(found.Config.Name)) > 0 {
		found.Config.Name = "" // not known
	}
	loaded.etcdSettings = withoutUnresolved(loaded.etcdSettings)
	if found.Config.File = s.existingPath(find, loaded.file); loaded.file == "" {
		found.Config.File = s.existingPath(s.root.Resolve, unit.envFile)
	}
	found.Credentials = s.credentials(loaded.etcdSettings, unit.envFile, find)
	unread = append(unread, found.Problems...)
	found.Problems = nil
	return found, unread
}

// withoutUnresolved removes the markers. It drops a name with a marker, because a partial name may
// be that of another member.
func withoutUnresolved(settings etcdSettings) etcdSettings {
	known := etcdSettings{}
	for key, value := range settings {
		if key != "name" || len(systemd.UnresolvedNames(value)) == 0 {
			known[key] = systemd.ReplaceUnresolved(value, "")
		}
	}
	return known
}

// canBeRunning reports whether systemd runs the unit and a server was found that may be the
// unit's, such as one in a container, which is not in the unit's cgroup.
func (s *hostScan) canBeRunning(unit etcdUnit) bool {
	return unit.mainPID != 0 && slices.ContainsFunc(s.found, func(f detectedServer) bool {
		return f.PID != 0 && f.Unit == "" && !f.InCluster
	})
}

// addUnitInfo adds the files of a unit to a server that was found already. The settings of
// the server stay. The unit adds its name, and its credentials for etcdctl, which the server
// need not know.
func (s *hostScan) addUnitInfo(f *detectedServer, unit detectedServer) {
	if f.Unit == "" && f.PID != 0 && !f.InCluster {
		f.setUnit(unit.Unit)
	}
	if f.Config.File == "" {
		f.Config.File = unit.Config.File
	}
	for _, c := range slices.Backward(unit.Credentials) {
		if strings.HasPrefix(c.Origin, ctlOrigin) {
			f.Credentials = s.preferCredential(f.Credentials, c)
		}
	}
}

// addScriptUnits adds the data directories in the variables of units whose command does not
// show etcd: a script may start it. Backups have the same variables, so only the data of a
// member counts.
func (s *hostScan) addScriptUnits() {
	for _, unit := range s.units {
		dir := unit.Env["ETCD_DATA_DIR"]
		if unit.command.isServer || !path.IsAbs(dir) || len(systemd.UnresolvedNames(dir)) > 0 {
			continue
		}
		found := detectedServer{Server: evidence.Server{Source: evidence.DataDirectory, Unit: unit.Name}}
		settings := withoutUnresolved(envSettings(unit.Env))
		found.Config = settings.config("/", true)
		found.inspectDataDir(s.root, s.root.Resolve)
		for _, problem := range found.Problems {
			s.addUnknown("systemd unit %s: %s", unit.Name, problem)
		}
		known := slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.isSame(found) })
		if known || found.HasData == nil || !*found.HasData {
			continue
		}
		found.Where = fmt.Sprintf("data directory %s, named by ETCD_DATA_DIR of systemd unit %s",
			found.serverDataDir, unit.Name)
		found.Config.File = s.existingPath(s.root.Resolve, unit.envFile)
		found.Credentials = s.credentials(settings, unit.envFile, s.root.Resolve)
		s.found = append(s.found, found)
	}
}

// addDataDirs adds the members in the data directories of the layouts, and of servers that
// were found before.
func (s *hostScan) addDataDirs() {
	unread := "\x00" // an unreadable directory hides all below it, and is reported once
	before := distroLayout{dataDirs: s.watchlist.dataDirNames()}
	for _, l := range append(distroLayouts(), before) {
		places := s.placesOf(l)
		for _, dir := range places.dataDirs {
			if strings.HasPrefix(dir+"/", unread+"/") {
				continue
			}
			config := places.config
			if l.program.config != "" {
				config = path.Join(dir, l.program.config)
			}
			if err := s.addDataDir(l, dir, config); err != nil {
				unread = dir
				s.addUnknown("the data directory %s: %v", dir, hostfs.Reason(err))
			}
		}
	}
}

func (s *hostScan) addDataDir(l distroLayout, dir, config string) error {
	info, err := s.root.Stat(dir)
	if hostfs.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	isSame := func(f detectedServer) bool { return f.dirInfo != nil && os.SameFile(f.dirInfo, info) }
	if slices.ContainsFunc(s.found, isSame) {
		return nil
	}
	has, err := hasMember(s.root, dir)
	if err != nil || !has {
		return err
	}
	found := detectedServer{dirInfo: info, Server: evidence.Server{
		Source: evidence.DataDirectory, Where: "data directory " + dir, HasData: &has,
	}}
	s.addConfigFile(&found, config, info)
	found.readLog(s.root, dir)
	found.Config.DataDir = s.existingPath(s.root.Resolve, dir)
	for _, unit := range s.units {
		hasOther := slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.Unit == unit.Name })
		if slices.Contains(l.units, unit.Name) && !hasOther {
			found.Unit = unit.Name
			found.Where += fmt.Sprintf(" (%ssystemd unit %s)", ownerOf(unit.Name), unit.Name)
			break
		}
	}
	if found.Unit == "" {
		found.Where += ", with no server running on it"
	}
	s.found = append(s.found, found)
	return nil
}

// addConfigFile adds the settings in a layout's configuration file if the file is that of the
// server on the data directory. The data proves the member; a file that cannot be read
// changes nothing.
func (s *hostScan) addConfigFile(f *detectedServer, file string, dir fs.FileInfo) {
	if file == "" {
		return
	}
	loaded, err := loadSettings(etcdSettings{"config-file": file}, nil, "/", s.root.ReadFile)
	if err != nil {
		return
	}
	if configured, err := s.root.Stat(loaded.etcdSettings["data-dir"]); err != nil || !os.SameFile(configured, dir) {
		return
	}
	f.Config = loaded.config("/", true)
	f.Config.File = s.existingPath(s.root.Resolve, file)
	f.Credentials = s.credentials(loaded.etcdSettings, file, s.root.Resolve)
}
