package etcddetect

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// addStopped adds the members whose data a starter mentions and that do not run. Such a member is
// still a voter of its cluster. For a starter whose server runs, it adds the name and the
// credentials in its texts to that server.
func (s *hostScan) addStopped() {
	for _, st := range s.starters {
		if at := slices.IndexFunc(s.found, func(f detectedServer) bool { return f.Unit == st.name }); at >= 0 {
			s.addUnitInfo(&s.found[at], st)
			continue
		}
		_, env, _ := st.settings()
		for _, dir := range st.dirs {
			if st.isServer() || dir.path == env["data-dir"] {
				s.addMention(st, dir)
			}
		}
	}
}

// addMention adds the member in a directory that a starter mentions.
func (s *hostScan) addMention(st *starter, dir memberDir) {
	st.isKnown = true
	at := slices.IndexFunc(s.found, func(f detectedServer) bool { return f.hasDir(dir.info) })
	switch {
	case at >= 0 && st.kind == podStarter:
		// A server outside of all pods stays what it is.
		if f := &s.found[at]; f.PID != 0 && f.InCluster {
			f.Source, f.Where = evidence.StaticPod, st.place()
		}
		return
	case at >= 0:
		s.addUnitInfo(&s.found[at], st)
		return
	}
	found := detectedServer{Server: evidence.Server{Source: evidence.DataDirectory}}
	if st.kind == unitStarter {
		found.Unit = st.name
	}
	if st.kind == podStarter {
		found.Source, found.InCluster = evidence.StaticPod, true
	}
	loaded, envFile, _ := s.settingsOf(st) // the data proves the member
	found.Config = loaded.config("", false)
	found.Config.DataDir = dir.path
	found.addDataDir(s.root, s.root.Resolve)
	if s.isCopy(found) {
		return
	}
	if dirs, _ := s.knownPlaces(st); len(dirs) > 0 && st.isServer() {
		found.setOld()
	}
	find := func(name string) (string, error) { return s.root.Resolve(st.hostPath(name)) }
	if found.Config.File = s.existingPath(find, loaded["config-file"]); loaded["config-file"] == "" {
		found.Config.File = s.existingPath(s.root.Resolve, envFile)
	}
	found.Credentials = s.credentials(loaded, envFile, find)
	found.Where = stoppedPlace(dir.path, st)
	for _, l := range distroLayouts() {
		if slices.Contains(l.units, st.name) {
			s.addConfig(&found, l.configFiles(dir.path))
		}
	}
	s.found = append(s.found, found)
}

// stoppedPlace describes a data directory in words. Its starter, or nil, may run another server.
func stoppedPlace(dir string, st *starter) string {
	place := "data directory " + dir
	if st != nil {
		place += " of " + st.place()
	}
	return place + ", with no server running on it"
}

// isCopy reports whether a server has the data of a member that was found already by the same unit,
// and adds a note about the copy.
func (s *hostScan) isCopy(f detectedServer) bool {
	isSame := func(o detectedServer) bool {
		return o.Unit == f.Unit && o.Stored != nil && f.Stored != nil && *o.Stored == *f.Stored
	}
	if !slices.ContainsFunc(s.found, isSame) {
		return false
	}
	s.addNote("%s has a copy of the data of member %s", f.serverDataDir, f.Stored.Member)
	return true
}

// addUnitInfo adds the name of a unit, and its file with variables, to a server that was found
// already. The settings of the server stay.
func (s *hostScan) addUnitInfo(f *detectedServer, unit *starter) {
	unit.isKnown = true
	if f.Unit == "" && f.PID != 0 && !f.InCluster && unit.kind == unitStarter && unit.isServer() {
		f.setUnit(unit.name)
	}
	_, _, envFile := unit.settings() // the settings of the server count
	if f.Unit != unit.name {
		return
	}
	if f.Config.File == "" {
		f.Config.File = s.existingPath(s.root.Resolve, envFile)
	}
}

// addDataDirs adds the members in the data directories of the layouts, and of servers that
// were found before.
func (s *hostScan) addDataDirs() {
	unread := "\x00" // an unreadable directory hides all below it, and is reported once
	before := distroLayout{dataDirs: s.watchlist.all()}
	for _, l := range append(distroLayouts(), before) {
		for _, dir := range s.dataDirs(l) {
			if strings.HasPrefix(dir+"/", unread+"/") {
				continue
			}
			if err := s.addDataDir(l, dir); err != nil {
				unread = dir
				s.addUnknown("the data directory %s: %v", dir, hostfs.Reason(err))
			}
		}
	}
}

func (s *hostScan) addDataDir(l distroLayout, dir string) error {
	found := detectedServer{Server: evidence.Server{
		Source: evidence.DataDirectory, Where: stoppedPlace(dir, nil), Config: evidence.Config{DataDir: dir},
	}}
	err := found.inspectDataDir(s.root, s.root.Resolve)
	switch {
	case slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.hasDir(found.dirInfo) }):
		return nil
	case err != nil:
		return err
	case !*found.HasData:
		return s.mountProblem(dir)
	}
	s.addConfig(&found, l.configFiles(dir))
	found.readLog(s.root, dir)
	isSure := true
	for _, st := range s.starters {
		hasOther := slices.ContainsFunc(s.found, func(f detectedServer) bool { return f.Unit == st.name })
		if slices.Contains(l.units, st.name) && !hasOther {
			found.Unit = st.name
			found.Where = stoppedPlace(dir, st)
			dirs, _ := s.knownPlaces(st)
			isSure = !st.mayStart() || len(dirs) > 0
			break
		}
	}
	if isSure {
		found.setOld()
	}
	s.found = append(s.found, found)
	return nil
}

// addConfig adds the settings in the first of the configuration files that is the one of the server
// on its data directory. The data proves the member; a file that cannot be read changes nothing.
func (s *hostScan) addConfig(f *detectedServer, files []string) {
	for _, file := range files {
		loaded, err := loadSettings(etcdSettings{"config-file": file}, nil, "/", s.root.ReadFile)
		if err != nil {
			continue
		}
		if info, err := s.root.Stat(loaded["data-dir"]); err != nil || !f.hasDir(info) {
			continue
		}
		dir := f.Config.DataDir
		f.Config = loaded.config("/", true)
		f.Config.DataDir, f.Config.File = dir, s.existingPath(s.root.Resolve, file)
		f.Credentials = s.credentials(loaded, file, s.root.Resolve)
		return
	}
}
