package host

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// unitDirs are systemd's directories of system units, the strongest first (systemd.unit(5)).
func unitDirs() []string {
	return []string{
		"/etc/systemd/system", "/run/systemd/system", "/run/systemd/transient", "/run/systemd/generator",
		"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
	}
}

// unitFiles returns the files of every unit on disk whose name matches, by unit: the strongest unit file first, then its
// drop-ins in systemd's order.
func (h *Host) unitFiles(patterns []string) (files map[string][]string, unread []string) {
	files = map[string][]string{}
	dropIns := map[string][]string{}
	for _, dir := range unitDirs() {
		entries, err := h.list(dir)
		if err != nil {
			unread = append(unread, fmt.Sprintf("the unit files: %v", err))
			continue
		}
		for _, entry := range entries {
			name, isDropIn := strings.CutSuffix(entry.Name(), ".d")
			switch {
			case isDropIn:
				dropIns[name] = append(dropIns[name], filepath.Join(dir, entry.Name()))
			case matchesAny(patterns, name) && files[name] == nil && !h.masked(filepath.Join(dir, name)):
				files[name] = []string{filepath.Join(dir, name)}
			}
		}
	}
	maps.DeleteFunc(files, func(name string, its []string) bool { return h.isAlias(name, its[0], files) })
	unread = append(unread, h.addInstances(files, dropIns)...)
	for name := range files {
		confs, problems := h.dropIns(name, dropIns)
		files[name], unread = append(slices.Clip(files[name]), confs...), append(unread, problems...)
	}
	return files, unread
}

// addInstances adds the instances of templates that something on the disk names: a drop-in, or a link that starts them. They
// have the template's file.
func (h *Host) addInstances(files map[string][]string, dropIns map[string][]string) (unread []string) {
	named := slices.Collect(maps.Keys(dropIns))
	if slices.ContainsFunc(slices.Collect(maps.Keys(files)), isTemplate) {
		for _, wants := range h.wants(&unread) {
			named = append(named, wants...)
		}
	}
	for _, name := range named {
		if its := files[templateOf(name)]; len(its) > 0 && files[name] == nil {
			files[name] = its
		}
	}
	return unread
}

// wants returns the names of the units that other units start, by the links in directories such as multi-user.target.wants.
func (h *Host) wants(unread *[]string) (all [][]string) {
	for _, dir := range unitDirs() {
		entries, err := h.list(dir)
		if err != nil {
			continue // told already
		}
		for _, entry := range entries {
			if ext := filepath.Ext(entry.Name()); ext != ".wants" && ext != ".requires" && ext != ".upholds" {
				continue
			}
			links, err := h.list(filepath.Join(dir, entry.Name()))
			if err != nil {
				*unread = append(*unread, fmt.Sprintf("the unit files: %v", err))
				continue
			}
			var names []string
			for _, link := range links {
				names = append(names, link.Name())
			}
			all = append(all, names)
		}
	}
	return all
}

// isTemplate says whether a unit is one for instances: etcd@.service.
func isTemplate(name string) bool { return strings.Contains(name, "@.") }

// templateOf returns the template of an instance, empty for any other unit.
func templateOf(name string) string {
	prefix, instance, is := strings.Cut(name, "@")
	ext := path.Ext(instance)
	if !is || ext == "" || ext == instance {
		return ""
	}
	return prefix + "@" + ext
}

// isAlias says that a unit file is a link to that of another unit, which is the same unit (systemd.unit(5)). An
// instance is a unit of its own.
func (h *Host) isAlias(name, file string, files map[string][]string) bool {
	at, err := h.root.locate(file)
	if err != nil {
		return false
	}
	if at, err = filepath.EvalSymlinks(at); err != nil { // in the agent's own root links are left in place
		return false
	}
	other := filepath.Base(at)
	return other != name && !strings.Contains(name, "@") && len(files[other]) > 0
}

// masked says that a unit is a link to /dev/null, or empty (systemd.unit(5)). It cannot start then, but the weaker unit file
// behind it still tells where a member has its data.
func (h *Host) masked(file string) bool {
	at, err := h.root.locate(file)
	if err != nil {
		return false
	}
	info, err := os.Stat(at)
	return strings.HasSuffix(at, "/dev/null") || err == nil && (info.Mode()&os.ModeCharDevice != 0 || info.Mode().IsRegular() && info.Size() == 0)
}

// dropIns returns the drop-ins of a unit, of all directories for it, by name; of one name the first counts (systemd.unit(5);
// src/basic/unit-file.c, unit_file_find_dropin_paths): the unit's own, its template's, and those of each beginning of its
// name that ends in a dash, directory by directory, and then those of all services.
func (h *Host) dropIns(unit string, all map[string][]string) (files, unread []string) {
	owners, ext := []string{unit, templateOf(unit)}, path.Ext(unit)
	for base := strings.TrimSuffix(unit, ext); !strings.Contains(unit, "@"); {
		at := strings.LastIndex(base, "-")
		if at <= 0 {
			break
		}
		owners, base = append(owners, base[:at+1]+ext), base[:at]
	}
	var dirs []string
	for _, root := range unitDirs() {
		for _, owner := range owners {
			if dir := filepath.Join(root, owner+".d"); slices.Contains(all[owner], dir) && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	byName := map[string]string{}
	for _, dir := range append(dirs, all[strings.TrimPrefix(ext, ".")]...) {
		entries, err := h.list(dir)
		if err != nil {
			unread = append(unread, fmt.Sprintf("the unit files: %v", err))
		}
		for _, entry := range entries {
			if name := entry.Name(); filepath.Ext(name) == ".conf" && byName[name] == "" {
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, byName[name])
	}
	return files, unread
}
