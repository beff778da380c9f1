// Package buildinfo says which build of a program runs.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Version returns what the linker has stamped on a program, that is the version of the images with their commit, or if that
// is empty what the Go toolchain has recorded; and the version of Go.
func Version(stamped string) string {
	if stamped != "" {
		return stamped + " " + runtime.Version()
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with changes"
		}
	}
	return info.Main.Version + revision + modified + " " + info.GoVersion
}
