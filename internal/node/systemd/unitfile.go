// Package systemd reads systemd units from their files and over D-Bus, and observes the
// shutdown of the host.
package systemd

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// UnitDirs returns systemd's directories of system units in the order of precedence
// (systemd.unit(5)).
func UnitDirs() []string {
	return []string{
		"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
		"/run/systemd/generator.early", "/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system",
		"/run/systemd/system.attached", "/run/systemd/generator", "/usr/local/lib/systemd/system",
		"/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
	}
}

// UnitFiles returns the files of every unit on disk whose name matches, by unit. The unit
// file with the highest precedence is first, then the drop-ins follow in systemd's order.
func UnitFiles(root hostfs.Root, patterns []string) (files map[string][]string, unread []string) {
	files = map[string][]string{}
	dropIns := map[string][]string{}
	var wanted []string // the units that other units start
	list := func(dir string) []os.DirEntry {
		entries, err := root.ReadDir(dir)
		if err != nil {
			unread = append(unread, fmt.Sprintf("the unit files: %v", err))
		}
		return entries
	}
	for _, dir := range UnitDirs() {
		for _, entry := range list(dir) {
			file := filepath.Join(dir, entry.Name())
			name, isDropIn := strings.CutSuffix(entry.Name(), ".d")
			switch {
			case isDropIn:
				dropIns[name] = append(dropIns[name], file)
			case slices.Contains([]string{".wants", ".requires", ".upholds"}, filepath.Ext(name)):
				for _, link := range list(file) {
					wanted = append(wanted, link.Name())
				}
			case (hostfs.MatchesAny(patterns, name) || IsTemplate(name)) && files[name] == nil && !isMasked(root, file):
				files[name] = []string{file}
			}
		}
	}
	maps.DeleteFunc(files, func(name string, own []string) bool { return isAlias(root, name, own[0], files) })
	// An instance of a template that a drop-in or another unit names has the template's file.
	for _, name := range slices.AppendSeq(wanted, maps.Keys(dropIns)) {
		if own := files[templateOf(name)]; len(own) > 0 && files[name] == nil {
			files[name] = own
		}
	}
	maps.DeleteFunc(files, func(name string, _ []string) bool { return !hostfs.MatchesAny(patterns, name) })
	for name := range files {
		files[name] = append(slices.Clip(files[name]), unitDropIns(list, name, dropIns)...)
	}
	return files, unread
}

// MountPoints returns the directories of the mounts that the host's administrator set, in
// /etc/fstab or as units. A host without systemd makes no units of /etc/fstab, and systemd makes
// them only when it starts or reloads.
func MountPoints(root hostfs.Root) (dirs []string) {
	for _, dir := range []string{"/etc/systemd/system", "/run/systemd/generator"} {
		entries, _ := root.ReadDir(dir) // UnitFiles reports an error
		for _, entry := range entries {
			name, isMount := strings.CutSuffix(entry.Name(), ".mount")
			if isMount && !isMasked(root, filepath.Join(dir, entry.Name())) {
				dirs = append(dirs, unit.UnitNamePathUnescape(name))
			}
		}
	}
	table, _ := root.ReadFile("/etc/fstab") // its units remain
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && !strings.HasPrefix(fields[0], "#") && path.IsAbs(fields[1]) {
			dirs = append(dirs, path.Clean(hostfs.UnescapeMount(fields[1])))
		}
	}
	return dirs
}

// IsTemplate reports whether a unit is a template for instances, such as etcd@.service.
func IsTemplate(name string) bool { return strings.Contains(name, "@.") }

// templateOf returns the template of an instance, or "" for any other unit.
func templateOf(name string) string {
	prefix, instance, found := strings.Cut(name, "@")
	ext := path.Ext(instance)
	if !found || ext == "" || ext == instance {
		return ""
	}
	return prefix + "@" + ext
}

// isAlias reports whether a unit file is a link to the file of another unit, and so the same
// unit (systemd.unit(5)). An instance is a unit of its own.
func isAlias(root hostfs.Root, name, file string, files map[string][]string) bool {
	at, err := root.Resolve(file)
	if err != nil {
		return false
	}
	if at, err = filepath.EvalSymlinks(at); err != nil { // Resolve keeps links in the root "/"
		return false
	}
	other := filepath.Base(at)
	return other != name && !strings.Contains(name, "@") && len(files[other]) > 0
}

// isMasked reports whether a unit file is a link to /dev/null, or empty (systemd.unit(5)).
// Such a unit cannot start, but the next unit file in precedence still names the data
// directory.
func isMasked(root hostfs.Root, file string) bool {
	at, err := root.Resolve(file)
	if err != nil {
		return false
	}
	if strings.HasSuffix(at, "/dev/null") {
		return true
	}
	info, err := os.Stat(at)
	return err == nil && (info.Mode()&os.ModeCharDevice != 0 || info.Mode().IsRegular() && info.Size() == 0)
}

// unitDropIns returns the drop-ins of a unit, sorted by name; of equal names the first counts
// (systemd.unit(5); src/basic/unit-file.c, unit_file_find_dropin_paths). Directory by
// directory, they are those of the unit, of its template, and of each prefix of its name that
// ends in a dash. The drop-ins of all services follow.
func unitDropIns(list func(dir string) []os.DirEntry, unit string, all map[string][]string) (files []string) {
	owners, ext := []string{unit, templateOf(unit)}, path.Ext(unit)
	for base := strings.TrimSuffix(unit, ext); !strings.Contains(unit, "@"); {
		at := strings.LastIndex(base, "-")
		if at <= 0 {
			break
		}
		owners, base = append(owners, base[:at+1]+ext), base[:at]
	}
	var dirs []string
	for _, unitDir := range UnitDirs() {
		for _, owner := range owners {
			dir := filepath.Join(unitDir, owner+".d")
			if slices.Contains(all[owner], dir) && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	byName := map[string]string{}
	for _, dir := range append(dirs, all[strings.TrimPrefix(ext, ".")]...) {
		for _, entry := range list(dir) {
			if name := entry.Name(); filepath.Ext(name) == ".conf" && byName[name] == "" {
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, byName[name])
	}
	return files
}
