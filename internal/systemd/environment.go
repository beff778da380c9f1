package systemd

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/hostfs"
)

// parseEnvFile reads an EnvironmentFile as systemd does (systemd.exec(5);
// src/basic/env-file.c). Lines have the form NAME=value, and a comment begins with # or ; at the
// start of a line. Like systemd, it ignores any other line.
func parseEnvFile(data []byte) map[string]string {
	env := map[string]string{}
	for text := string(data); text != ""; {
		text = strings.TrimLeft(text, envSpace)
		line := text
		if end := strings.IndexAny(text, "\r\n"); end >= 0 {
			line = text[:end]
		}
		name, _, assigned := strings.Cut(line, "=")
		if !assigned || line[0] == '#' || line[0] == ';' {
			text = text[len(line):]
			continue
		}
		var value string
		value, text = parseEnvValue(text[len(name)+1:])
		if name = strings.TrimRight(name, envSpace); IsVariableName(name) {
			env[name] = value
		}
	}
	return env
}

// envSpace are the characters that count as white space in an EnvironmentFile.
const envSpace = " \t\r\n"

// parseEnvValue returns the value at the beginning of the text, and the text after it. The value
// ends with its line. A part in quotes may contain more lines, and a backslash at the end of a line
// joins the next one. Quotes count only before a part without quotes.
func parseEnvValue(text string) (value, rest string) {
	var plain []byte
	var quote byte
	isBare, length := false, 0 // the length without white space at the end
	i := 0
	for ; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '"' && c == '\\' && i+1 < len(text):
			i++
			if strings.IndexByte("\"\\`$\n", text[i]) < 0 {
				plain = append(plain, c)
			}
			if text[i] != '\n' {
				plain = append(plain, text[i])
			}
		case quote != 0:
			plain = append(plain, c)
		case c == '\n', c == '\r':
			return string(plain[:length]), text[i:]
		case c == '\\':
			isBare = true
			if i++; i < len(text) && text[i] != '\n' && text[i] != '\r' {
				plain = append(plain, text[i])
			}
		case !isBare && (c == '\'' || c == '"'):
			quote = c
		case strings.IndexByte(envSpace, c) >= 0:
			if isBare {
				plain = append(plain, c)
			}
			continue
		default:
			isBare = true
			plain = append(plain, c)
		}
		length = len(plain)
	}
	return string(plain[:length]), ""
}

// IsVariableName reports whether systemd accepts name as the name of a variable.
func IsVariableName(name string) bool {
	for i, c := range name {
		letter := c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// unquote removes quotes and backslashes.
func unquote(s string) string {
	var plain strings.Builder
	var quote byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == '\'' && c != '\'':
			plain.WriteByte(c)
		case c == '\\' && i+1 < len(s):
			i++
			plain.WriteByte(s[i])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		default:
			plain.WriteByte(c)
		}
	}
	return plain.String()
}

// splitWords splits a line into words as systemd and a shell do, and removes quotes and
// backslashes.
func splitWords(line string) []string {
	var all []string
	var word strings.Builder
	var quote byte
	inside := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'':
			word.WriteByte(c)
		case c == '\\' && i+1 < len(line):
			i++
			if line[i] != '\n' {
				word.WriteByte(line[i])
				inside = true
			}
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inside = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n'):
			if inside {
				all = append(all, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteByte(c)
			inside = true
		}
	}
	if inside {
		all = append(all, word.String())
	}
	return all
}

// An unresolved marker replaces a part of a setting that the files of a unit do not define: a
// variable that no file sets, or a specifier that only the running systemd can replace. It is
// the name of that part between two characters that no text contains. For systemd the value
// is empty, or cannot be known from the files.
const unresolvedBegin, unresolvedEnd = "\x00", "\x01"

// Unresolved returns the marker for a name.
func Unresolved(name string) string { return unresolvedBegin + name + unresolvedEnd }

