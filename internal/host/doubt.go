package host

import (
	"fmt"
	"path"
	"strings"
)

// doubt says why the data of a unit's server may lie elsewhere than where its files put it by what is understood of them.
// That no member is there proves nothing then. It is empty if the place is certain.
func (s *service) doubt(told told, found server) string {
	if !s.sure || len(s.unread) > 0 || isTemplate(s.name) {
		return "" // an instance of a template is a unit of its own
	}
	named := told.settings["data-dir"]
	unknown := gaps(told.file + found.named)
	switch {
	case len(unknown) > 0:
		return fmt.Sprintf("where its data is depends on %s, which its files do not tell", strings.Join(unknown, ", "))
	case s.inRoot != "":
		return fmt.Sprintf("it has a root directory of its own (%s), and its data is not where it says", s.inRoot)
	case s.engine && (!path.IsAbs(named) || s.volume(named) == ""):
		return "its data is in the container, and in no directory of the host's"
	case s.engine && found.dir == nil && s.named[s.volume(named)]:
		return fmt.Sprintf("its data is in a volume of the container engine's, which is not at %s", found.named)
	case path.IsAbs(named) && s.script && told.file == "" && flagSettings(s.args)["data-dir"] == "":
		return fmt.Sprintf("a shell runs before it and may set another data directory than %s", named)
	case path.IsAbs(named):
		return ""
	case s.script:
		return "a shell runs before it, and its data directory depends on the working directory"
	case s.workDir == "~":
		return "its data directory depends on its user's home directory"
	case named == "" && s.workDir == "":
		return "its files name no data directory"
	}
	return ""
}
