package host

import (
	"fmt"
	"strings"
)

// option is one assignment of a unit file.
type option struct{ section, name, value string }

// blanks is what systemd takes off both ends of a line, a name and a value.
const blanks = " \t"

// unitOptions reads a unit file as systemd does (systemd.syntax(7); src/shared/conf-parser.c): a backslash at the end of a line
// becomes a blank and joins the next line, comments are left out before that, also between lines that are joined, and a line
// that is no assignment, or stands in no section, is passed over. A section's line that is cut off or goes on after its
// bracket keeps systemd from loading the file. Errors name lines by number and never by content: there are passwords in units.
func unitOptions(data []byte) ([]option, error) {
	text := strings.TrimPrefix(string(data), "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\n").Replace(text)
	var all []option
	var joined strings.Builder
	section, number := "", 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		line = strings.TrimLeft(line, blanks)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		if continued(line) {
			joined.WriteString(line[:len(line)-1] + " ")
			continue
		}
		joined.WriteString(line)
		o, opened, err := assignment(joined.String(), section)
		joined.Reset()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if section = opened; o != nil {
			all = append(all, *o)
		}
	}
	o, _, err := assignment(joined.String(), section) // the file may end in a backslash
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", number, err)
	}
	if o != nil {
		all = append(all, *o)
	}
	return all, nil
}

// continued says that a line ends in a backslash that no other one escapes.
func continued(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

const errSection = constError("it begins a section and does not end with a bracket, so that systemd does not load the file")

// assignment reads a whole line. It returns the option in it, if there is one, and the section that what follows is in.
func assignment(line, section string) (o *option, opened string, err error) {
	line = strings.Trim(line, blanks)
	if strings.HasPrefix(line, "[") {
		if !strings.HasSuffix(line, "]") {
			return nil, section, errSection
		}
		return nil, line[1 : len(line)-1], nil
	}
	name, value, assigned := strings.Cut(line, "=")
	if name = strings.Trim(name, blanks); !assigned || name == "" || section == "" {
		return nil, section, nil
	}
	return &option{section: section, name: name, value: strings.Trim(value, blanks)}, section, nil
}
