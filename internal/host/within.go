package host

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// findWithin looks for the etcd inside a program that runs, and says whether it has one. A program that has its data in a
// place which is not known is told as unknown.
//
// k3s takes its arguments out of the process table when it has read them (pkg/cli/server, SetProcTitle), and with them
// what the kernel would show of its variables. What is left are the unit, the settings' files, the place of the program
// that runs, which k3s unpacks into its data directory (cmd/k3s/main.go, extract), and the files that it has open.
func (s *scan) findWithin(p *process) bool {
	e := *p.within
	starts := []start{{args: p.args, env: p.env}}
	if unit := s.serviceOf(*p); unit != nil {
		how, _ := e.startIn(*unit)
		starts = append(starts, how)
	} else if home := s.host.openMember(p.pid, e); home != "" {
		p.take(home)
		return true
	}
	var homes, problems []string
	for _, how := range starts {
		told, _, err := e.told(how, p.files)
		if err != nil {
			problems = append(problems, err.Error())
		}
		homes = append(homes, told...)
	}
	// Another version's programs may lie where this one's data does not: they come after all that it was told.
	homes = append(homes, nonempty(e.unpackedIn(path.Dir(path.Dir(p.exe))))...)
	homes = compact(append(homes, e.dataDir))
	for _, home := range homes {
		if p.exists(path.Join(e.etcd(home), e.config)) {
			p.take(home)
			p.garbled = compact(problems)
			return true
		}
		if own, _, _ := strings.Cut(e.etcdDir, "/"); len(problems) == 0 && p.exists(path.Join(home, own)) {
			return false // its home, with another database than etcd
		}
	}
	if home := s.host.openMember(p.pid, e); home != "" {
		p.take(home)
		return true
	}
	why := strings.Join(append(compact(problems), fmt.Sprintf("it has no data in %s", strings.Join(homes, ", "))), "; ")
	s.unknown = append(s.unknown, fmt.Sprintf("process %d, %s %s, and whether it has etcd inside: %s; set data-dir in %s to where it keeps its data",
		p.pid, e.name, e.role, why, e.settings))
	return false
}

// take says that the process has etcd inside, with the configuration in the program's data directory.
func (p *process) take(home string) {
	p.configFile, p.args = path.Join(p.within.etcd(home), p.within.config), nil
}

// exists says whether there is such a file. One that cannot be looked at is there.
func (p *process) exists(name string) bool {
	_, err := p.files.stat(name)
	return !absent(err)
}

// openMember returns the data directory of the program whose etcd has its database open, empty if no file of that name is
// open or the kernel does not tell.
func (h *Host) openMember(pid int, e program) (home string) {
	dir := h.proc(strconv.Itoa(pid) + "/fd")
	table, err := os.Open(dir)
	if err != nil {
		return ""
	}
	defer func() { _ = table.Close() }() // nothing was written
	names, _ := table.Readdirnames(-1)   // what was read before an error counts
	for _, name := range names {
		file, err := os.Readlink(filepath.Join(dir, name))
		if home, is := strings.CutSuffix(file, "/"+e.etcdDir+"/member/snap/db"); err == nil && is && filepath.IsAbs(home) {
			return home
		}
	}
	return ""
}
