package host

import "strings"

// parseEnvFile reads an EnvironmentFile as systemd does (systemd.exec(5); src/basic/env-file.c): lines of NAME=value,
// quotes taken off, a backslash at the end of a line joins the next, comments begin with # or ; at the start of a line.
// A line that is none of these is passed over, as systemd passes over it: the server runs without it too.
func parseEnvFile(data []byte) map[string]string {
	env := map[string]string{}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t")
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		for strings.HasSuffix(line, `\`) && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, `\`) + lines[i]
		}
		name, value, assigned := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !assigned || !isVariable(name) {
			continue
		}
		env[name] = unquote(strings.TrimSpace(value))
	}
	return env
}

// isVariable says whether systemd takes name for the name of a variable.
func isVariable(name string) bool {
	for i, c := range name {
		letter := c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// unquote takes off quotes and backslashes.
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

// words splits a line into words as systemd and a shell do, quotes and backslashes taken off.
func words(line string) []string {
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
