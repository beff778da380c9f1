package host

import (
	"cmp"
	"path"
	"strings"
)

// specifiers replaces specifiers in a unit's files (systemd.unit(5), "Specifiers"; those of the system's manager). What only
// the running system can tell, such as its boot ID, is a gap, and so is the instance of a template.
func (h *Host) specifiers(name string) *strings.Replacer {
	line := func(file string) string {
		data, err := h.root.read(file)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	whole := strings.TrimSuffix(name, path.Ext(name))
	prefix, instance, template := strings.Cut(whole, "@")
	final := prefix[strings.LastIndex(prefix, "-")+1:]
	hostname := line("/etc/hostname")
	short, _, _ := strings.Cut(hostname, ".")
	file := cmp.Or(instance, prefix)
	pairs := []string{
		"%%", "%", "%n", name, "%N", whole, "%p", prefix, "%P", unescape(prefix), "%j", final, "%J", unescape(final),
		"%H", hostname, "%l", short, "%m", line("/etc/machine-id"),
		"%S", "/var/lib", "%C", "/var/cache", "%L", "/var/log", "%E", "/etc", "%t", "/run", "%T", "/tmp", "%V", "/var/tmp", "%D", "/usr/share",
		"%h", "/root", "%u", "root", "%U", "0", "%g", "root", "%G", "0", "%s", "/bin/sh",
	}
	if template && instance == "" {
		pairs = append(pairs, "%i", gap("%i"))
	} else {
		pairs = append(pairs, "%i", instance, "%I", unescape(instance), "%f", "/"+strings.TrimPrefix(unescape(file), "/"))
	}
	for _, letter := range "AaBbdfIMoqvwWyY" { // after those above, of which the first counts
		pairs = append(pairs, "%"+string(letter), gap("%"+string(letter)))
	}
	return strings.NewReplacer(pairs...)
}

// unescape undoes systemd-escape(1): a dash is a slash, and \xNN a byte.
func unescape(name string) string {
	var out strings.Builder
	for i := 0; i < len(name); i++ {
		switch {
		case name[i] == '-':
			out.WriteByte('/')
		case strings.HasPrefix(name[i:], `\x`) && i+3 < len(name) && isHex(name[i+2]) && isHex(name[i+3]):
			out.WriteByte(unhex(name[i+2])<<4 | unhex(name[i+3]))
			i += 3
		default:
			out.WriteByte(name[i])
		}
	}
	return out.String()
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}
