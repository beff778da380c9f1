package host

import (
	"slices"
	"strings"
)

// isServerName says whether a program of this name is etcd. CoreOS had etcd2 beside the first one, and who keeps several
// versions, or unpacks a release by hand, has etcd-v3.5.12 or etcd-v3.5.12-linux-amd64. Any other word after the name makes
// another program of it: etcdctl, etcd-backup, etcd_exporter.
func isServerName(name string) bool {
	rest, is := strings.CutPrefix(name, "etcd")
	if !is {
		return false
	}
	parts := strings.FieldsFunc(rest, func(r rune) bool { return r == '-' || r == '_' || r == '+' })
	return !slices.ContainsFunc(parts, func(part string) bool { return !isVersionPart(part) })
}

// isPlainServerName is isServerName without versions.
func isPlainServerName(name string) bool { return name == "etcd" || name == "etcd2" }

// isVersionPart says whether a part of a name tells a version (v3, 3.5.12, rc.1, k3s1) or what a build is for.
func isVersionPart(part string) bool {
	for _, prefix := range []string{"v", "rc", "alpha", "beta", "k3s"} {
		if rest, is := strings.CutPrefix(part, prefix); is {
			return isNumber(strings.TrimPrefix(rest, "."))
		}
	}
	return isNumber(part) || slices.Contains([]string{"linux", "amd64", "x86", "arm64", "arm", "aarch64", "ppc64le", "s390x"}, part)
}

func isNumber(text string) bool {
	return text != "" && text[0] >= '0' && text[0] <= '9' && strings.Trim(text, "0123456789.") == ""
}
