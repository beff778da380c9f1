package host

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// addInstances adds the instances of templates that are known by their files alone: one that was started by hand leaves nothing
// else behind when it has stopped. Only those with the data of a member matter, or with settings of their own, which tell
// where that is.
func (s *scan) addInstances() {
	root := s.host.root
	for _, template := range s.services {
		if !isTemplate(template.name) {
			continue
		}
		told, _ := precedence(flagSettings(template.args), envSettings(template.env), root.read) // one with a gap is no file
		dir := template.outside(told.config(cmp.Or(template.workDir, "/"), true).DataDir)
		there := func(named string) bool { _, err := root.stat(named); return !absent(err) }
		found := s.instances(template, dir, func(named string) bool { has, err := holdsMember(root, named); return has || err != nil })
		for _, named := range append(slices.Clone(template.perInstance), told.file) {
			found = append(found, s.instances(template, named, there)...)
		}
		for _, name := range found {
			if slices.ContainsFunc(s.services, func(known service) bool { return known.name == name }) {
				continue
			}
			instance := s.host.service(name, template.files)
			instance.guessed = true
			s.services = append(s.services, instance)
		}
	}
}

// instances returns the names of the instances for which there is something at a path with a gap for the instance.
func (s *scan) instances(template service, named string, there func(string) bool) (names []string) {
	before, after, is := strings.Cut(named, gap("%i"))
	if !is || len(gaps(before+after)) > 0 {
		return nil
	}
	dir, prefix := path.Split(before)
	suffix, _, _ := strings.Cut(after, "/")
	entries, err := s.host.list(dir)
	if err != nil {
		s.unknown = append(s.unknown, fmt.Sprintf("the instances of systemd unit %s: %v", template.name, err))
	}
	for _, entry := range entries {
		rest, begins := strings.CutPrefix(entry.Name(), prefix)
		instance, ends := strings.CutSuffix(rest, suffix)
		if begins && ends && instance != "" && there(before+instance+after) {
			names = append(names, strings.Replace(template.name, "@", "@"+instance, 1))
		}
	}
	return names
}
