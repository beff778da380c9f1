package host

import (
	"os"
	"slices"
	"strings"
)

// A gap stands in a setting for what the files of a unit do not tell: a variable that none of them sets, a specifier that
// only systemd can replace. It is a mark around the name of that, of characters which no text holds. systemd has nothing in
// its place, or something that cannot be known from here.
const gapBegins, gapEnds = "\x00", "\x01"

func gap(name string) string { return gapBegins + name + gapEnds }

// gaps returns the names of the gaps in a setting.
func gaps(s string) []string {
	var names []string
	_, rest, _ := strings.Cut(s, gapBegins)
	for part := range strings.SplitSeq(rest, gapBegins) {
		if name, _, is := strings.Cut(part, gapEnds); is && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// fillGaps replaces each gap by what stands for it.
func fillGaps(s, by string) string {
	filled, rest, begins := strings.Cut(s, gapBegins)
	if !begins {
		return s
	}
	for part := range strings.SplitSeq(rest, gapBegins) {
		if _, after, is := strings.Cut(part, gapEnds); is {
			filled += by + after
		} else {
			filled += gapBegins + part
		}
	}
	return filled
}

// value returns a variable of a unit's, or a gap.
func value(env map[string]string, name string) string {
	if v, set := env[name]; set {
		return v
	}
	return gap("$" + name)
}

// expandAll replaces variables as systemd does (systemd.service(5)): $NAME alone becomes as many words as it holds,
// ${NAME} within a word stays one.
func expandAll(line []string, env map[string]string) []string {
	var all []string
	for _, word := range line {
		name, alone := strings.CutPrefix(word, "$")
		if alone && isVariable(name) {
			all = append(all, words(env[name])...)
			continue
		}
		all = append(all, expandBraced(word, env))
	}
	return all
}

func expandBraced(word string, env map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(word, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			out.WriteString(word)
			return out.String()
		}
		out.WriteString(before)
		out.WriteString(value(env, name))
		word = after
	}
}

// expand replaces variables as a shell does, near enough.
func expand(line string, env map[string]string) string {
	kept := strings.ReplaceAll(line, gapBegins+"$", gapBegins) // a gap's own name is no variable to replace
	return os.Expand(kept, func(name string) string { return value(env, name) })
}
