package host

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// mostTraces bounds what is remembered. A host has one server or two.
const mostTraces = 64

// traces are the places that looks have led to and that no layout names: the files and data directories of servers that
// somebody has put elsewhere, and their units. They are watched, and the data directories are looked at again when
// nothing but the data is left of a server: it is a voter still.
type traces struct {
	mu sync.Mutex // guards the three lists
	// files are paths, in the host's own words as the others are.
	files, dataDirs, units []string

	// newFiles and newUnits tell that something was added.
	newFiles, newUnits chan struct{}
}

func newTraces() *traces {
	return &traces{newFiles: make(chan struct{}, 1), newUnits: make(chan struct{}, 1)}
}

// learn adds what a look has found.
func (t *traces) learn(s *scan) {
	var files, dataDirs, units []string
	for _, unit := range s.services {
		units = append(units, unit.name)
		files = slices.Concat(files, unit.files, unit.settingsFiles)
	}
	files = append(files, s.settingsFiles...)
	for _, f := range s.found {
		if dir := s.ownName(f.Config.DataDir); dir != "" && !f.InCluster { // what a pod leaves behind is Kubernetes' business
			dataDirs = append(dataDirs, dir)
		}
		named := []string{f.Config.File}
		for _, c := range f.Credentials {
			named = append(named, c.CA, c.Cert, c.Key)
		}
		for _, at := range named {
			files = append(files, nonempty(s.ownName(at))...)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	newFiles, newDirs := remember(&t.files, files), remember(&t.dataDirs, dataDirs)
	if newFiles || newDirs {
		ring(t.newFiles)
	}
	if remember(&t.units, units) {
		ring(t.newUnits)
	}
}

// ownName returns the host's name for a path of the agent's, empty for one that is the process's alone and ends with it.
func (s *scan) ownName(at string) string {
	root := s.host.root
	name, below := strings.CutPrefix(at, strings.TrimSuffix(string(root), "/")+"/")
	if !below || strings.HasPrefix(name, "proc/") {
		return ""
	}
	return "/" + name
}

// remember adds the names that a look has found, and says whether one of them is new. Of too many, the oldest goes that
// this look has not found: one that would only come back with the next look makes no room for another of the same, and is
// no news then.
func remember(all *[]string, found []string) (news bool) {
	for _, name := range found {
		if slices.Contains(*all, name) {
			continue
		}
		if len(*all) == mostTraces {
			at := slices.IndexFunc(*all, func(old string) bool { return !slices.Contains(found, old) })
			if at < 0 {
				return news
			}
			*all = slices.Delete(*all, at, at+1)
		}
		*all = append(*all, name)
		news = true
	}
	return news
}

func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it rings already
	}
}

// targets are the directories to watch for what was learned.
func (t *traces) targets() []target {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := map[string][]string{}
	for _, file := range t.files {
		dir := filepath.Dir(file)
		names[dir] = append(names[dir], filepath.Base(file))
	}
	var all []target
	for dir, files := range names {
		all = append(all, target{dir: dir, names: files})
	}
	for _, dir := range t.dataDirs {
		all = append(all, dataTarget(dir))
	}
	return all
}

func (t *traces) knownUnits() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.units)
}

func (t *traces) knownDataDirs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.dataDirs)
}
