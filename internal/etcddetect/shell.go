package etcddetect

import (
	"fmt"
	"path"
	"reflect"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/holdfast-dev/holdfast/internal/systemd"
)

// maxShellText is the longest text of a shell that is parsed, in bytes. The parser calls itself
// for nested commands: 4 KiB of opening brackets take 16 MiB of memory.
const maxShellText = 4 << 10

// shellText returns the argument of -c of a shell, or of a program that starts one as another user.
func shellText(line []string) (text string, ok bool) {
	if len(line) == 0 {
		return "", false
	}
	if base := path.Base(line[0]); !isShell(base) && !changesUser(base) {
		return "", false
	}
	for i := 1; i+1 < len(line); i++ {
		if strings.HasPrefix(line[i], "-") && strings.HasSuffix(line[i], "c") {
			return line[i+1], true
		}
	}
	return "", false
}

// changesUser reports whether a program starts the shell of another user or group.
func changesUser(base string) bool { return base == "su" || base == "sg" || base == "runuser" }

// shellCommands returns the simple commands in the text of a shell in their order, in words. The
// variables that a command sets are its first words. A text that is not parsed is one command
// after an empty one, because anything may run before it.
func shellCommands(text string, env map[string]string) (commands [][]string) {
	if len(text) > maxShellText {
		return [][]string{nil, systemd.CommandLine(text, env)}
	}
	s := shellWords{env: env}
	// Not StmtsSeq: it panics if its loop ends at an error (mvdan.cc/sh 3.14.1).
	file, err := syntax.NewParser().Parse(strings.NewReader(s.mask(text)), "")
	if err != nil {
		return [][]string{nil, systemd.CommandLine(text, env)}
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		switch n := node.(type) {
		case *syntax.CallExpr:
			commands = append(commands, s.words(n.Assigns, n.Args))
		case *syntax.DeclClause: // such as export
			commands = append(commands, s.words(n.Args, nil))
		case *syntax.CmdSubst, *syntax.ProcSubst:
			return false
		}
		return true
	})
	return commands
}

// shellWords expands the words of a shell's text. Variables that no file sets, and parts that
// only a running shell can expand, become markers.
type shellWords struct {
	env map[string]string
	// masked has placeholders and the markers that they stand for. A marker contains characters
	// that the parser would read as its own.
	masked []string
}

func (s *shellWords) mask(text string) string {
	for _, name := range systemd.UnresolvedNames(text) {
		placeholder, marker := fmt.Sprintf("\x02%d\x03", len(s.masked)), systemd.Unresolved(name)
		s.masked = append(s.masked, placeholder, marker)
		text = strings.ReplaceAll(text, marker, placeholder)
	}
	return text
}

// words returns the assignments and the words. A word that is one variable becomes as many words
// as its value has.
func (s *shellWords) words(assigns []*syntax.Assign, args []*syntax.Word) (words []string) {
	for _, a := range assigns {
		if a.Name != nil && a.Value != nil {
			words = append(words, a.Name.Value+"="+s.expand(a.Value.Parts, ""))
		}
	}
	for _, arg := range args {
		if _, isVariable := arg.Parts[0].(*syntax.ParamExp); isVariable && len(arg.Parts) == 1 {
			words = append(words, strings.Fields(s.expand(arg.Parts, ""))...)
		} else {
			words = append(words, s.expand(arg.Parts, ""))
		}
	}
	return words
}

// expand returns the text of the parts of a word. escapable are the characters that lose the
// backslash before them; if it is empty, all do.
func (s *shellWords) expand(parts []syntax.WordPart, escapable string) string {
	var out strings.Builder
	for _, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
			for i := 0; i < len(p.Value); i++ {
				next := p.Value[i+1 : min(i+2, len(p.Value))]
				if p.Value[i] == '\\' && next != "" && (escapable == "" || strings.Contains(escapable, next)) {
					i++
				}
				out.WriteByte(p.Value[i])
			}
		case *syntax.SglQuoted:
			out.WriteString(p.Value)
		case *syntax.DblQuoted:
			out.WriteString(s.expand(p.Parts, "$`\"\\"))
		case *syntax.ParamExp:
			out.WriteString(s.variable(p))
		default:
			out.WriteString(systemd.Unresolved("output"))
		}
	}
	return strings.NewReplacer(s.masked...).Replace(out.String())
}

// variable returns the value of $NAME or ${NAME}, or a marker.
func (s *shellWords) variable(p *syntax.ParamExp) string {
	name := "variable"
	if p.Param != nil {
		name = p.Param.Value
	}
	value, isSet := s.env[name]
	plain := &syntax.ParamExp{Dollar: p.Dollar, Rbrace: p.Rbrace, Short: p.Short, Param: p.Param}
	if !isSet || !reflect.DeepEqual(p, plain) {
		return systemd.Unresolved("$" + name)
	}
	return value
}