// UnresolvedNames returns the names of the markers in a setting, each once.
func UnresolvedNames(s string) []string {
	var names []string
	_, rest, _ := strings.Cut(s, unresolvedBegin)
	for part := range strings.SplitSeq(rest, unresolvedBegin) {
		if name, _, ok := strings.Cut(part, unresolvedEnd); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// ReplaceUnresolved replaces each marker in a setting.
func ReplaceUnresolved(s, by string) string {
	replaced, rest, found := strings.Cut(s, unresolvedBegin)
	if !found {
		return s
	}
	for part := range strings.SplitSeq(rest, unresolvedBegin) {
		if _, after, ok := strings.Cut(part, unresolvedEnd); ok {
			replaced += by + after
		} else {
			replaced += unresolvedBegin + part
		}
	}
	return replaced
}

// lookup returns the value of a variable, or a marker.
func lookup(env map[string]string, name string) string {
	if v, set := env[name]; set {
		return v
	}
	return Unresolved("$" + name)
}

// CommandLine splits a command as systemd does and replaces variables (systemd.service(5)).
// The single word $NAME becomes as many words as its value has, and none if the variable is not
// set. ${NAME} within a word remains one word. If the variable is not set, it becomes a marker.
// systemd would insert nothing. But the variable may be set where the files of the unit do not show
// it, and then the rest of the word would be a wrong path.
func CommandLine(exec string, env map[string]string) []string {
	var all []string
	for _, word := range splitWords(strings.TrimLeft(exec, "@-:+!|")) {
		name, alone := strings.CutPrefix(word, "$")
		if alone && IsVariableName(name) {
			all = append(all, splitWords(env[name])...)
			continue
		}
		parts := strings.Split(word, "$$") // which stands for one $, as of a shell (systemd.service(5))
		for i := range parts {
			parts[i] = expandBraced(parts[i], env)
		}
		all = append(all, strings.Join(parts, "$"))
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
		out.WriteString(lookup(env, name))
		word = after
	}
}

// specifiers returns a replacer for the specifiers in the files of a unit (systemd.unit(5),
// "Specifiers"; values of the system manager). Specifiers that only the running system can
// replace, such as the boot ID, become markers. So does the instance of a template.
func specifiers(root hostfs.Root, name string) *strings.Replacer {
	line := func(file, specifier string) string {
		data, err := root.ReadFile(file)
		text := strings.TrimSpace(string(data))
		if err != nil || text == "" {
			return Unresolved(specifier)
		}
		return text
	}
	whole := strings.TrimSuffix(name, path.Ext(name))
	prefix, instance, template := strings.Cut(whole, "@")
	final := prefix[strings.LastIndex(prefix, "-")+1:]
	hostname := line("/etc/hostname", "%H")
	short, _, _ := strings.Cut(hostname, ".")
	file := cmp.Or(instance, prefix)
	pairs := []string{
		"%%", "%", "%n", name, "%N", whole, "%p", prefix, "%P", unescapeName(prefix), "%j", final, "%J", unescapeName(final),
		"%H", hostname, "%l", short, "%m", line("/etc/machine-id", "%m"),
		"%S", "/var/lib", "%C", "/var/cache", "%L", "/var/log", "%E", "/etc", "%t", "/run", "%T", "/tmp",
		"%V", "/var/tmp", "%D", "/usr/share",
		"%h", "/root", "%u", "root", "%U", "0", "%g", "root", "%G", "0", "%s", "/bin/sh",
	}
	if template && instance == "" {
		pairs = append(pairs, "%i", Unresolved("%i"))
	} else {
		unescaped := unescapeName(instance)
		pairs = append(pairs, "%i", instance, "%I", unescaped, "%f", "/"+strings.TrimPrefix(unescapeName(file), "/"))
	}
	for _, letter := range "AaBbdfIMoqvwWyY" { // the replacer prefers the pairs above
		pairs = append(pairs, "%"+string(letter), Unresolved("%"+string(letter)))
	}
	return strings.NewReplacer(pairs...)
}

// unescapeName reverses systemd-escape(1): a dash is a slash, and \xNN is a byte.
func unescapeName(name string) string {
	var out strings.Builder
	for i := 0; i < len(name); i++ {
		switch {
		case name[i] == '-':
			out.WriteByte('/')
		case strings.HasPrefix(name[i:], `\x`) && i+3 < len(name) && isHex(name[i+2]) && isHex(name[i+3]):
			out.WriteByte(hexDigit(name[i+2])<<4 | hexDigit(name[i+3]))
			i += 3
		default:
			out.WriteByte(name[i])
		}
	}
	return out.String()
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }

func hexDigit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}
