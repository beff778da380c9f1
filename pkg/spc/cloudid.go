package spc

import (
	"slices"
	"strings"
)

// lastSegment returns the part of a provider ID after the last slash, in lower case. For
// aws:///us-west-2a/i-0769aa it returns i-0769aa.
func lastSegment(id string) string {
	id = strings.TrimSpace(id)
	return strings.ToLower(id[strings.LastIndex(id, "/")+1:])
}

// idPath returns the parts of a cloud ID without its scheme, in lower case.
func idPath(id string) []string {
	id = strings.ToLower(strings.TrimSpace(id))
	if _, path, hasScheme := strings.Cut(id, "://"); hasScheme {
		id = path
	}
	return strings.FieldsFunc(id, func(r rune) bool { return r == '/' })
}

// isOtherCloudID reports whether two cloud IDs are of the same kind and differ. IDs of
// different kinds, such as a number and a name, or none, may be of the same machine.
func isOtherCloudID(a, b string) bool {
	lastA, lastB := lastSegment(a), lastSegment(b)
	return cloudIDKind(lastA) == cloudIDKind(lastB) && (lastA != lastB || hasOtherPath(a, b))
}

// hasOtherPath reports whether two cloud IDs with the same last part are of machines in different
// zones, projects, groups or scale sets: a name is unique only within these (kops#17635). An ID may
// lack the first parts of its path.
func hasOtherPath(a, b string) bool {
	if isUniqueInCloud(a) {
		return false
	}
	pathA, pathB := idPath(a), idPath(b)
	n := min(len(pathA), len(pathB))
	return !slices.Equal(pathA[len(pathA)-n:], pathB[len(pathB)-n:])
}

// isUniqueInCloud reports whether no other machine of the cloud has the last part of this ID. A
// number below a path is the index in a scale set.
func isUniqueInCloud(id string) bool {
	switch cloudIDKind(lastSegment(id)) {
	case "aws", "uuid":
		return true
	case "number":
		return len(idPath(id)) == 1
	}
	return false
}

func cloudIDKind(id string) string {
	switch {
	case id == "":
		return "none"
	case strings.HasPrefix(id, "i-"):
		return "aws"
	case strings.Trim(id, "0123456789") == "":
		return "number"
	case len(id) == 36 && strings.Count(id, "-") == 4 && strings.Trim(id, "0123456789abcdef-") == "":
		return "uuid"
	}
	return "name"
}
